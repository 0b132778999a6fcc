"""The same bytes to Triton's own HTTP port and to the gateway, and what may differ."""
