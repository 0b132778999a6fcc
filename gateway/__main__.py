"""`python -m gateway` is `triton-gateway`."""

from gateway.cli import main

main()
