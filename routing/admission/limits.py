"""How many rows of a model a server is given at a time.

The limit follows how long requests wait inside the server before they run, as its statistics tell
(protocol: ModelStatistics), not how long they take: a batching model gets slower as its batches
grow, and is all the better for it. It grows by steps while the queue is short and the room is made
use of, and shrinks by shares when the queue is long or full (AIMD). Others may use the server, too:
their load is felt as queue, and the floor keeps this gateway going.

Used by `routing.pool`; the limits of one model are arrays by the server's place, as in
`routing.endpoint`.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

STEP_INTERVAL_S = 0.9
"""Less than the time between two statistics of a server, more than a second probe right behind."""
TOO_LONG = 0.9
FULL = 0.7
FULL_INTERVAL_S = 1.0
MAX_GROWTH = 8
MIN_TARGET_S = 0.005
_REQUESTS_AHEAD = 1.5
_MOST_OF_WORK = 0.5
"""The queue a server without batching should have: so many requests, which is enough to keep every
instance busy, and not more than this share of the time they run."""
_BATCHES_AHEAD = 1.5
"""The same with batching: one batch that is being filled while another one runs, and some more."""
_STEP = 1 / 8
"""Growth, as a share of what runs at a time, but at least a row."""
_MANY_AT_ONCE = 64
"""Where a decoupled model begins: such models often run many requests in one instance."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a server can have under way of one model, by the model's configuration.

    `instances` run at a time, each up to `max_batch` rows (0: it does not batch), for which it
    may wait `batch_delay_s`.
    """

    instances: int = 1
    max_batch: int = 0
    batch_delay_s: float = 0.0
    decoupled: bool = False

    @property
    def floor(self) -> int:
        """The rows that run at a time."""
        return self.instances * max(1, self.max_batch)

    @property
    def start(self) -> int:
        """The limit as long as nothing is known."""
        return max(2 * self.floor, _MANY_AT_ONCE if self.decoupled else 0)

    def target_s(self, compute_s: float) -> float:
        """Return how long requests that take `compute_s` may wait for their turn."""
        if self.max_batch > 1:
            share = _BATCHES_AHEAD
        else:
            share = min(_MOST_OF_WORK, _REQUESTS_AHEAD / self.instances)
        return max(2 * self.batch_delay_s, share * compute_s, MIN_TARGET_S)

    def __add__(self, other: "Shape") -> "Shape":
        """Return the shape of two versions of a model together."""
        return Shape(
            self.instances + other.instances,
            max(self.max_batch, other.max_batch),
            max(self.batch_delay_s, other.batch_delay_s),
            self.decoupled or other.decoupled,
        )


@dataclass(frozen=True, slots=True)
class Waits:
    """How a model did on a server lately, all versions together.

    `requests` were answered, after `queue_s` in its queue and `compute_s` of work on average.
    """

    shape: Shape
    requests: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0


WaitsNews = Mapping[str, Waits | None]
"""How some models of a server did lately, by name; None for those that are gone."""


class Room(NamedTuple):
    """The limit of a model on a server, and its rows in flight there."""

    limit: float
    in_flight: int


class FoundLimit:
    """The limit of one model on one server, in rows."""

    __slots__ = ("_full_s", "_stepped_s", "compute_s", "rows", "shape")  # fmt: skip

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows = float(shape.start)
        self.compute_s = 0.0
        self._full_s = self._stepped_s = -math.inf

    def observe(self, waits: Waits, *, used: int, now_s: float) -> bool:
        """Take statistics into account; `used` is how many rows there were at most since the last.

        Returns whether a step was due. Statistics without requests tell nothing.
        """
        if waits.shape != self.shape:
            self._fit(waits.shape)
        if now_s - self._stepped_s < STEP_INTERVAL_S:
            return False
        self._stepped_s = now_s
        if waits.requests <= 0:
            return True
        self.compute_s = waits.compute_s
        if waits.queue_s > self.shape.target_s(waits.compute_s):
            self.rows = max(self.shape.floor, self.rows * TOO_LONG)
        elif 2 * used >= self.rows:
            step = max(1.0, self.shape.floor * _STEP)
            self.rows = min(MAX_GROWTH * self.shape.start, self.rows + step)
        return True

    def full(self, now_s: float) -> None:
        """Note that the server refused a request because its queue is full, or took too long."""
        if now_s - self._full_s >= FULL_INTERVAL_S:
            self._full_s = now_s
            self.rows = max(self.shape.floor, self.rows * FULL)

    def _fit(self, shape: Shape) -> None:
        """Go on with another shape: what was found out counts in proportion."""
        self.rows = self.rows * shape.start / self.shape.start
        self.shape = shape


class ModelLimits:
    """The limits of one model, by place; infinite where nothing is known of the server.

    `fixed` is what the operator has laid down for every server, None to find it out.
    """

    __slots__ = ("_found", "_used", "fixed", "rows")

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.rows = array("d")
        self._used = array("i")
        self._found: dict[int, FoundLimit] = {}

    def fit(self, places: int) -> None:
        """Make room for so many places."""
        new = places - len(self.rows)
        self.rows.extend([self._rows_of(None)] * new)
        self._used.extend([0] * new)

    def fix(self, fixed: int | None) -> None:
        """Take over what is laid down now."""
        self.fixed = fixed
        for place in range(len(self.rows)):
            self.rows[place] = self._rows_of(self._found.get(place))

    def renew(self, place: int) -> None:
        """Forget the server that had this place before."""
        self._found.pop(place, None)
        self._used[place] = 0
        self.rows[place] = self._rows_of(None)

    def use(self, place: int, rows: int) -> None:
        """Note how many rows are in use."""
        self._used[place] = max(self._used[place], rows)

    def observe(self, place: int, waits: Waits, now_s: float) -> None:
        """Take a server's statistics into account."""
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = FoundLimit(waits.shape)
        if found.observe(waits, used=self._used[place], now_s=now_s):
            self._used[place] = 0
        self.rows[place] = self._rows_of(found)

    def full(self, place: int, now_s: float) -> None:
        """Note that a server was too full for a request."""
        found = self._found.get(place)
        if found is not None:
            found.full(now_s)
            self.rows[place] = self._rows_of(found)

    def knows(self, place: int) -> bool:
        """Whether anything is known of the model on the server."""
        return place in self._found

    def is_at_start(self, place: int) -> bool:
        """Whether nothing was found out of the server's limit."""
        found = self._found.get(place)
        return found is None or self.fixed is not None or found.rows == found.shape.start

    def compute_s(self) -> float:
        """Return how long a request runs where it runs fastest, 0 while that is not known."""
        known = [found.compute_s for found in self._found.values() if found.compute_s > 0]
        return min(known, default=0.0)

    def _rows_of(self, found: FoundLimit | None) -> float:
        if self.fixed is not None:
            return float(self.fixed)
        return math.inf if found is None else found.rows
