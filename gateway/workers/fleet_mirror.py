"""The fleet as one worker knows it: a table of its own, fed by what the supervisor observes.

The worker's roster gives it the servers whose connections it looks after; what the table and the
book note of them comes from the supervisor alone.

What requests run into changes this worker's table at once and is reported. The supervisor then
looks for itself: a worker with troubles of its own must not take a server from the others. Built by
wiring.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

from gateway.ports import Clock
from gateway.tasks import spawn, stop
from gateway.upstream.describe import ModelBook
from gateway.upstream.findings import Target
from gateway.upstream.keeper import ChannelKeeper, Kept
from gateway.upstream.prober import Assignment
from gateway.upstream.transport import Upstream
from gateway.workers.messages import Broken, Exiting, FleetCall, NotReady, Unreachable
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion
from routing.types import Server


class Replicated:
    """Stands where a roster notes servers; the supervisor's roster has noted them already."""

    def add(self, server: Server, *, now_s: float) -> None:
        """Do nothing."""

    def update(self, server: Server, *, now_s: float) -> None:
        """Do nothing."""

    def leave(self, name: str, *, now_s: float) -> None:
        """Do nothing."""

    def remove(self, name: str, *, now_s: float) -> None:
        """Do nothing."""

    def forget(self, server: str) -> None:
        """Do nothing."""


class FleetMirror:
    """See `gateway.ports.Fleet` and `gateway.lifecycle.Watcher`.

    `tell` sends a message to the supervisor.
    """

    def __init__(
        self,
        table: FleetTable,
        book: ModelBook,
        keeper: ChannelKeeper,
        *,
        tell: Callable[[object], None],
        clock: Clock,
    ) -> None:
        self._table = table
        self._book = book
        self._keeper = keeper
        self._tell = tell
        self._clock = clock
        self._known = asyncio.Event()
        self._watched: dict[str, Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.running = False

    @property
    def snapshot(self) -> FleetSnapshot:
        """The current picture."""
        return self._table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        """Take a server out that a request could not reach."""
        self._take_out(server, reason, Unreachable(server, reason))
        self._keeper.wake()

    def exiting(self, server: str, reason: str) -> None:
        """Take a server out that told a request it is going down."""
        self._take_out(server, reason, Exiting(server, reason))

    def broken(self, server: str) -> None:
        """Have the supervisor look whether the server is still there; nothing is known yet."""
        self._tell(Broken(server))

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        """Take one version on one server out until a later poll lists it again."""
        if server in self.snapshot.servers:
            self._table.suspect(server, key, reason, now_s=self._clock())
        self._tell(NotReady(server, key, reason))

    def changing(self, server: str, model: str) -> AbstractAsyncContextManager[None]:
        """Do nothing: commands are carried out by the supervisor."""
        return nullcontext()

    def apply(self, call: FleetCall) -> None:
        """Take over what the supervisor observed."""
        target = self._book if call.of_book else self._table
        getattr(target, call.method)(*call.arguments, **call.named)
        if call.method not in ("server_up", "server_down"):
            return
        kept = self._watched.get(call.arguments[0])
        if kept is None:  # it is leaving, and nothing is under way there
            return
        if call.method == "server_up":
            kept.upstream.learn_version(call.named["triton_version"])
        else:
            self._give_up_lost(kept.upstream)
            self._keeper.wake()

    def states(self, server: str) -> Sequence[Mapping[str, Any]]:
        """Return the state of every channel to the server; see `gateway.ports.Channels`."""
        return self._watched[server].upstream.pool.states()

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return nothing: servers are examined by the supervisor."""
        return ()

    def add(self, upstream: Upstream, watched: Kept, _: Target | None = None, /) -> None:
        """Look after the connections to one more server."""
        self._watched[upstream.name] = watched
        row = self.snapshot.servers.get(upstream.name)
        if row is not None:
            upstream.learn_version(row.triton_version)
        self._keeper.add(watched)

    def expect(self, server: str, target: Target) -> None:
        """Do nothing: a server that is taken over comes with `take_over`."""

    def remove(self, server: str) -> None:
        """Forget a server. Its connections are closed when the calls on them have ended."""
        kept = self._watched.pop(server, None)
        if kept is not None:  # otherwise it was only expected
            self._keeper.remove(server)
            kept.upstream.let_go()

    def background(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run work that ends with this at the latest."""
        task = spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(self) -> None:
        """Connect to every server that is up."""
        await self._keeper.connect()

    def start(self) -> None:
        """Start to look after the connections."""
        self.running = True
        self._keeper.start()

    async def stop(self) -> None:
        """Look after nothing any more. The connections stay open."""
        self.running = False
        await stop(*self._tasks)
        await self._keeper.stop()

    def start_diagnosis(self) -> None:
        """Do nothing: servers are examined by the supervisor."""

    def take_over(self, before: Self, kept: Mapping[str, Assignment], *, now_s: float) -> None:
        """Go on from `before`: the table and the book have come with what was known."""
        for name, assignment in kept.items():
            watched = replace(before._watched[name], last_reply_s=assignment.last_reply_s)
            self.add(watched.upstream, watched)
        if before._known.is_set():
            self._known.set()

    def first_pass_over(self) -> None:
        """Note that the supervisor has probed every server once."""
        self._known.set()

    async def first_pass(self) -> None:
        """Wait until it has."""
        await self._known.wait()

    def _take_out(self, server: str, reason: str, report: object) -> None:
        row = self.snapshot.servers.get(server)
        if row is not None and row.up:
            self._table.server_down(server, reason, now_s=self._clock())
            self._tell(report)

    def _give_up_lost(self, upstream: Upstream) -> None:
        for channel in upstream.pool.channels:
            if channel.state() != "ready":  # calls on a living connection still end by themselves
                upstream.give_up_detached(channel)
