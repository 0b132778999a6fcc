"""Passive health: what requests tell about servers and versions. Pure state machines."""
