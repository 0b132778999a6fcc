"""Servers that come and go: who names them, and how far a source is believed."""
