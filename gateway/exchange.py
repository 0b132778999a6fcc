"""The state of one request from its first byte to its settlement.

The edge creates an `Exchange`, the stages fill it in, and settle hands it to the observers, which
only read it. Nothing a client typed is in `model` or `version` before it has resolved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.faults import Fault, Kind
from gateway.places import Places
from routing.choices import Choices
from routing.classes import STANDARD, PriorityClass
from routing.limits import LimitState, Source
from routing.pool import Lease
from routing.priorities import Objection
from routing.sequences import Pin

ANONYMOUS = "anonymous"
"""The tenant of callers that nothing is known of."""
INFERENCE = frozenset({"infer", "generate", "generate_stream"})
"""The routes that run a model."""

STAGES = ("receive", "resolve", "decode", "admit", "pick", "send", "reply", "settle")


class Hedge(StrEnum):
    """What became of asking a second server. The values are used as metric labels."""

    WON = "won"  # the second server answered first
    LOST = "lost"  # the first one did after all
    UNANSWERED = "unanswered"  # neither did: both failed, or the caller left
    NO_SERVER = "no_server"  # there was no other to ask
    NO_ROOM = "no_room"  # every other had enough to do
    NO_BUDGET = "no_budget"


class Admitted(StrEnum):
    """What admission did with a request. The values are used as metric labels."""

    PASSED = "passed"  # a server had room
    QUEUED = "queued"  # it waited, and got its place
    REFUSED = "refused"  # the queue was full
    EVICTED = "evicted"  # it had to leave the queue for another request
    EXPIRED = "expired"  # it waited for too long, or for its deadline
    LEFT = "left"  # its caller went while it waited
    WOULD_QUEUE = "would_queue"  # not enforced: it was sent all the same
    WOULD_REFUSE = "would_refuse"  # not enforced: it was sent all the same


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a caller was refused, or (not `enforced`) would have been if it were not only observed.

    `tenant` is who it is counted for: "unknown" when that is not sure.
    """

    reason: str
    tenant: str
    enforced: bool


@dataclass(frozen=True, slots=True)
class Overreach:
    """What a request wanted of priority classes and did not get, or (not `enforced`) got after all.

    `asked` is what it asked for, in words; it may be of the client's making.
    """

    objection: Objection
    asked: str
    enforced: bool


@dataclass(slots=True)
class Exchange:
    """One request. Times are monotonic seconds of `clock`."""

    request_id: str
    caller: str
    route: str
    clock: Callable[[], float]
    started_s: float

    # Whose it is, and how important.
    tenant: str = ANONYMOUS
    tier: str = ""  # of the tenant; "" if it has none
    refusal: Refusal | None = None  # what speaks against the caller
    priority_class: PriorityClass = STANDARD
    classed: bool = False  # somebody has said anything about its class
    overreach: Overreach | None = None  # what it asked for in vain

    # What it asks for.
    path: str = ""  # without the query; goes into the log only
    alias: str = ""  # the route name it used, if that is one
    model: str = ""
    version: str = ""
    rows: int = 0  # of the batch; 0 before a server was chosen
    timeout_s: float | None = None  # what the client asked for
    deadline_s: float = float("inf")
    dropped_headers: tuple[str, ...] = ()  # that could not be passed on
    pin: Pin | None = None  # where the state of its sequence is: it goes there or nowhere, and once

    # What it holds under limits.
    limits: tuple[LimitState, ...] = ()  # what the enforced ones said
    limited_by: Source = Source.SHARED  # what decided on them
    places: Places | None = None  # under limits of concurrency

    # Its attempts.
    server: str = ""  # the one that answered, or the last one chosen
    attempts: int = 0
    unsure: int = 0  # attempts that failed and may have run
    tried: set[str] = field(default_factory=set)
    choices: list[tuple[Choices, str]] = field(default_factory=list)  # who could be, who was chosen
    retried: tuple[Kind, ...] = ()  # the fault that led to each further attempt
    hedges: tuple[Hedge, ...] = ()
    admission: Admitted | None = None  # what admission did, None if it was not asked
    queued_s: float = 0.0  # how long it waited for room on a server
    detached: tuple[Lease, ...] = ()  # places of calls left running

    # What became of it.
    events: int = 0  # answers of a stream so far
    first_event_s: float | None = None
    status: int = 0
    fault: Fault | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    spent_s: dict[str, float] = field(default_factory=dict)  # by stage
    ended_s: float = 0.0
    _stage: str = "receive"
    _stage_since_s: float = 0.0

    def __post_init__(self) -> None:
        """Start the clock of the first stage."""
        self._stage_since_s = self.started_s

    def enter(self, stage: str) -> None:
        """Go on to `stage`, booking the time since the last change on the stage before it."""
        now_s = self.clock()
        spent = self.spent_s
        spent[self._stage] = spent.get(self._stage, 0.0) + now_s - self._stage_since_s
        self._stage, self._stage_since_s = stage, now_s

    def chose(self, lease: Lease) -> None:
        """Note one more attempt, on the server of `lease`, and who else could have had it."""
        self.server = lease.server
        self.attempts += 1
        self.choices.append((lease.choices, lease.server))

    def until_ended(self, on_end: Callable[[], None]) -> Callable[[], None]:
        """Return what is to be called when a call has really ended: `on_end`, and its place."""
        return on_end if self.places is None else self.places.until(on_end)

    def count_event(self) -> None:
        """Note one more answer."""
        if self.first_event_s is None:
            self.first_event_s = self.clock()
        self.events += 1

    def remaining_s(self) -> float:
        """Seconds left until the deadline; negative once it has passed."""
        return self.deadline_s - self.clock()

    def end(self) -> None:
        """Book the last stage; the exchange is settled and must not change any more."""
        self.enter("settled")
        self.ended_s = self._stage_since_s

    @property
    def duration_s(self) -> float:
        """The whole time from the first byte to settlement."""
        return self.ended_s - self.started_s

    @property
    def own_time_s(self) -> float:
        """The gateway's own time so far: everything but waiting for the body and for a server."""
        spent = self.spent_s
        waited_s = spent.get("receive", 0.0) + spent.get("send", 0.0) + self.queued_s
        return sum(spent.values()) - waited_s

    @property
    def outcome(self) -> str:
        """What became of the request: `ok`, or the kind of the fault."""
        return self.fault.kind.value if self.fault else "ok"
