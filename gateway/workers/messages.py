"""What the supervisor and its workers tell each other, besides questions and answers.

Plain data, pickled by `link`. Both sides are always the same version of the program: a worker is
started by the supervisor's own interpreter and ends with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.members import ServerAdded
from gateway.observe.pages import Page
from gateway.upstream.describe import ModelBook
from routing.admission.limits import Room, WaitsNews
from routing.fleet import FleetTable, ModelVersion
from routing.health.breaker import Circuit
from routing.health.news import News
from routing.shared import Pair
from routing.steering import Steering

# --- the supervisor tells a worker


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: everything there is to know. `config` and `servers` are for wiring only.

    Later messages besides those below are the events by which the servers change, see
    `gateway.members`. `switched_off` is as in `SwitchedOff`. `known` says whether every server was
    probed once. `column` is the worker's own in the table all workers count in, `slots` are the
    rows there. `waits` has the shapes of each server's models.
    """

    config: Any
    slot: int
    generation: int
    servers: Sequence[ServerAdded[Any]]
    table: FleetTable
    book: ModelBook
    steering: Steering
    switched_off: Mapping[str, float]
    known: bool
    column: int
    slots: Mapping[Pair, int | None]
    waits: Mapping[str, WaitsNews]


@dataclass(frozen=True, slots=True)
class NewConfig:
    """Another configuration is in force; `table` and `book` go on from what was known."""

    config: Any
    servers: Sequence[ServerAdded[Any]]
    table: FleetTable
    book: ModelBook


@dataclass(frozen=True, slots=True)
class FleetCall:
    """One observation: a method of the fleet table, or of the model book, and its arguments."""

    of_book: bool
    method: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FleetKnown:
    """Every server was probed once."""


@dataclass(frozen=True, slots=True)
class Steer:
    """What operators have taken out by hand."""

    steering: Steering


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """The features operators have switched off, and until when, in the machine's monotonic seconds.

    A worker need not be told that a time is over.
    """

    until_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ResetBreakers:
    """Close the breakers that match; None matches all."""

    server: str | None
    model: str | None
    version: int | None


@dataclass(frozen=True, slots=True)
class AcceptFor:
    """Accept connections for these slots too: they have no worker of their own now."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Draining:
    """The host is going down: say so, and go on serving."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End what is under way, and then the process."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Another worker has taken over: accept nothing more, end what is under way, then end."""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Rows of the table all workers count in are given, or taken back (None)."""

    slots: Mapping[Pair, int | None]


@dataclass(frozen=True, slots=True)
class ServerWaits:
    """How models of a server did since the last time."""

    server: str
    news: WaitsNews


@dataclass(frozen=True, slots=True)
class BreakerNews:
    """What breakers of a worker learned; the supervisor passes it on to the others."""

    rows: Sequence[News]


# --- a worker tells the supervisor


@dataclass(frozen=True, slots=True)
class Ready:
    """It accepts connections."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot take up a configuration, the first or another; the reason is for operators."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No connection to a server could be made."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exiting:
    """A server says that it is going down."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A connection to a server broke."""

    server: str


@dataclass(frozen=True, slots=True)
class NotReady:
    """A server says it does not have this version ready."""

    server: str
    key: ModelVersion
    reason: str


@dataclass(frozen=True, slots=True)
class Load:
    """What one worker has under way on one server."""

    calls: int
    rows: int
    detached: int
    last_reply_s: float
    channels: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A breaker that is not closed; without a model it is the one of the server itself."""

    server: str
    key: ModelVersion | None
    circuit: Circuit

    @property
    def of(self) -> str:
        """What it is about, as `routing.pool.Pool.breakers` names it."""
        return "server" if self.key is None else f"{self.key.model}/{self.key.version}"

    def matches(self, reset: ResetBreakers) -> bool:
        """Whether a command closes it."""
        if reset.server not in (None, self.server):
            return False
        if self.key is None:
            return reset.model is None
        return reset.model in (None, self.key.model) and reset.version in (None, self.key.version)


@dataclass(frozen=True, slots=True)
class View:
    """A worker's part of what operators see."""

    requests: int
    loads: Mapping[str, Load]
    open: tuple[Open, ...]
    bad: tuple[ModelVersion, ...]
    sequences: Mapping[str, int]
    limits: Mapping[tuple[str, str], Room] = field(default_factory=dict)
    queued: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's metrics and view, told about once a second; a higher `number` is a later one."""

    number: int
    page: Page
    view: View


@dataclass(frozen=True, slots=True)
class Drained:
    """The last message of a worker: how many calls it leaves behind on servers."""

    left: int
