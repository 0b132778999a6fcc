"""The entry point: `triton-gateway` and `python -m gateway`."""

from gateway.cli import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
