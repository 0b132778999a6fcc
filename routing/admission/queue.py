"""Whose turn it is: the requests for one model that wait for room on a server.

By class, the most important first; within a class by turns between tenants (deficit round robin,
in rows), within a tenant by arrival. Where the important ones never pause, each lower class still
gets every so-manieth place. The queue is bounded, and lower classes are held back before it is
full; what has waited for too long goes. Versions of the model wait side by side, since they may be
on different servers. Synchronous; what is waiting is `item`, which nobody here looks at.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from routing.classes import PriorityClass

T = TypeVar("T")

EVERY = 20
"""A class that waits gets at least one of so many places, whatever waits in front of it."""
_RESERVED = 1 / EVERY
"""The share of the queue that each class may use although it is full."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How many requests of a model may wait, and how many of them of one tenant."""

    most: int
    most_a_tenant: int

    @property
    def reserved(self) -> int:
        """The requests of a class that may wait even when the queue is full."""
        return max(1, int(self.most * _RESERVED))


class Space:
    """Bytes that waiting requests may keep in memory, for all models together."""

    __slots__ = ("most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0


class Waiting(Generic[T]):
    """One request in the queue. After `until_s` it is too late for it."""

    __slots__ = ("item", "kind", "rows", "size_bytes", "tenant", "until_s", "version")

    def __init__(
        self,
        item: T,
        *,
        kind: PriorityClass,
        tenant: str,
        version: int,
        rows: int,
        until_s: float,
        size_bytes: int = 0,
    ) -> None:
        self.item = item
        self.kind = kind
        self.tenant = tenant
        self.version = version
        self.rows = rows
        self.until_s = until_s
        self.size_bytes = size_bytes


class _Flow(Generic[T]):
    """What one tenant has waiting of one version in one class, by arrival."""

    __slots__ = ("deficit", "entries", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.deficit = 0
        self.entries: deque[Waiting[T]] = deque()


class _Lane(Generic[T]):
    """One class: its flows in the order of their turns.

    `missed` places went to other classes while something waited here, since the last that did not.
    It outlasts what waits: requests that give up in turn must not begin anew each time.
    """

    def __init__(self, kind: PriorityClass) -> None:
        self.kind = kind
        self.flows: dict[tuple[str, int], _Flow[T]] = {}
        self.turns: deque[_Flow[T]] = deque()
        self.count = 0
        self.missed = 0

    def add(self, entry: Waiting[T]) -> None:
        key = (entry.tenant, entry.version)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = _Flow(entry.version)
            self.turns.append(flow)
        flow.entries.append(entry)
        self.count += 1

    def drop(self, entry: Waiting[T]) -> None:
        key = (entry.tenant, entry.version)
        flow = self.flows[key]
        flow.entries.remove(entry)
        self.count -= 1
        if not flow.entries:
            del self.flows[key]
            self.turns.remove(flow)

    def next(self, quantum: int, passed: set[int]) -> _Flow[T] | None:
        """Return the flow whose turn it is, leaving out those of the versions `passed`.

        No request has more rows than the quantum, so a second round always finds one.
        """
        turns = self.turns
        for _ in range(2 * len(turns)):
            flow = turns[0]
            if flow.version not in passed:
                if flow.deficit >= flow.entries[0].rows:
                    return flow
                flow.deficit += quantum
            turns.rotate(-1)
        return None

    def longest(self) -> _Flow[T]:
        return max(self.turns, key=lambda flow: len(flow.entries))


@dataclass(frozen=True, slots=True)
class Offered(Generic[T]):
    """Whether a request was taken into the queue, and which ones had to leave for it."""

    taken: bool
    evicted: tuple[Waiting[T], ...] = ()


class AdmissionQueue(Generic[T]):
    """The requests for one model. `space` is shared with other models."""

    def __init__(self, settings: QueueSettings, space: Space) -> None:
        self._settings = settings
        self._space = space
        self._lanes: dict[PriorityClass, _Lane[T]] = {}  # the most important first
        self._tenants: Counter[str] = Counter()
        self._quantum = 1
        self._ends: list[tuple[float, int, Waiting[T]]] = []
        self._numbers = itertools.count()
        self._there: set[Waiting[T]] = set()

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, entry: Waiting[T]) -> bool:
        return entry in self._there

    def by_class(self) -> Mapping[str, int]:
        """Return how many wait, by the name of their class."""
        return {kind.name: lane.count for kind, lane in self._lanes.items() if lane.count}

    def is_first(self, entry: Waiting[T]) -> bool:
        """Whether nothing that is as important waits for the same version."""
        return not any(
            flow.version == entry.version
            for lane in self._lanes.values()
            if lane.kind.rank <= entry.kind.rank
            for flow in lane.turns
        )

    def offer(self, entry: Waiting[T]) -> Offered[T]:
        """Take a request in, if there is room for it or another one is less entitled to it."""
        evicted: list[Waiting[T]] = []
        while (full := self._full_for(entry)) is not None:
            victim = full(entry)
            if victim is None:
                for each in reversed(evicted):  # in vain: they stay, at the end of their turns
                    self._add(each)
                return Offered(taken=False)
            self.remove(victim)
            evicted.append(victim)
        self._add(entry)
        return Offered(taken=True, evicted=tuple(evicted))

    def remove(self, entry: Waiting[T]) -> None:
        """Take a request out, if it is still there."""
        if entry not in self._there:
            return
        self._there.discard(entry)
        self._lanes[entry.kind].drop(entry)
        self._space.used -= entry.size_bytes
        self._tenants[entry.tenant] -= 1
        if not self._tenants[entry.tenant]:
            del self._tenants[entry.tenant]

    def late(self, now_s: float) -> Iterator[Waiting[T]]:
        """Take out and yield what has waited for too long."""
        while self._ends and self._ends[0][0] <= now_s:
            entry = heapq.heappop(self._ends)[2]
            if entry in self._there:
                self.remove(entry)
                yield entry

    def serve(self, take: Callable[[Waiting[T], float], bool]) -> Waiting[T] | None:
        """Take out and return the request whose turn it is, None if none can have its turn.

        `take` is asked for one after the other whether there is room for it, with the share of a
        server's limit that its class may fill.
        """
        full: dict[int, float] = {}  # versions without room, and for which share
        due = [lane for lane in self._lanes.values() if lane.count and lane.missed >= EVERY]
        for lane in sorted(due, key=lambda lane: -lane.missed):
            if (entry := self._serve(lane, 1.0, full, take)) is not None:
                return entry
        for lane in self._lanes.values():
            if (entry := self._serve(lane, lane.kind.ceiling, full, take)) is not None:
                return entry
        return None

    def passed(self, kind: PriorityClass) -> None:
        """Note that a request of a class got a place without waiting, or by its turn."""
        for lane in self._lanes.values():
            if lane.kind == kind:
                lane.missed = 0
            elif lane.count:
                lane.missed += 1

    def _serve(
        self,
        lane: _Lane[T],
        share: float,
        full: dict[int, float],
        take: Callable[[Waiting[T], float], bool],
    ) -> Waiting[T] | None:
        passed = {version for version, tried in full.items() if share <= tried}
        while (flow := lane.next(self._quantum, passed)) is not None:
            entry = flow.entries[0]
            if take(entry, share):
                flow.deficit -= entry.rows
                self.passed(entry.kind)
                self.remove(entry)
                return entry
            full[flow.version] = max(share, full.get(flow.version, 0.0))
            passed.add(flow.version)
        return None

    def _add(self, entry: Waiting[T]) -> None:
        if entry.kind not in self._lanes:
            self._lanes[entry.kind] = _Lane(entry.kind)
            order = sorted(self._lanes.items(), key=lambda item: item[0].rank)
            self._lanes = dict(order)
        self._lanes[entry.kind].add(entry)
        self._there.add(entry)
        self._space.used += entry.size_bytes
        self._tenants[entry.tenant] += 1
        self._quantum = max(self._quantum, entry.rows)
        if len(self._ends) > 2 * len(self._there) + 64:
            self._ends = [end for end in self._ends if end[2] in self._there]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (entry.until_s, next(self._numbers), entry))

    def _full_for(self, entry: Waiting[T]) -> Callable[[Waiting[T]], Waiting[T] | None] | None:
        """Return how to find who has to leave for a request, None if nobody has to."""
        if self._tenants[entry.tenant] >= self._settings.most_a_tenant:
            return self._less_important_of_tenant
        if self._space.used + entry.size_bytes > self._space.most:
            return self._less_entitled
        lane = self._lanes.get(entry.kind)
        if lane is None or lane.count < self._settings.reserved:
            return None
        if len(self._there) < self._settings.most * entry.kind.ceiling:
            return None
        return self._less_entitled

    def _less_important_of_tenant(self, entry: Waiting[T]) -> Waiting[T] | None:
        for lane in reversed(self._lanes.values()):
            if lane.kind.rank <= entry.kind.rank:
                break
            own = [each for flow in lane.turns for each in flow.entries]
            own = [each for each in own if each.tenant == entry.tenant]
            if own:
                return own[-1]
        return None

    def _less_entitled(self, entry: Waiting[T]) -> Waiting[T] | None:
        """Return the newest of the lowest class, or of a tenant that has more in the own class."""
        for lane in reversed(self._lanes.values()):
            if lane.kind.rank <= entry.kind.rank:
                break
            if lane.count > self._settings.reserved:
                return lane.longest().entries[-1]
        peers = self._lanes.get(entry.kind)
        if peers is None or not peers.count:
            return None
        longest = peers.longest()
        own = peers.flows.get((entry.tenant, entry.version))
        if len(longest.entries) > (len(own.entries) if own else 0) + 1:
            return longest.entries[-1]
        return None
