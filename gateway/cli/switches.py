"""`triton-gateway disable` and `enable`: what refuses requests, off for a while in an emergency."""

from typing import Annotated, Any

import typer

from gateway.cli.ops_client import DEFAULT_URL, KeyFile, OpsUrl, command_or_fail, connect
from gateway.cli.refusal import refuse
from gateway.cli.text import plain
from gateway.switches import Feature, check_reason, parse_duration

What = Annotated[Feature, typer.Argument(metavar="FEATURE", show_default=False)]
For = Annotated[
    str,
    typer.Option("--for", metavar="TIME", help="As in 90s, 30m, 1h30m; at most 24h."),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="For the audit.")]


def disable(
    feature: What,
    duration: For,
    reason: Reason = "",
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Switch off for a while, in an emergency, what refuses requests.

    At once here, within seconds on every gateway that shares the same Redis,
    over restarts, and only for the time given. Without a Redis, or while it
    is down, on this host only.

    limits: rate limits refuse nothing and count, as with `mode: observe`.

    admission: the gateway's queues and caps refuse nothing.

    auth: callers are only observed, as with `auth.mode: observe`, so that
    EVERYBODY MAY USE EVERY MODEL. Still shut are loading and unloading models,
    trace and log settings (scope `admin`), what `api.restricted` protects,
    the ops listener (its key), and TLS that asks for client certificates.
    """
    try:
        parse_duration(duration)
    except ValueError as error:
        refuse(f"--for: {error}")
    try:
        check_reason(reason)
    except ValueError as error:
        refuse(f"--reason: {error}")
    client = connect(ops, key_file)
    done = command_or_fail(
        client, "features", feature, "disable", duration=duration, reason=reason or None
    )
    typer.echo(f"{feature}: off until {plain(done['until'])}, {_where(done)}")


def enable(feature: What, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Switch on again what `disable` has switched off, before its time is over."""
    done = command_or_fail(connect(ops, key_file), "features", feature, "enable")
    if done["changed"]:
        typer.echo(f"{feature}: on again, {_where(done)}")
    else:
        typer.echo(f"{feature}: was not switched off")


def _where(done: dict[str, Any]) -> str:
    return "on every gateway of the fleet" if done["reach"] == "fleet" else "on this host"
