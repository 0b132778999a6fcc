"""What a process of the gateway is set up with before it serves: loop, memory, logs, sockets."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.cli.refusal import refuse
from gateway.observe.logs import LibraryLogs, Logger

_GC_ALLOCATIONS = 20_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_BACKLOG = 1024
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """Return the faster event loop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 - optional: not built for every platform
    except ImportError:
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return factory


def keep_freed_memory() -> None:
    """Let the allocator keep up to 64 MiB that was freed.

    By default glibc gives the buffers of a large request back to the kernel, and takes the page
    faults for them again at the next request: a fifth of what a JSON image costs.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)


def spare_the_collector() -> None:
    """Take what was built at start out of garbage collection: it stays, and is large to search.

    Requests leave no reference cycles, so searching for them every 700 objects, the default, is
    mostly in vain.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_ALLOCATIONS, 20, 20)


def route_library_logs(logger: Callable[[], Logger]) -> None:
    """Have what libraries log end in the event log."""
    root = logging.getLogger()
    root.handlers[:] = [LibraryLogs(logger)]
    root.setLevel(logging.WARNING)


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def usable_cpus(limit: Path = _CPU_LIMIT) -> int:
    """Return how many processors this process may use, by affinity and by its container's limit."""
    cpus = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = limit.read_text().split()
        if quota != "max":
            cpus = min(cpus, math.ceil(int(quota) / int(period)))
    return cpus


def bind(section: str, host: str, port: int) -> socket.socket:
    """Return a listening socket, or refuse with the section and address it was for."""
    (sock,) = _bound(section, host, port, 1)
    return sock


def bind_slots(section: str, host: str, port: int, count: int) -> Sequence[socket.socket]:
    """Return listening sockets on one port, among which the kernel spreads connections.

    A port that another program has is refused as by `bind`.
    """
    if count == 1:
        return [bind(section, host, port)]
    if port:
        # Sockets that share a port would share it with those of another gateway, too.
        bind(section, host, port).close()
    return _bound(section, host, port, count)


def _bound(section: str, host: str, port: int, count: int) -> Sequence[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if count > 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        refuse(f"{section}.port: cannot listen on {host}:{port}: {error.strerror or error}")
    return sockets


def address(sock: socket.socket) -> str:
    """Return `host:port` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
