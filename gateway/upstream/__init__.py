"""Outbound: channel pools, the gRPC transport, and the prober that watches the servers.

The only package that imports grpc and Triton's protobuf messages.
"""
