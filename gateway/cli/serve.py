"""`triton-gateway serve`: run the gateway until it is told to stop."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from config.models import Config
from gateway import __version__
from gateway.cli.refusal import load_or_refuse, refuse
from gateway.cli.runtime import (
    address,
    bind,
    bind_slots,
    keep_freed_memory,
    loop_factory,
    route_library_logs,
    spare_the_collector,
    usable_cpus,
)
from gateway.observe.logs import LineBuffer
from gateway.stores.state_file import DamagedState
from gateway.tasks import spawn, stop
from gateway.wiring import ConfigSource, Shell, build, build_host

ConfigPath = Annotated[
    Path,
    typer.Option("--config", "-c", help="A YAML file, or a folder of them.", show_default=False),
]


WhenReady = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs beside a gateway that has become ready; may set the event to stop it."""


def serve(config: ConfigPath) -> None:
    """Run the gateway. SIGTERM or Ctrl-C drains and stops it; a second one ends it at once.

    With several workers SIGUSR2 replaces them one after the other.
    """
    source = ConfigSource(config, os.environ)
    loaded = load_or_refuse(source)
    workers = usable_cpus() if loaded.workers == "auto" else loaded.workers
    api_sockets = bind_slots("api", loaded.api.host, loaded.api.port, workers)
    ops_socket = bind("ops", loaded.ops.host, loaded.ops.port)
    left = run_gateway(loaded, api_sockets, ops_socket, source=source)
    if left:
        # Going on to close the connections would cancel the calls that are left on servers.
        os._exit(0)


def run_gateway(
    config: Config,
    api: Sequence[socket.socket],
    ops: socket.socket,
    *,
    source: ConfigSource | None = None,
    when_ready: WhenReady | None = None,
) -> int:
    """Run a gateway with a worker for each of the API's bound sockets; with one do it all here.

    Returns how many calls were left behind on servers. Without a `source` its configuration cannot
    be reloaded.
    """
    log = LineBuffer(sys.stderr.buffer)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(config, api, ops, log=log, source=source, when_ready=when_ready))
    finally:
        log.write_out()


async def _run(
    config: Config,
    api: Sequence[socket.socket],
    ops: socket.socket,
    *,
    log: LineBuffer,
    source: ConfigSource | None,
    when_ready: WhenReady | None,
) -> int:
    stopping = asyncio.Event()
    try:
        shell = _build(config, api, ops, log, source)
    except DamagedState as error:
        refuse(str(error))
    route_library_logs(shell.logger)
    _handle_signals(stopping, shell, log)
    gateway = shell.gateway
    gateway.log(
        "starting",
        version=__version__,
        api=address(api[0]),
        ops=address(ops),
        servers=len(config.servers),
        sources=len(config.discovery),
        workers=len(api),
        hash=shell.cores.current.digest,
    )
    spare_the_collector()
    keep_freed_memory()
    if when_ready is None:
        return await gateway.run(stopping)

    async def beside() -> None:
        await gateway.readiness.ready.wait()
        await when_ready(stopping)

    extra = spawn(beside(), name="beside the gateway")
    try:
        return await gateway.run(stopping)
    finally:
        await stop(extra)


def _build(
    config: Config,
    api: Sequence[socket.socket],
    ops: socket.socket,
    log: LineBuffer,
    source: ConfigSource | None,
) -> Shell:
    if len(api) > 1:
        return build_host(
            config, os.environ, api_sockets=api, ops_socket=ops, log=log, source=source
        )
    return build(config, os.environ, api_socket=api[0], ops_socket=ops, log=log, source=source)


def _handle_signals(stopping: asyncio.Event, shell: Shell, log: LineBuffer) -> None:
    def signalled(number: int) -> None:
        if stopping.is_set():
            log.write_out()
            os._exit(128 + number)
        stopping.set()

    def restart() -> None:
        try:
            shell.host.restart()
        except ValueError as error:
            shell.cores.warning("not restarted", reason=str(error))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    loop.add_signal_handler(signal.SIGHUP, partial(shell.reloader.reload_soon, by="SIGHUP"))
    loop.add_signal_handler(signal.SIGUSR2, restart)
