"""`triton-gateway model load` and `unload`: change what servers hold, and watch it happen.

The gateway carries the command out to its end, whether or not somebody watches; here is only what
is said about it.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.ops_client import (
    DEFAULT_URL,
    KeyFile,
    OpsClient,
    OpsUrl,
    ask_or_fail,
    command_or_fail,
    connect,
)
from gateway.cli.refusal import fail, refuse
from gateway.cli.text import plain

POLL_INTERVAL_S = 0.5

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Servers = Annotated[
    list[str] | None,
    typer.Option("--server", help="A server, by name or pattern; may be repeated."),
]
Placement = Annotated[
    bool, typer.Option("--placement", help="The servers of models.NAME.placement.")
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--model-config", help="JSON file with a configuration to load it with."),
]
Dependents = Annotated[
    bool, typer.Option("--dependents", help="And the models that an ensemble is made of.")
]


def load(
    name: Name,
    *,
    server: Servers = None,
    placement: Placement = False,
    model_config: ModelConfig = None,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Load or reload a model, a few servers at a time; it stays served meanwhile.

    Exit 1 if a server could not. Ctrl-C stops watching, not the command.
    """
    parameters = {} if model_config is None else {"config": _text(model_config)}
    _carry_out(connect(ops, key_file), "load", name, _scope(server, placement), parameters)


def unload(
    name: Name,
    *,
    server: Servers = None,
    placement: Placement = False,
    dependents: Dependents = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Unload a model; requests it is working on still end.

    Exit 1 if a server could not. Ctrl-C stops watching, not the command.
    """
    parameters = {"unload_dependents": dependents}
    _carry_out(connect(ops, key_file), "unload", name, _scope(server, placement), parameters)


def _scope(servers: list[str] | None, placement: bool) -> list[str]:
    if bool(servers) == placement:
        refuse("say where: --server, once or more, or --placement alone")
    return servers or []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        refuse(f"--model-config: {path}: {reason}")


def _carry_out(
    client: OpsClient, command: str, name: str, servers: list[str], parameters: dict[str, Any]
) -> None:
    body = json.dumps({"parameters": parameters}).encode()
    begun = command_or_fail(client, "models", name, command, body=body, server=servers)
    try:
        ended = _watch(client, begun, sleep=time.sleep)
    except KeyboardInterrupt:
        fail(f"{name}: no longer watched; it goes on, see `triton-gateway fleet`")
    failed = sum(step["state"] == "failed" for step in ended["servers"])
    if failed:
        fail(f"{name}: failed to {command} on {failed} of {len(ended['servers'])} servers")
    typer.echo(f"{name}: {command}ed")


def _watch(
    client: OpsClient, operation: dict[str, Any], *, sleep: Callable[[float], None]
) -> dict[str, Any]:
    """Wait for the end of an operation, telling of every change; return it."""
    told: dict[str, str] = {}
    while True:
        for step in operation["servers"]:
            if step["state"] != told.get(step["server"], "waiting"):
                told[step["server"]] = step["state"]
                typer.echo(_step(step))
        if operation["state"] != "running":
            return operation
        sleep(POLL_INTERVAL_S)
        operation = ask_or_fail(client, "operations", operation["id"])


def _step(step: dict[str, str]) -> str:
    error = f": {plain(step['error'])}" if "error" in step else ""
    return f"{step['server']}: {step['state']} since {step['since']}{error}"
