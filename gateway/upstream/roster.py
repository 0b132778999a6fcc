"""Takes servers into the running fleet and lets them go without costing a request.

A new server is unknown: it gets nothing before its prober has seen it and a model ready, and then
starts slowly. One that goes gets nothing new at once, and disappears with its connections and its
history when the calls on it have ended. Knows neither configuration nor where servers come from;
wiring gives it the functions that make parts, `gateway.members` the events.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

from gateway.members import Event, S, ServerAdded, ServerChanged, ServerRemoved, changes
from gateway.ports import Clock
from gateway.upstream.findings import Target
from gateway.upstream.transport import Upstream
from routing.pool import Pool
from routing.types import Server

_IDLE_CHECK_S = 0.1

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


class Rows(Protocol):
    """Where it is noted which servers there are; see `routing.fleet.FleetTable`."""

    def add(self, server: Server, *, now_s: float) -> None:
        """Take a server in."""

    def update(self, server: Server, *, now_s: float) -> None:
        """Take over what is configured differently now."""

    def leave(self, name: str, *, now_s: float) -> None:
        """Route nothing to a server any more."""

    def remove(self, name: str, *, now_s: float) -> None:
        """Forget a server."""


class Descriptions(Protocol):
    """Where servers' models are described; see `gateway.upstream.describe.ModelBook`."""

    def forget(self, server: str) -> None:
        """Forget a server."""


class Watching(Protocol[W_contra]):
    """What watches servers; see `gateway.upstream.watcher.FleetWatcher`."""

    @property
    def running(self) -> bool:
        """Whether it was started."""

    def add(self, upstream: Upstream, watched: W_contra, target: Target, /) -> None:
        """Watch one more server."""

    def expect(self, server: str, target: Target) -> None:
        """Prepare to watch a server that will be taken over."""

    def remove(self, server: str) -> None:
        """Watch a server no more, and close its connections."""

    def background(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run work that ends with the watch at the latest."""


@dataclass(frozen=True, slots=True)
class Factory(Generic[S, W]):
    """Makes the parts of one server: `watched` is what it is watched by, such as a prober.

    `same_connection` as in `gateway.members.Members`.
    """

    server: Callable[[S], Server]
    upstream: Callable[[S], Upstream]
    target: Callable[[S], Target]
    watched: Callable[[S, Upstream], W]
    same_connection: Callable[[S, S], bool]


class Roster(Generic[S, W]):
    """Applies the events of the fleet's membership to everything that keeps parts for servers.

    `upstreams` is shared with the transport. A server that goes is waited for at most `leave_max_s`
    seconds. `log` is called with an event and its fields.
    """

    def __init__(
        self,
        factory: Factory[S, W],
        *,
        table: Rows,
        pool: Pool,
        book: Descriptions,
        watcher: Watching[W],
        upstreams: MutableMapping[str, Upstream],
        leave_max_s: float,
        clock: Clock,
        log: Callable[..., Any],
    ) -> None:
        self._factory = factory
        self._table = table
        self._pool = pool
        self._book = book
        self._watcher = watcher
        self._upstreams = upstreams
        self._leave_max_s = leave_max_s
        self._clock = clock
        self._log = log
        self._there: dict[str, ServerAdded[S]] = {}
        self._leaving: dict[str, tuple[S, asyncio.Task[None]]] = {}

    def servers(self) -> list[S]:
        """Return the servers that are there to stay."""
        return [added.server for added in self._there.values()]

    def replay(self) -> list[ServerAdded[S]]:
        """Return the events that bring somebody new up to date."""
        return list(self._there.values())

    def has(self, name: str) -> bool:
        """Whether a server is there to stay."""
        return name in self._there

    def prepare(self, added: ServerAdded[S], upstream: Upstream) -> None:
        """Take in a server whose connections and prober will be taken over from another roster."""
        server, make = added.server, self._factory
        self._enter(added, upstream)
        self._watcher.expect(server.name, make.target(server))

    def drop(self, name: str) -> None:
        """Forget a server that was prepared and cannot be taken over: it has left meanwhile."""
        del self._there[name]
        self._forget(name)

    def catch_up(self, servers: Iterable[ServerAdded[S]]) -> None:
        """Have these servers from now on, and no others."""
        wanted = {added.server.name: added for added in servers}
        for event in changes(self._there, wanted, self._factory.same_connection):
            self.apply(event)

    def apply(self, event: Event[S]) -> None:
        """Carry out one event. Called in the event loop."""
        match event:
            case ServerAdded():
                self._add(event)
            case ServerChanged(source=source, server=server):
                self._renew(ServerAdded(source, server))
                self._log("server changed", server=server.name)
            case ServerRemoved(name=name):
                self._remove(name)
            case _:
                assert_never(event)

    def _add(self, added: ServerAdded[S]) -> None:
        server, make = added.server, self._factory
        if server.name in self._leaving:
            before, seeing_off = self._leaving.pop(server.name)
            seeing_off.cancel()
            if make.same_connection(before, server):
                self._renew(added)
                self._log("server stays", server=server.name, source=added.source)
                return
            self._forget(server.name)
        upstream = make.upstream(server)
        self._enter(added, upstream)
        self._watcher.add(upstream, make.watched(server, upstream), make.target(server))
        if self._watcher.running:
            self._log("server added", server=server.name, source=added.source)

    def _enter(self, added: ServerAdded[S], upstream: Upstream) -> None:
        routed = self._factory.server(added.server)
        self._there[routed.name], self._upstreams[routed.name] = added, upstream
        self._pool.add(routed)
        self._table.add(routed, now_s=self._clock())

    def _renew(self, added: ServerAdded[S]) -> None:
        routed = self._factory.server(added.server)
        self._there[routed.name] = added
        self._pool.update(routed)
        self._table.update(routed, now_s=self._clock())

    def _remove(self, name: str) -> None:
        server = self._there.pop(name).server
        self._table.leave(name, now_s=self._clock())
        self._log("server leaving", server=name, calls=self._pool.loads[name].calls)
        seeing_off = self._watcher.background(self._see_off(name), name=f"{name} leaves")
        self._leaving[name] = (server, seeing_off)

    async def _see_off(self, name: str) -> None:
        load = self._pool.loads[name]
        until_s = self._clock() + self._leave_max_s
        while load.calls and self._clock() < until_s:  # noqa: ASYNC110 - nobody waits for it
            await asyncio.sleep(_IDLE_CHECK_S)
        del self._leaving[name]
        self._log("server removed", server=name, calls_left=load.calls)
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._upstreams[name]
        self._watcher.remove(name)
        self._table.remove(name, now_s=self._clock())
        self._pool.remove(name)
        self._book.forget(name)
