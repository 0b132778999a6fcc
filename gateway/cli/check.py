"""`triton-gateway check`: judge a configuration without starting anything."""

import typer

from gateway.cli.refusal import load_or_refuse
from gateway.cli.serve import ConfigPath


def check(config: ConfigPath) -> None:
    """Check a configuration: every problem with file, line and key; exit 2 if there is one."""
    loaded = load_or_refuse(config)
    count = len(loaded.servers)
    typer.echo(f"{config}: good, {count} server{'s' if count != 1 else ''}")
