"""gRPC's calls with one request on HTTP/2, as far as calls to a Triton need it.

The gRPC library's asyncio client costs about 50 us of processor time a call, which was a third of a
small request; this costs about 10. `frames` is the wire format, `headers` header blocks,
`connection` one TCP connection with its calls, `sending` its outgoing half. Called by
`gateway.upstream.channels`.
"""
