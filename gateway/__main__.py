"""The entry point: `triton-gateway` and `python -m gateway`.

It exists for what has to be decided before the gRPC library is imported.
"""

import os

GRPC_EXPERIMENTS = "-event_engine_client"
"""The library's newer event engine hands every answer over several threads. Its older poller does
with fewer: a fifth less CPU for a whole small request, and the same behaviour."""


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    # Its own messages are no log lines, and what they say is told in better words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from gateway.cli import app  # noqa: PLC0415 - imports grpc

    app()


if __name__ == "__main__":
    main()
