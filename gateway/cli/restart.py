"""`triton-gateway restart`: replace the worker processes of a running gateway, one by one."""

import time
from collections.abc import Callable
from typing import Any

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
from gateway.cli.refusal import fail

POLL_INTERVAL_S = 0.5


def restart(ops: OpsUrl = DEFAULT_URL, key_file: KeyFile = None) -> None:
    """Replace the workers one after the other by new processes; no request is lost.

    New processes run the program as it is installed now. One that does not become ready ends the
    restart, and the process it was to replace stays. Exit 1 then.
    """
    client = connect(ops, key_file)
    command_or_fail(client, "restart")
    roll = _watch(client, sleep=time.sleep)
    if roll["failed"] is not None:
        fail(f"{roll['done']} of {roll['of']} workers replaced: {roll['failed']}")


def _watch(client: OpsClient, *, sleep: Callable[[float], None]) -> dict[str, Any]:
    """Tell of every worker that is replaced, until the restart has ended."""
    told = 0
    while True:
        roll: dict[str, Any] = ask_or_fail(client, "workers")["restart"]
        if roll["done"] > told:
            told = roll["done"]
            typer.echo(f"{told} of {roll['of']} workers replaced")
        if not roll["running"]:
            return roll
        sleep(POLL_INTERVAL_S)
