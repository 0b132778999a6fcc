"""v2 REST bodies <-> InferCall / InferReply. No sockets, no grpc."""
