"""`triton-gateway servers`, `model` and `breaker`: what operators do by hand on a running gateway.

Each command is carried out by the gateway, through its ops listener; here is only what is said
about it, and how long is waited.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.cli.ops_client import (
    DEFAULT_URL,
    KeyFile,
    OpsClient,
    OpsUrl,
    Server,
    Version,
    ask_or_fail,
    command_or_fail,
    connect,
)
from gateway.cli.refusal import fail, refuse
from gateway.wiring import CLOCK

POLL_INTERVAL_S = 0.5

servers_app = typer.Typer(help="Take servers out by hand and put them back.", no_args_is_help=True)
model_app = typer.Typer(
    help="Load and unload models, or keep them from being served.", no_args_is_help=True
)
breaker_app = typer.Typer(help="Give ejected servers another chance.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait.")
]


@servers_app.command()
def cordon(name: Name, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Send nothing new to a server; what is in flight there ends as usual."""
    done = command_or_fail(connect(ops, key_file), "servers", name, "cordon")
    typer.echo(f"{name}: {_again(done)}cordoned")


@servers_app.command()
def uncordon(name: Name, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Use a cordoned server again."""
    done = command_or_fail(connect(ops, key_file), "servers", name, "uncordon")
    typer.echo(f"{name}: in use again" if done["changed"] else f"{name}: was not cordoned")


@servers_app.command()
def drain(
    name: Name, timeout: Timeout = 300.0, ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None
) -> None:
    """Cordon a server and wait until no request or open sequence of this gateway is there.

    Exit 1 if that takes longer than --timeout; the server stays cordoned.
    """
    client = connect(ops, key_file)
    done = command_or_fail(client, "servers", name, "cordon")
    typer.echo(f"{name}: {_again(done)}cordoned")
    try:
        left = _wait_until_empty(client, name, timeout_s=timeout, clock=CLOCK, sleep=time.sleep)
    except KeyboardInterrupt:
        left = "interrupted"
    if left is not None:
        fail(
            f"{name}: {left}; it stays cordoned - drain it again to wait on, or"
            f" `triton-gateway servers uncordon {name}`"
        )
    typer.echo(f"{name}: drained")


@model_app.command()
def block(
    name: Name,
    version: Version = None,
    server: Server = None,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Stop serving a model, one version of it, or either on one server.

    Where no server is left, requests are answered 503.
    """
    client = connect(ops, key_file)
    done = command_or_fail(client, "models", name, "block", version=version, server=server)
    typer.echo(f"{_what(name, version, server)}: {_again(done)}blocked")


@model_app.command()
def unblock(
    name: Name,
    version: Version = None,
    server: Server = None,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Take back a block; --version and --server as they were given with it."""
    client = connect(ops, key_file)
    command_or_fail(client, "models", name, "unblock", version=version, server=server)
    typer.echo(f"{_what(name, version, server)}: no longer blocked")


@breaker_app.command()
def reset(
    *,
    server: Annotated[str | None, typer.Option(help="Those of one server.")] = None,
    model: Annotated[str | None, typer.Option(help="Those of one model.")] = None,
    version: Version = None,
    every: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Close breakers, so that the servers they left out are used again at once."""
    _check_scope(server, model, version, every=every)
    client = connect(ops, key_file)
    done = command_or_fail(client, "breakers", "reset", server=server, model=model, version=version)
    for closed in done["closed"]:
        typer.echo(f"{closed}: closed")
    if not done["closed"]:
        typer.echo("none of them was open")


def _check_scope(
    server: str | None, model: str | None, version: int | None, *, every: bool
) -> None:
    if version is not None and model is None:
        refuse("--version: needs --model")
    if every == (server is not None or model is not None):
        refuse("say which: --server, --model, both, or --all alone")


def _wait_until_empty(
    client: OpsClient,
    name: str,
    *,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str | None:
    """Wait, telling of every change; return what is still there when the time is up."""
    until_s = clock() + timeout_s
    told = ""
    while True:
        row = ask_or_fail(client, "servers", name)
        if not row["in_flight_calls"] and not row["open_sequences"]:
            return None
        said = _in_flight(row)
        if said != told:
            told = said
            typer.echo(f"{name}: {said}")
        if clock() >= until_s:
            return f"{said} after {timeout_s:g} s"
        sleep(min(POLL_INTERVAL_S, max(0.0, until_s - clock())))


def _in_flight(row: dict[str, Any]) -> str:
    calls, detached = row["in_flight_calls"], row["detached_calls"]
    nobody = f", {detached} of them with no caller left" if detached else ""
    sequences = row["open_sequences"]
    open_ones = f", {sequences} open sequence{'' if sequences == 1 else 's'}" if sequences else ""
    return f"{calls} call{'' if calls == 1 else 's'} in flight{nobody}{open_ones}"


def _again(done: dict[str, Any]) -> str:
    return "" if done["changed"] else "already "


def _what(name: str, version: int | None, server: str | None) -> str:
    of = "" if version is None else f" version {version}"
    on = "" if server is None else f" on {server}"
    return f"{name}{of}{on}"
