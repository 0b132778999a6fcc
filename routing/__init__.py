"""Decisions only: standard library, synchronous, with the clock passed in."""
