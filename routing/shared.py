"""What the worker processes of one host know in common of the load: a table in shared memory.

Each worker balances on what all of them have under way, so that many workers choose like one.
A table has a row of cells for each *slot*, one cell for each worker, next to one another so that
the cells of one candidate are read together:

    rows      pair slots     batch rows in flight of a model on a server
    probes    pair slots     1 while the worker has a request under way as a probe, else 0
    detached  server slots   detached calls on a server
    contacts  server slots   1 while a probe of the server's own circuit is under way, else 0
    replies   server slots   monotonic seconds of the last answer to a request, 0 for never

- A worker writes its own column only, always the whole value, and reads all columns. There are no
  locks: cells are aligned, so a reader sees the old value or the new one.
- Slots are numbers given out by whoever starts the workers, and announced with `Pool.assign`; a
  pair is (server, model). A worker that has not heard of a pair's slot counts its own requests.
- A slot that is taken back is announced as None first. It may be given to another pair when every
  worker has taken note: each sets its cell to zero as it does.
- Whoever notices that a worker is gone calls `HostTable.clear` with its number, before another
  worker gets that number.

It is a view of memory made elsewhere (an anonymous or a file's mmap): all zero is a valid table.
The clock must be the same in all workers, as CLOCK_MONOTONIC is on one host.
"""

from collections.abc import Iterator
from dataclasses import dataclass

Pair = tuple[str, str | None]
"""A server and a model on it; None stands for the server as a whole."""

_COUNT_BYTES = 4
_TIME_BYTES = 8


@dataclass(frozen=True, slots=True)
class TableSize:
    """How many workers, (server, model) pairs and servers a table has room for."""

    workers: int
    pairs: int
    servers: int

    @property
    def size_bytes(self) -> int:
        """The size of the memory."""
        counts = 2 * self.pairs + 2 * self.servers
        return self.workers * (_COUNT_BYTES * counts + _TIME_BYTES * self.servers)


class Counts:
    """Whole numbers of at least 0, by slot and worker. `worker` is the one that writes."""

    __slots__ = ("_cells", "_worker", "_workers")

    def __init__(self, memory: memoryview, *, workers: int, worker: int) -> None:
        self._cells = memory.cast("i")
        self._workers = workers
        self._worker = worker

    def put(self, slot: int, value: int) -> None:
        """Set this worker's cell."""
        self._cells[slot * self._workers + self._worker] = value

    def total(self, slot: int) -> int:
        """Return the sum over all workers."""
        begin = slot * self._workers
        return sum(self._cells[begin : begin + self._workers])

    def claim(self, slot: int) -> bool:
        """Set this worker's cell to 1 if those of all others are 0; return whether it is 1.

        Two that try at the same moment see one another and may both fail, never both succeed.
        """
        self.put(slot, 1)
        if self.total(slot) == 1:
            return True
        self.put(slot, 0)
        return False

    def image(self) -> bytes:
        """Return a copy of all cells, to see later whether any has changed."""
        return self._cells.tobytes()

    def clear(self, worker: int) -> None:
        """Set all cells of one worker to 0."""
        for cell in range(worker, len(self._cells), self._workers):
            self._cells[cell] = 0

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()


class Times:
    """Moments in monotonic seconds, by slot and worker; 0 for never."""

    __slots__ = ("_cells", "_worker", "_workers")

    def __init__(self, memory: memoryview, *, workers: int, worker: int) -> None:
        self._cells = memory.cast("d")
        self._workers = workers
        self._worker = worker

    def put(self, slot: int, at_s: float) -> None:
        """Set this worker's cell."""
        self._cells[slot * self._workers + self._worker] = at_s

    def latest(self, slot: int) -> float:
        """Return the latest of all workers'."""
        begin = slot * self._workers
        return max(self._cells[begin : begin + self._workers])

    def clear(self, worker: int) -> None:
        """Set all cells of one worker to 0."""
        for cell in range(worker, len(self._cells), self._workers):
            self._cells[cell] = 0.0

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()


class HostTable:
    """The table over a writable `buffer` of `size.size_bytes`, aligned to 8 bytes.

    `worker` is the number of the one that writes, from 0 to `size.workers` - 1. Whoever only
    clears columns may pass any.
    """

    def __init__(self, buffer: object, size: TableSize, *, worker: int) -> None:
        self._memory = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        self.worker = worker
        parts = self._parts(size)
        self.replies = Times(next(parts), workers=size.workers, worker=worker)
        self.rows, self.probes, self.detached, self.contacts = (
            Counts(part, workers=size.workers, worker=worker) for part in parts
        )

    def _parts(self, size: TableSize) -> Iterator[memoryview]:
        times = size.servers * _TIME_BYTES  # first, since their alignment is the larger one
        pairs, servers = size.pairs * _COUNT_BYTES, size.servers * _COUNT_BYTES
        begin = 0
        for bytes_a_worker in (times, pairs, pairs, servers, servers):
            end = begin + bytes_a_worker * size.workers
            yield self._memory[begin:end]
            begin = end

    def clear(self, worker: int) -> None:
        """Forget a worker that is gone: its requests have ended with it."""
        for part in (self.replies, self.rows, self.probes, self.detached, self.contacts):
            part.clear(worker)

    def close(self) -> None:
        """Let go of the memory, which can then be unmapped."""
        for part in (self.replies, self.rows, self.probes, self.detached, self.contacts):
            part.close()
        self._memory.release()
