"""The memory in which the workers of a host count together: who writes where in it.

The supervisor makes it. It gives each worker process a column of its own, so that a replacement and
its predecessor have different ones, and each server and each model on a server a slot. What is
counted there is the affair of `routing.shared`. Built by wiring.
"""

import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from gateway.ports import Clock
from routing.fleet import FleetSnapshot, ServerRow
from routing.shared import HostTable, Pair, TableSize

_PAIRS = 65_536
_SERVERS = 2_048
_REUSE_S = 60.0
"""A worker that has not heard in this time that a slot was taken back was ended before."""


def size_for(workers: int) -> TableSize:
    """Return the size of the table of so many workers and their replacements."""
    return TableSize(workers=2 * workers, pairs=_PAIRS, servers=_SERVERS)


def make_memory(size: TableSize) -> int:
    """Make memory that processes can share, all zero; return its file descriptor. Linux only."""
    handle = os.memfd_create("triton-gateway")
    os.ftruncate(handle, size.size_bytes)
    return handle


def table_in(memory: int, size: TableSize, *, column: int) -> HostTable:
    """Return the table in the memory of this file descriptor."""
    return HostTable(mmap.mmap(memory, size.size_bytes), size, worker=column)


class Columns:
    """Which worker process has which column of `table`, of so many. Processes are numbers."""

    def __init__(self, table: HostTable, count: int) -> None:
        self._table = table
        self._free = deque(range(count))
        self._of: dict[int, int] = {}

    def take(self, process: int) -> int:
        """Return a column for a new process; there must be a free one."""
        column = self._of[process] = self._free.popleft()
        return column

    def give_back(self, process: int) -> None:
        """Forget what a process that has ended had under way."""
        column = self._of.pop(process, None)
        if column is not None:  # otherwise it ended before it was told anything
            self._table.clear(column)
            self._free.append(column)


class _Numbers:
    """Numbers below `count`, each used again only some time after it was given back."""

    def __init__(self, count: int, clock: Clock) -> None:
        self._fresh: Iterator[int] = iter(range(count))
        self._back: deque[tuple[float, int]] = deque()
        self._clock = clock

    def take(self) -> int | None:
        if self._back and self._clock() - self._back[0][0] >= _REUSE_S:
            return self._back.popleft()[1]
        return next(self._fresh, None)

    def give_back(self, number: int) -> None:
        self._back.append((self._clock(), number))


class Slots:
    """The slots of the servers of the moment, and of the models on them.

    A server has its slots until it is gone. What finds no room goes without: then each worker
    counts for itself there.
    """

    def __init__(self, size: TableSize, *, clock: Clock) -> None:
        self._servers = _Numbers(size.servers, clock)
        self._pairs = _Numbers(size.pairs, clock)
        self._rows: Mapping[str, ServerRow] = {}
        self.given: dict[Pair, int | None] = {}

    def follow(self, snapshot: FleetSnapshot) -> Mapping[Pair, int | None]:
        """Return what is new for workers: slots that are given, and None for those taken back."""
        before, self._rows = self._rows, snapshot.servers
        gone = before.keys() - self._rows.keys()
        news: dict[Pair, int | None] = dict(self._take_back(gone)) if gone else {}
        for name, row in self._rows.items():
            if before.get(name) is not row:
                news |= self._give(name, {key.model for key in row.models})
        return news

    def _give(self, server: str, models: Iterable[str]) -> Iterable[tuple[Pair, int]]:
        wanted: list[Pair] = [(server, None), *((server, model) for model in models)]
        for pair in wanted:
            if pair not in self.given:
                slot = (self._servers if pair[1] is None else self._pairs).take()
                if slot is not None:
                    self.given[pair] = slot
                    yield pair, slot

    def _take_back(self, servers: Iterable[str]) -> Iterator[tuple[Pair, None]]:
        for pair in [pair for pair in self.given if pair[0] in servers]:
            slot = self.given.pop(pair)
            assert slot is not None
            (self._servers if pair[1] is None else self._pairs).give_back(slot)
            yield pair, None
