"""Watches the whole fleet: one prober a server, one table, one current snapshot.

Servers come and go while it runs; `Roster` decides when.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from gateway.ports import Clock
from gateway.tasks import spawn, stop
from gateway.upstream.describe import ModelBook
from gateway.upstream.doctor import Doctor
from gateway.upstream.findings import Target
from gateway.upstream.prober import Assignment, ServerProber
from gateway.upstream.transport import Upstream
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion
from routing.priorities import Priorities


@dataclass(slots=True)
class _Watched:
    upstream: Upstream
    prober: ServerProber
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class FleetWatcher:
    """Runs the probers; see `gateway.ports.Fleet`, `FleetProbe` and `Channels` there."""

    def __init__(
        self,
        table: FleetTable,
        book: ModelBook,
        *,
        priorities: Priorities,
        log: Callable[..., Any],
        clock: Clock,
    ) -> None:
        self._table = table
        self._book = book
        self._clock = clock
        self._doctor = Doctor(table, book, priorities=priorities, log=log, clock=clock)
        self._watched: dict[str, _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._diagnosis: asyncio.Task[None] | None = None
        self.running = False

    @property
    def snapshot(self) -> FleetSnapshot:
        """The current picture."""
        return self._table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        """Take a server out that a request could not reach."""
        if server in self._watched:
            self._watched[server].prober.unreachable(reason)

    def exiting(self, server: str, reason: str) -> None:
        """Take a server out that told a request it is going down."""
        if server in self._watched:
            self._watched[server].prober.exiting(reason)

    def broken(self, server: str) -> None:
        """Look at once whether the server is still there; nothing is known yet."""
        if server in self._watched:
            self._watched[server].prober.wake()

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        """Take one version on one server out until a later poll lists it again."""
        if server in self._watched:
            self._table.suspect(server, key, reason, now_s=self._clock())
            self._watched[server].prober.wake()

    def changing(self, server: str, model: str) -> AbstractAsyncContextManager[None]:
        """Watch a server that is being changed; see `gateway.ports.FleetProbe`."""
        if server not in self._watched:  # it has just left
            return nullcontext()
        return self._watched[server].prober.changing(model)

    def states(self, server: str) -> Sequence[Mapping[str, Any]]:
        """Return the state of every channel to the server."""
        return self._watched[server].upstream.pool.states()

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return what is wrong with the servers, and how to mend it."""
        return self._doctor.findings()

    def add(self, upstream: Upstream, prober: ServerProber, target: Target, /) -> None:
        """Watch one more server; the table must know it."""
        watched = self._watched[upstream.name] = _Watched(upstream, prober)
        self._doctor.add(upstream.name, target)
        if self.running:
            self._probe(watched)

    def expect(self, server: str, target: Target) -> None:
        """Prepare to watch a server that will be taken over."""
        self._doctor.add(server, target)

    def remove(self, server: str) -> None:
        """Watch a server no more. Its connections are closed when the calls on them have ended."""
        self._doctor.forget(server)
        watched = self._watched.pop(server, None)
        if watched is None:  # it was only expected
            return
        for task in watched.tasks:
            task.cancel()
        watched.prober.retire()
        watched.upstream.let_go()

    def background(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run work that ends with the watcher at the latest."""
        task = spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self) -> None:
        """Start probing."""
        self.running = True
        for watched in self._watched.values():
            self._probe(watched)

    def start_diagnosis(self) -> None:
        """Start to examine the servers, each once it was probed."""
        self._diagnosis = self.background(self._examine(), name="diagnosis")

    def _probe(self, watched: _Watched) -> None:
        name, prober = watched.upstream.name, watched.prober
        watched.tasks = [
            spawn(prober.watch_presence(), name=f"presence of {name}"),
            spawn(prober.watch_index(), name=f"index of {name}"),
        ]

    async def first_pass(self) -> None:
        """Wait until every server was probed once, whatever came of it."""
        probers = [watched.prober for watched in self._watched.values()]
        await asyncio.gather(*(prober.passed_once.wait() for prober in probers))

    def take_over(
        self, before: "FleetWatcher", kept: Mapping[str, Assignment], *, now_s: float
    ) -> None:
        """Go on from `before` for the `kept` servers; their probers get these assignments.

        `before` stays usable for requests that began with it, but what it knows of these servers
        stands still.
        """
        self._table.take_over(before._table, kept, now_s=now_s)
        self._book.take_over(before._book, kept)
        self._doctor.take_over(before._doctor, kept)
        for name, assignment in kept.items():
            theirs = before._watched[name]
            theirs.prober.assignment = assignment
            self._watched[name] = _Watched(theirs.upstream, theirs.prober, theirs.tasks)
            theirs.tasks = []
        if before._diagnosis is not None:
            before._diagnosis.cancel()

    async def _examine(self) -> None:
        await self.first_pass()
        await self._doctor.watch()

    async def stop(self) -> None:
        """Stop probing. The connections stay open."""
        self.running = False
        tasks = [task for watched in self._watched.values() for task in watched.tasks]
        await stop(*self._tasks, *tasks)
