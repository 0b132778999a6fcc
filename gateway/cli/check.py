"""`triton-gateway check`: judge a configuration, and with --live the servers it names."""

import os
from typing import Annotated

import typer

from config.compare import digest
from config.models import Config
from gateway.cli.live import count, examine
from gateway.cli.refusal import load_or_refuse, refuse
from gateway.cli.report import all_findings, as_json, as_text
from gateway.cli.serve import ConfigPath
from gateway.upstream.findings import Severity
from gateway.wiring import ConfigSource

Live = Annotated[bool, typer.Option("--live", help="Look at the servers, too. Runs no inference.")]
Json = Annotated[bool, typer.Option("--json", help="With --live: the result as JSON.")]


def check(config: ConfigPath, live: Live = False, json: Json = False) -> None:
    """Check a configuration: every problem with file, line and key; exit 2 if there is one.

    With --live each server is looked at from here, those that the sources name now included, and
    what is wrong is told with its fix; exit 1 if a server or source cannot be used as configured.
    """
    if json and not live:
        refuse("--json: needs --live")
    loaded = load_or_refuse(ConfigSource(config, os.environ))
    if live:
        _look(loaded, json=json)
        return
    typer.echo(f"{config}: good, {_counted(loaded)}, hash {digest(loaded)}")


def _counted(config: Config) -> str:
    counts = [(len(config.servers), "server")]
    if config.discovery:
        counts.append((len(config.discovery), "source"))
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts)


def _look(config: Config, *, json: bool) -> None:
    found = examine(config, os.environ)
    targets, diagnoses, fleet = found.targets, found.diagnoses, found.fleet
    report = as_json(targets, diagnoses, fleet) if json else as_text(diagnoses, fleet)
    typer.echo(report)
    if count(all_findings(diagnoses, fleet), Severity.ERROR):
        raise typer.Exit(1)
