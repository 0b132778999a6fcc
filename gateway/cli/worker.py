"""`triton-gateway worker`: one worker process. The supervisor starts it; people do not."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.cli.refusal import fail
from gateway.cli.runtime import (
    die_with_parent,
    keep_freed_memory,
    loop_factory,
    route_library_logs,
    spare_the_collector,
)
from gateway.observe.logs import LineBuffer
from gateway.wiring import Cores, SupervisorGone, run_worker

_PIPE_BUF_BYTES = 4096
"""The longest write that does not mix with those of other processes on one pipe (pipe(7))."""


def worker(
    link: Annotated[int, typer.Argument(help="File descriptor of the link.")],
    memory: Annotated[int, typer.Argument(help="File descriptor of what workers count in.")],
    sockets: Annotated[list[int], typer.Argument(help="File descriptors to accept on.")],
) -> None:
    """Serve the API for the supervisor that started this process."""
    die_with_parent()
    log = LineBuffer(sys.stderr.buffer, at_once_bytes=_PIPE_BUF_BYTES)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            left = runner.run(_run(link, memory, sockets, log))
    except SupervisorGone:
        os._exit(1)
    except (OSError, ValueError) as error:
        fail(error)
    finally:
        log.write_out()
    if left:
        # Going on to close the connections would cancel the calls that are left on servers.
        os._exit(0)


async def _run(link: int, memory: int, sockets: Sequence[int], log: LineBuffer) -> int:
    def built(cores: Cores) -> None:
        route_library_logs(lambda: cores.current.logger)
        spare_the_collector()
        keep_freed_memory()

    return await run_worker(
        socket.socket(fileno=link),
        memory,
        [socket.socket(fileno=handle) for handle in sockets],
        os.environ,
        log=log,
        built=built,
    )
