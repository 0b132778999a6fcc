"""The operators' commands, run in this process beside a gateway in the loop of the test."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from typer.testing import CliRunner

from gateway.cli import app


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


def run(*arguments: str, ops_port: int = 0, env: Mapping[str, str | None] | None = None) -> Done:
    """Run a command against the ops listener on a port of this machine."""
    where = {"TRITON_GATEWAY_OPS": f"http://127.0.0.1:{ops_port}" if ops_port else None}
    given = {"TRITON_GATEWAY_OPS_KEY": None, **where, **(env or {})}
    result = CliRunner().invoke(app, arguments, env=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


async def operate(
    *arguments: str, ops_port: int = 0, env: Mapping[str, str | None] | None = None
) -> Done:
    """Run a command beside the loop."""
    return await asyncio.to_thread(run, *arguments, ops_port=ops_port, env=env)
