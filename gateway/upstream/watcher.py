"""Watches the whole fleet: one prober a server, one table, one current snapshot."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.ports import Clock
from gateway.tasks import spawn, stop
from gateway.upstream.describe import ModelBook
from gateway.upstream.doctor import Doctor
from gateway.upstream.findings import Target
from gateway.upstream.prober import Assignment, ServerProber
from gateway.upstream.transport import Upstream
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion


class FleetWatcher:
    """Runs the probers; see `gateway.ports.Fleet` and `gateway.ports.Channels`."""

    def __init__(
        self,
        table: FleetTable,
        upstreams: Mapping[str, Upstream],
        probers: Mapping[str, ServerProber],
        *,
        book: ModelBook,
        targets: Mapping[str, Target],
        log: Callable[..., Any],
        clock: Clock,
    ) -> None:
        self._table = table
        self._upstreams = upstreams
        self._probers = dict(probers)
        self._book = book
        self._clock = clock
        self._doctor = Doctor(targets, lambda: self, log=log, clock=clock)
        self._tasks: dict[str, tuple[asyncio.Task[None], ...]] = {}
        self._diagnosis: list[asyncio.Task[None]] = []

    @property
    def snapshot(self) -> FleetSnapshot:
        """The current picture."""
        return self._table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        """Take a server out that a request could not reach."""
        self._probers[server].unreachable(reason)

    def broken(self, server: str) -> None:
        """Look at once whether the server is still there; nothing is known yet."""
        self._probers[server].wake()

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        """Take one version on one server out until a later poll lists it again."""
        self._table.suspect(server, key, reason, now_s=self._clock())
        self._probers[server].wake()

    def states(self, server: str) -> Sequence[Mapping[str, Any]]:
        """Return the state of every channel to the server."""
        channels = self._upstreams[server].pool.channels
        return [{"state": c.state(), "in_flight": c.in_flight} for c in channels]

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return what is wrong with the servers, and how to mend it."""
        return self._doctor.findings()

    def start(self) -> None:
        """Start probing."""
        for name, prober in self._probers.items():
            self._tasks[name] = (
                spawn(prober.watch_presence(), name=f"presence of {name}"),
                spawn(prober.watch_index(), name=f"index of {name}"),
            )

    def start_diagnosis(self) -> None:
        """Start to examine the servers, each once it was probed."""
        self._diagnosis.append(spawn(self._examine(), name="diagnosis"))

    def end_diagnosis(self) -> None:
        """Examine nothing any more."""
        for task in self._diagnosis:
            task.cancel()

    async def first_pass(self) -> None:
        """Wait until every server was probed once, whatever came of it."""
        await asyncio.gather(*(prober.passed_once.wait() for prober in self._probers.values()))

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
            prober = self._probers[name] = before._probers[name]
            prober.assignment = assignment
            self._tasks[name] = before._tasks.pop(name)
        before.end_diagnosis()

    async def _examine(self) -> None:
        await self.first_pass()
        await self._doctor.watch()

    async def stop(self) -> None:
        """Stop probing. The connections stay open."""
        await stop(*self._diagnosis, *(task for pair in self._tasks.values() for task in pair))
