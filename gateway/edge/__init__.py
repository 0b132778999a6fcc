"""Inbound: the API listener. Speaks HTTP as Triton's own front end does, and knows no grpc."""
