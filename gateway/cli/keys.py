"""`triton-gateway keys`: make an API key, or hash one again.

A key is shown once and kept nowhere; the configuration holds its hash. Keys are never arguments,
which other users of a machine can read.
"""

import secrets
import sys

import typer

from gateway.cli.refusal import refuse
from gateway.identity.keys import hash_key, new_key

keys_app = typer.Typer(help="API keys of tenants.", no_args_is_help=True)


@keys_app.command()
def new() -> None:
    """Make a key: it is shown this once. Its hash goes into the configuration."""
    key = new_key(secrets.token_bytes)
    typer.echo(f"key, for the caller (it is not shown again):\n  {key}")
    typer.echo("for the tenant in the configuration, below keys:")
    typer.echo(f"  - hash: {hash_key(key, secrets.token_bytes)}")


@keys_app.command(name="hash")
def hash_() -> None:
    """Print the hash of a key, which is read from standard input."""
    key = typer.prompt("key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    try:
        typer.echo(hash_key(key.strip(), secrets.token_bytes))
    except ValueError as error:
        refuse(f"standard input: {error}")
