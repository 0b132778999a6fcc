"""Starting a worker process, and noticing its end.

Started by exec and never by fork alone, which a running event loop does not survive. The child
inherits the listening sockets, one end of its link and the shared memory, nothing else. Linux only.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STATM_RESIDENT = 1  # proc(5)
_HANDLED_BY_THE_SUPERVISOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, and the supervisor's end of its link."""

    process: "subprocess.Popen[bytes]"
    link: socket.socket

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def resident_bytes(self) -> int:
        """Return the memory it occupies, 0 if it is gone."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[_STATM_RESIDENT]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def ended(self) -> int:
        """Wait for its end; return the exit code, or minus the signal that ended it."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        handle = os.pidfd_open(self.pid)
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return self.process.wait()


def start(sockets: Sequence[socket.socket], *, memory: int) -> Child:
    """Start a worker; it gets every slot's socket, in order, and what all workers count in."""
    ours, theirs = socket.socketpair()
    inherited = (theirs.fileno(), memory, *(each.fileno() for each in sockets))
    command = [
        *(sys.executable, *_safe_path(), "-m", "gateway", "worker"),
        *map(str, inherited),
    ]
    with theirs:
        # A worker ends by its link. A signal to the whole group must not end it before that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_BY_THE_SUPERVISOR)
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Child(process, ours)


def _safe_path() -> Sequence[str]:
    """Keep the current folder out of the import path, unless this process has it there too."""
    here = os.getcwd()
    return () if here in sys.path else ("-P",)
