"""The load of servers and of models on them, as this gateway causes and feels it.

Changed only by `routing.pool` and its leases; read by the balancing policies and the fleet view.
With a table in shared memory, what is under way is counted over all worker processes of the host.
"""

import math
from array import array
from collections.abc import Callable, Iterable

from routing.admission.limits import ModelLimits
from routing.shared import HostTable
from routing.types import Blame, Server

LATENCY_DECAY_S = 10.0
PHANTOM_S = 1.0
FAILED_LATENCY_S = 1.0
SLOW_START_FLOOR = 0.1


class ServerLoad:
    """Everything of this worker that is under way on one server.

    `place` is its index in the `Roster`; `slot` the server's in `table`, None as long as it has
    none.
    """

    __slots__ = (
        "calls",
        "detached",
        "name",
        "place",
        "replied_s",
        "rows",
        "server",
        "slot",
        "table",
    )

    def __init__(self, server: Server, place: int = 0, table: HostTable | None = None) -> None:
        self.server = server
        self.name = server.name
        self.place = place
        self.calls = 0
        self.rows = 0
        self.detached = 0
        self.replied_s = -math.inf
        self.table = table
        self.slot: int | None = None

    def __repr__(self) -> str:
        return (
            f"ServerLoad({self.name}: {self.calls} calls, {self.rows} rows, "
            f"{self.detached} detached)"
        )

    @property
    def last_reply_s(self) -> float:
        """When it last answered a request of any worker; minus infinity for never."""
        if self.table is None or self.slot is None:
            return self.replied_s
        return self.table.replies.latest(self.slot) or -math.inf

    def replied(self, now_s: float) -> None:
        """Note that it answered a request."""
        self.replied_s = now_s
        if self.slot is not None:
            self.tell()

    @property
    def host_detached(self) -> int:
        """The detached calls of all workers."""
        if self.table is None or self.slot is None:
            return self.detached
        return self.table.detached.total(self.slot)

    def assign(self, slot: int | None) -> None:
        """Move to another slot of the table, or to none."""
        if self.table is not None and self.slot not in (None, slot):
            self.table.detached.put(self.slot, 0)
            self.table.replies.put(self.slot, 0.0)
        self.slot = slot
        self.tell()

    def tell(self) -> None:
        """Write what this worker knows into the table."""
        if self.table is not None and self.slot is not None:
            self.table.detached.put(self.slot, self.detached)
            self.table.replies.put(self.slot, max(self.replied_s, 0.0))


