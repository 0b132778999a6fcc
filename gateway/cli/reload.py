"""`triton-gateway reload`: have a running gateway take up its changed configuration, or say what
that would change.

Everything is worked out by the gateway; here is only how it is shown, in 80 columns.
"""

import json as json_module
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from gateway.cli.ops_client import DEFAULT_URL, KeyFile, OpsError, OpsUrl, connect
from gateway.cli.refusal import fail, refuse
from gateway.cli.text import plain, wrapped

_TIMEOUT_S = 120.0  # another reload may be under way, and new servers are waited for

Plan = Mapping[str, Any]


def reload(
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show what would change; change nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The plan as one JSON object.")] = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Reload the configuration of a running gateway, without losing a request.

    Exit 2 when the gateway refuses it; then nothing has changed.
    """
    client = connect(ops, key_file, timeout_s=_TIMEOUT_S)
    try:
        found = client.get("config", "plan") if plan else client.post("config", "reload")
    except OpsError as error:
        if error.problems:
            refuse(*map(plain, error.problems), "refused: the configuration in force stays")
        fail(error)
    typer.echo(json_module.dumps(found, indent=2) if json else as_text(found))
    if not json and not plan:
        typer.echo(f"in force: {found['to']}")


def as_text(plan: Plan) -> str:
    """Return a plan for people."""
    changes = [*_servers(plan["servers"]), *_settings(plan["settings"])]
    lines = [wrapped(f"configuration {plan['from']} -> {plan['to']}")]
    lines += changes or ["  nothing changes"]
    for title, found in (
        ("NEEDS A RESTART, and stays as it is until then", _settings(plan["needs_restart"])),
        ("CONSEQUENCES", (wrapped(text, "  ") for text in plan["consequences"])),
    ):
        told = list(found)
        lines += [title, *told] if told else []
    return "\n".join(lines)


def _servers(servers: Mapping[str, list[str]]) -> Iterator[str]:
    for sign, kind, note in (
        ("+", "added", ""),
        ("-", "removed", ""),
        ("~", "reconnected", ", connected anew"),
    ):
        for name in servers[kind]:
            yield wrapped(f"{sign} server {name}{note}", "  ")


def _settings(settings: list[Mapping[str, Any]]) -> Iterator[str]:
    for found in settings:
        before, after = _value(found["from"]), _value(found["to"])
        yield wrapped(f"~ {found['key']}: {before} -> {after}", "  ")


def _value(value: object) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json_module.dumps(value)
