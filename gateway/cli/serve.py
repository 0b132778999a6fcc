"""`triton-gateway serve`: run the gateway until it is told to stop."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from config.models import Config
from gateway import __version__
from gateway.cli.refusal import load_or_refuse, refuse
from gateway.observe.logs import LibraryLogs, LineBuffer, Logger
from gateway.stores.state_file import DamagedState
from gateway.tasks import spawn, stop
from gateway.wiring import ConfigSource, build

ConfigPath = Annotated[
    Path,
    typer.Option("--config", "-c", help="A YAML file, or a folder of them.", show_default=False),
]


_GC_ALLOCATIONS = 20_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>

WhenReady = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs beside a gateway that has become ready; may set the event to stop it."""


def serve(config: ConfigPath) -> None:
    """Run the gateway. SIGTERM or Ctrl-C drains and stops it; a second one ends it at once."""
    source = ConfigSource(config, os.environ)
    loaded = load_or_refuse(source)
    api_socket = bind("api", loaded.api.host, loaded.api.port)
    ops_socket = bind("ops", loaded.ops.host, loaded.ops.port)
    left = run_gateway(loaded, api_socket, ops_socket, source=source)
    if left:
        # Going on to close the connections would cancel the calls that are left on servers.
        os._exit(0)


def run_gateway(
    config: Config,
    api: socket.socket,
    ops: socket.socket,
    *,
    source: ConfigSource | None = None,
    when_ready: WhenReady | None = None,
) -> int:
    """Run a gateway on bound sockets; return how many calls were left behind on servers.

    Without a `source` its configuration cannot be reloaded.
    """
    log = LineBuffer(sys.stderr.buffer)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(config, api, ops, log=log, source=source, when_ready=when_ready))
    finally:
        log.write_out()


async def _run(
    config: Config,
    api: socket.socket,
    ops: socket.socket,
    *,
    log: LineBuffer,
    source: ConfigSource | None,
    when_ready: WhenReady | None,
) -> int:
    stopping = asyncio.Event()
    _handle_signals(stopping, log)
    try:
        shell = build(config, os.environ, api_socket=api, ops_socket=ops, log=log, source=source)
    except DamagedState as error:
        refuse(str(error))
    _route_library_logs(shell.logger)
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, partial(shell.reloader.reload_soon, by="SIGHUP")
    )
    gateway = shell.gateway
    gateway.log(
        "starting",
        version=__version__,
        api=_address(api),
        ops=_address(ops),
        servers=len(config.servers),
        sources=len(config.discovery),
        hash=shell.cores.current.digest,
    )
    _spare_the_collector()
    _keep_freed_memory()
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


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop  # noqa: PLC0415 - optional: not built for every platform
    except ImportError:
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return factory


def bind(section: str, host: str, port: int) -> socket.socket:
    """Return a listening socket, or refuse with the section and address it was for."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
    except OSError as error:
        sock.close()
        refuse(f"{section}.port: cannot listen on {host}:{port}: {error.strerror or error}")
    sock.setblocking(False)
    return sock


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _handle_signals(stopping: asyncio.Event, log: LineBuffer) -> None:
    def signalled(number: int) -> None:
        if stopping.is_set():
            log.write_out()
            os._exit(128 + number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)


def _keep_freed_memory() -> None:
    """Let the allocator keep up to 64 MiB that was freed.

    By default glibc gives the buffers of a large request back to the kernel, and takes the page
    faults for them again at the next request: a fifth of what a JSON image costs.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


def _spare_the_collector() -> None:
    """Take what was built at start out of garbage collection: it stays, and is large to search.

    Requests leave no reference cycles, so searching for them every 700 objects, the default, is
    mostly in vain.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, 20, 20)


def _route_library_logs(logger: Callable[[], Logger]) -> None:
    root = logging.getLogger()
    root.handlers[:] = [LibraryLogs(logger)]
    root.setLevel(logging.WARNING)