class Roster:
    """All servers in the order of their places, and their capacities for most models.

    One for all models, so that it stays in the processor's cache however many models there are.
    """

    __slots__ = ("_places", "_retired", "capacity", "servers")

    def __init__(self) -> None:
        self._places: tuple[int, ...] = ()
        self.servers: list[ServerLoad] = []
        self.capacity: list[float] = []
        self._retired: list[int] = []

    def add(self, server: Server, table: HostTable | None = None) -> ServerLoad:
        """Give a server a place: one of a retired server whose last call has ended, or a new one.

        Every model has to `fit` again, and to `renew` the place.
        """
        free = next((place for place in self._retired if not self.servers[place].calls), None)
        if free is None:
            load = ServerLoad(server, len(self.servers), table)
            self.servers.append(load)
            self.capacity.append(server.capacity)
            return load
        self._retired.remove(free)
        self.servers[free] = ServerLoad(server, free, table)
        self.capacity[free] = server.capacity
        return self.servers[free]

    def update(self, load: ServerLoad, server: Server) -> None:
        """Take over what is configured differently now. Every model has to `fit` again."""
        load.server = server
        self.capacity[load.place] = server.capacity

    def retire(self, load: ServerLoad) -> None:
        """Let a server go. It keeps its place until its last call has ended."""
        self._retired.append(load.place)

    def shared(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tuple that another model on the same servers has, if there was one lately."""
        if places != self._places:
            self._places = places
        return self._places


class ModelLoads:
    """One model on all servers: rows in flight, felt latency, recent failures, by place.

    Numbers side by side instead of an object for each server: a request touches few of them, and
    thousands fit into the processor's cache. A failure counts as work for about a second and as a
    slow answer: a server that fails fast must not look attractive. `on_room` are called when a
    place is given back; `own_share` is this worker's part of a limit.
    """

    __slots__ = (
        "_felt",
        "_phantom",
        "_slots",
        "capacity",
        "limits",
        "model",
        "on_room",
        "own_share",
        "roster",
        "rows",
        "servers",
        "table",
    )

    def __init__(
        self,
        model: str,
        roster: Roster,
        table: HostTable | None = None,
        *,
        limit: int | None = None,
        own_share: float = 1.0,
    ) -> None:
        self.model = model
        self.table = table
        self.limits = ModelLimits(limit)
        self.on_room: tuple[Callable[[], None], ...] = ()
        self.own_share = own_share
        self.servers = roster.servers
        self.capacity = roster.capacity
        self.rows = array("i")
        self.roster = roster
        self._felt = array("d")  # average latency (-1 for unknown), and when it was felt
        self._phantom: dict[int, tuple[float, float]] = {}  # rows, and at which moment
        self._slots: dict[int, int] = {}
        self.fit()

    def fit(self) -> None:
        """Make room for all servers of the roster, and look up their capacities."""
        new = len(self.servers) - len(self.rows)
        self.rows.extend([0] * new)
        self._felt.extend([-1.0, -math.inf] * new)
        self.limits.fit(len(self.servers))
        every = [load.server for load in self.servers]
        own = [server.capacity_for(self.model) for server in every]
        self.capacity = self.roster.capacity if own == self.roster.capacity else own

    def renew(self, place: int) -> None:
        """Forget what was felt of the server that had this place before."""
        self._felt[2 * place], self._felt[2 * place + 1] = -1.0, -math.inf
        self._phantom.pop(place, None)
        self.limits.renew(place)

    def assign(self, place: int, slot: int | None) -> None:
        """Move the rows on a server to another slot of the table, or to none."""
        before = self._slots.pop(place, None)
        if self.table is not None and before not in (None, slot):
            self.table.rows.put(before, 0)
        if slot is not None:
            self._slots[place] = slot
        self.tell(place)

    def tell(self, place: int) -> None:
        """Write the rows of this worker into the table."""
        slot = self._slots.get(place)
        if self.table is not None and slot is not None:
            self.table.rows.put(slot, self.rows[place])

    def work(self, place: int, now_s: float) -> float:
        """Return rows in flight plus phantom rows for recent failures."""
        rows = self.rows[place] if self.table is None else self._host_rows(self.table, place)
        if self._phantom:
            return rows + self._phantom_now(place, now_s)
        return rows

    def has_room(self, place: int, share: float, *, less: int = 0) -> bool:
        """Whether fewer rows are in flight than `share` of the server's limit.

        `less` of them are not counted. The last request may go beyond the limit, so that one with
        many rows finds its place. Of several workers each may have its own part, whatever the
        others have: none of them waits for ever.
        """
        own, limit = self.rows[place] - less, self.limits.rows[place] * share
        slot = self._slots.get(place) if self.table is not None else None
        if self.table is None or slot is None:
            self.limits.use(place, own + 1)
            return own < limit * self.own_share
        rows = self.table.rows.total(slot) - less
        self.limits.use(place, rows + 1)
        return rows < limit or own < limit * self.own_share // 1

    def with_room(self, places: Iterable[int], share: float) -> list[int]:
        """Return those of `places` that have room; looked at together, as there may be many."""
        if self.table is not None:
            return [place for place in places if self.has_room(place, share)]
        rows, limits, share = self.rows, self.limits.rows, share * self.own_share
        return [place for place in places if rows[place] < limits[place] * share]

    def beyond(self, places: Iterable[int]) -> float:
        """Return how many rows are in flight there beyond all limits together."""
        limits, table = self.limits.rows, self.table
        if table is not None:
            return sum(self._host_rows(table, place) - limits[place] for place in places)
        rows = self.rows
        return sum(rows[place] - limits[place] for place in places)

    def latency_s(self, place: int, now_s: float) -> float | None:
        """Return the average latency, decaying while nothing is heard so that it is tried again."""
        average = self._felt[2 * place]
        if average < 0.0:
            return None
        return average * math.exp(-(now_s - self._felt[2 * place + 1]) / LATENCY_DECAY_S)

    def felt_s(self, place: int) -> float:
        """Return when the last outcome was felt; minus infinity for never."""
        return self._felt[2 * place + 1]

    def sample(self, place: int, latency_s: float, now_s: float) -> None:
        """Note a latency: above the average it replaces it, below it is mixed in."""
        felt, index = self._felt, 2 * place
        average = felt[index]
        if latency_s < average:
            keep = math.exp(-(now_s - felt[index + 1]) / LATENCY_DECAY_S)
            latency_s += (average - latency_s) * keep
        felt[index] = latency_s
        felt[index + 1] = now_s

    def fail(self, place: int, blame: Blame, latency_s: float, now_s: float) -> None:
        """Note a failure that speaks against this server."""
        self.hear(place, 1, now_s)
        if blame is not Blame.OVERLOAD:
            self.sample(place, max(latency_s, FAILED_LATENCY_S), now_s)

    def hear(self, place: int, failures: int, now_s: float) -> None:
        """Note failures in other workers, which count as work here, too."""
        self._phantom[place] = (self._phantom_now(place, now_s) + failures, now_s)

    def _host_rows(self, table: HostTable, place: int) -> int:
        slot = self._slots.get(place)
        return self.rows[place] if slot is None else table.rows.total(slot)

    def _phantom_now(self, place: int, now_s: float) -> float:
        rows, since_s = self._phantom.get(place, (0.0, now_s))
        left = rows * math.exp(-(now_s - since_s) / PHANTOM_S)
        if left < 0.01:
            self._phantom.pop(place, None)
            return 0.0
        return left


class Candidate:
    """One version on one server: a place among the model's loads, and a slow start."""

    __slots__ = ("_slow_since_s", "_slow_start_s", "load", "model", "place")

    def __init__(
        self, model: ModelLoads, load: ServerLoad, *, slow_start_s: float, slow_since_s: float
    ) -> None:
        self.model = model
        self.load = load
        self.place = load.place
        self._slow_start_s = slow_start_s
        self._slow_since_s = slow_since_s

    @property
    def name(self) -> str:
        """The server's name."""
        return self.load.name

    @property
    def server(self) -> Server:
        """The server."""
        return self.load.server

    @property
    def capacity(self) -> float:
        """The server's share of the model's work relative to the others'."""
        return self.model.capacity[self.place]

    def work(self, now_s: float) -> float:
        """Return the work of the model on this server, all versions together."""
        return self.model.work(self.place, now_s)

    def latency_s(self, now_s: float) -> float | None:
        """Return the felt latency of the model on this server."""
        return self.model.latency_s(self.place, now_s)

    def start_slowly(self, now_s: float) -> None:
        """Begin with a small share, growing to the full one."""
        self._slow_since_s = now_s

    def starting(self, now_s: float) -> bool:
        """Whether the share is still growing."""
        return now_s - self._slow_since_s < self._slow_start_s

    def with_slow_start(self, slow_start_s: float) -> "Candidate":
        """Return the same with another length of a slow start."""
        since_s = self._slow_since_s
        return Candidate(self.model, self.load, slow_start_s=slow_start_s, slow_since_s=since_s)

    @property
    def slow_until_s(self) -> float:
        """When the slow start is over."""
        return self._slow_since_s + self._slow_start_s

    def ramp(self, now_s: float) -> float:
        """Return how often it takes part in the choice: from a tenth up to always."""
        passed_s = now_s - self._slow_since_s
        if passed_s >= self._slow_start_s:
            return 1.0
        return max(SLOW_START_FLOOR, passed_s / self._slow_start_s)
