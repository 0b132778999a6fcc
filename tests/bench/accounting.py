"""What the kernel has counted for a process: processor time and memory, read from /proc."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the seconds of processor time `pid` and all below it have used, user and system.

    Children that have ended and were waited for are in it too. Exact to 10 ms on common kernels.
    """
    return sum(_stat(each).ticks for each in _tree(pid)) * TICK_S


def resident_bytes(pid: int) -> int:
    """Return the memory of one process that is in RAM (VmRSS), in bytes."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["VmRSS"].split()[0]) * 1024


class _Stat:
    """The fields of /proc/<pid>/stat that are used here; see proc(5)."""

    def __init__(self, text: str) -> None:
        fields = text.rpartition(")")[2].split()  # a command's name may contain anything
        self.parent = int(fields[1])
        self.ticks = sum(int(field) for field in fields[11:15])  # utime stime cutime cstime


def _stat(pid: int) -> _Stat:
    return _Stat((PROC / str(pid) / "stat").read_text())


def _tree(pid: int) -> Iterator[int]:
    parents = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            parents[int(folder.name)] = _stat(int(folder.name)).parent
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    found = [pid]
    for each in found:
        found.extend(child for child, parent in parents.items() if parent == each)
    yield from found
