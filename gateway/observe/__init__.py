"""Metrics and logs: each is told of every settled exchange."""
