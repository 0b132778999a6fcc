"""How a command ends badly: one clear line a problem on standard error.

Exit code 2 for what was refused before anything was done, 1 for what failed while doing it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import typer

from config.loader import load, missing_secrets
from config.models import Config
from config.tree import ConfigError, Problem
from gateway.wiring import listener_tls

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


def load_or_refuse(path: Path) -> Config:
    """Return the configuration, with its secrets and certificates there, or say what is wrong."""
    try:
        config = load(path)
    except ConfigError as error:
        refuse(*error.problems)
    if problems := [*missing_secrets(config, os.environ), *_unusable_certificates(config)]:
        refuse(*problems)
    return config


def _unusable_certificates(config: Config) -> Iterator[Problem]:
    for section, tls in (("api", config.api.tls), ("ops", config.ops.tls)):
        try:
            listener_tls(tls)
        except OSError as error:
            nodes, rest = config.origin.root.find((section, "tls"))
            reason = getattr(error, "reason", None) or error.strerror or error
            yield nodes[-1].problem(
                f"the certificate, its key or the authorities cannot be used: {reason}"
                " - they must be PEM files that belong together",
                rest,
            )
