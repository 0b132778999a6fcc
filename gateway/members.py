"""Which servers the fleet has, and the events by which it changes.

`Members` is told the servers of each source as a whole and works out what was added, changed and
removed; whoever keeps parts for servers applies these events in order. Events are plain values and
can be pickled. It refuses to know what a server is beyond its name and address, where sources get
their answers, and what is done with an event.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Described(Protocol):
    """A server as configured or discovered: equal values mean that nothing changed."""

    @property
    def name(self) -> str:
        """What it is called, unique in the fleet."""

    @property
    def grpc(self) -> str:
        """`host:port` of its gRPC port."""


S = TypeVar("S", bound=Described)


@dataclass(frozen=True, slots=True)
class ServerAdded(Generic[S]):
    """A server is to be taken in. Nothing is known of it yet."""

    source: str
    server: S


@dataclass(frozen=True, slots=True)
class ServerChanged(Generic[S]):
    """A server stays where it is and is to be treated differently: its share, zone, pool."""

    source: str
    server: S


@dataclass(frozen=True, slots=True)
class ServerRemoved:
    """A server is to get nothing new, and to be forgotten when its calls have ended."""

    name: str


Event = ServerAdded[S] | ServerChanged[S] | ServerRemoved
Sources = Mapping[str, Mapping[str, S]]
"""The servers of each source, by name."""


@dataclass(frozen=True, slots=True)
class Twice:
    """A server of `source` that is left out: another source has one of its name or address."""

    source: str
    name: str
    owner: str
    owner_source: str


class Members(Generic[S]):
    """The servers of all sources. `apply` is called with each event, in order.

    `same_connection` tells whether a changed server can keep its connections. Of servers with one
    name or address the one that is there already stays, otherwise that of the earlier source.
    """

    def __init__(
        self,
        apply: Callable[[Event[S]], None],
        *,
        same_connection: Callable[[S, S], bool],
    ) -> None:
        self._apply = apply
        self._same_connection = same_connection
        self._wanted: Sources[S] = {}
        self._current: dict[str, ServerAdded[S]] = {}
        self._twice: list[Twice] = []

    def set_source(self, source: str, servers: Iterable[S]) -> None:
        """Say which servers `source` has now; their names are unique within it."""
        before = self._current
        self.note({source: servers})
        for event in changes(before, self._current, self._same_connection):
            self._apply(event)

    def note(self, sources: Mapping[str, Iterable[S]]) -> None:
        """Say which servers these sources have now, without an event: the caller has seen to it."""
        self._wanted = self._with(sources)
        self._current, self._twice = self._without_doubles(self._wanted)

    def preview(self, sources: Mapping[str, Iterable[S]]) -> list[ServerAdded[S]]:
        """Return the servers there would be if these sources had these servers."""
        chosen, _ = self._without_doubles(self._with(sources))
        return list(chosen.values())

    def source_of(self, server: str) -> str | None:
        """Return the source a server comes from, None for one that is gone."""
        found = self._current.get(server)
        return found.source if found else None

    def sources(self) -> Collection[str]:
        """Return the sources that were heard of."""
        return self._wanted.keys()

    def of_source(self, source: str) -> Mapping[str, S]:
        """Return what `source` was last said to have, by name."""
        return self._wanted.get(source, {})

    def twice(self) -> Collection[Twice]:
        """Return the servers that are left out because they are there already."""
        return self._twice

    def replay(self) -> list[ServerAdded[S]]:
        """Return the events that bring somebody new up to date."""
        return list(self._current.values())

    def _with(self, sources: Mapping[str, Iterable[S]]) -> Sources[S]:
        said = {source: {s.name: s for s in servers} for source, servers in sources.items()}
        return {**self._wanted, **said}

    def _without_doubles(self, wanted: Sources[S]) -> tuple[dict[str, ServerAdded[S]], list[Twice]]:
        chosen: dict[str, ServerAdded[S]] = {}
        owners: dict[str, ServerAdded[S]] = {}  # by address
        twice: list[Twice] = []
        for source, server in self._by_precedence(wanted):
            owner = chosen.get(server.name) or owners.get(server.grpc)
            if owner is None:
                added = ServerAdded(source, server)
                chosen[server.name] = owners[server.grpc] = added
            else:
                twice.append(Twice(source, server.name, owner.server.name, owner.source))
        return chosen, twice

    def _by_precedence(self, wanted: Sources[S]) -> Iterator[tuple[str, S]]:
        everyone = [(source, server) for source in wanted for server in wanted[source].values()]
        yield from (item for item in everyone if self._is_there(*item))
        yield from (item for item in everyone if not self._is_there(*item))

    def _is_there(self, source: str, server: S) -> bool:
        return self.source_of(server.name) == source


def changes(
    before: Mapping[str, ServerAdded[S]],
    wanted: Mapping[str, ServerAdded[S]],
    same_connection: Callable[[S, S], bool],
) -> list[Event[S]]:
    """Return the events that lead from one set of servers, by name, to another one."""
    events: list[Event[S]] = []
    anew = []
    for name, known in before.items():
        now = wanted.get(name)
        if now is None:
            events.append(ServerRemoved(name))
        elif now == known:
            continue
        elif same_connection(known.server, now.server):
            events.append(ServerChanged(now.source, now.server))
        else:
            events.append(ServerRemoved(name))
            anew.append(now)
    return [*events, *anew, *(now for name, now in wanted.items() if name not in before)]
