"""How a command ends badly: one clear line a problem on standard error.

Exit code 2 for what was refused before anything was done, 1 for what failed while doing it.
"""

from typing import NoReturn

import typer

from config.models import Config
from config.tree import ConfigError
from gateway.wiring import ConfigSource

FAILED = 1
REFUSED = 2


def refuse(*lines: object) -> NoReturn:
    """Print why and exit with 2."""
    for line in lines:
        typer.echo(line, err=True)
    raise typer.Exit(REFUSED)


def fail(line: object) -> NoReturn:
    """Print what failed and exit with 1."""
    typer.echo(line, err=True)
    raise typer.Exit(FAILED)


def load_or_refuse(source: ConfigSource) -> Config:
    """Return the configuration, with its secrets and certificates there, or say what is wrong."""
    try:
        return source.read()
    except ConfigError as error:
        refuse(*error.problems)
