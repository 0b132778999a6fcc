"""How a command refuses: one clear line a problem on standard error, exit code 2."""

import os
from pathlib import Path
from typing import NoReturn

import typer

from config.loader import load, missing_secrets
from config.models import Config
from config.tree import ConfigError

REFUSED = 2


def refuse(*lines: object) -> NoReturn:
    """Print why and exit with 2."""
    for line in lines:
        typer.echo(line, err=True)
    raise typer.Exit(REFUSED)


def load_or_refuse(path: Path) -> Config:
    """Return the configuration whose secrets can all be found, or say everything wrong with it."""
    try:
        config = load(path)
    except ConfigError as error:
        refuse(*error.problems)
    if missing := missing_secrets(config, os.environ):
        refuse(*missing)
    return config
