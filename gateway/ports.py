"""What the parts need of each other, as Protocols.

The siblings edge, upstream, ops and observe never import each other: pipeline and wiring give
each of them the others through these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gateway.codec.types import InferCall, InferReply
from gateway.exchange import Exchange
from gateway.faults import Fault
from gateway.operations import Order, Report
from routing.aliases import Aliases
from routing.fleet import FleetSnapshot, ModelVersion, VersionRoute
from routing.pool import Pool
from routing.quota import Answer, Ask
from routing.usage import Flush, Totals

Clock = Callable[[], float]
"""Monotonic seconds."""
LogEvent = Callable[..., Any]
"""Logs an event: its name, and what belongs to it by keyword."""


class UpstreamCall(Protocol):
    """One inference under way on one server."""

    @property
    def ended(self) -> bool:
        """Whether the call is over on the wire, whatever its outcome."""

    async def reply(self, timeout_s: float) -> InferReply:
        """Wait for the answer. May be called once.

        Raises TimeoutError after `timeout_s`, and Fault for everything the server or the
        connection reports. After a TimeoutError or a cancellation the call must be abandoned.
        """

    def abandon(self, on_end: Callable[[], None]) -> bool:
        """Stop waiting; `on_end` runs once when the call has really ended.

        Returns True when the call goes on running detached, since cancelling is not safe there,
        and False when it was cancelled on the server.
        """


class UpstreamStream(Protocol):
    """One inference under way on one server that may answer any number of times."""

    @property
    def ended(self) -> bool:
        """Whether the stream is over on the wire, whatever its outcome."""

    async def next(self, timeout_s: float) -> InferReply | Fault | None:
        """Wait for the next answer, or the model's error in place of one; None at the end.

        Nothing is read from the server but what is asked for here. Raises TimeoutError after
        `timeout_s`, and Fault when the server or the connection ends the stream. Unless it has
        ended, the stream must be abandoned.
        """

    def abandon(self, on_end: Callable[[], None]) -> bool:
        """Cancel the stream; `on_end` runs once when it has really ended. Returns False."""


class Transport(Protocol):
    """Sends inference calls to servers."""

    def start(self, server: str, call: InferCall, *, timeout_s: float) -> UpstreamCall:
        """Put the call on the wire to `server`. Never blocks."""

    def open_stream(self, server: str, call: InferCall) -> UpstreamStream:
        """Put the call on a stream of its own to `server`. Never blocks."""

    def cancels(self, server: str) -> bool:
        """Whether a call to `server` can be cancelled there without harm."""


class Descriptions(Protocol):
    """What the fleet's models look like, as their servers describe them."""

    def metadata(self, server: str, key: ModelVersion) -> Mapping[str, Any] | None:
        """Return the JSON object of Triton's model metadata, or None while it is not known."""

    def config(self, server: str, key: ModelVersion) -> bytes | None:
        """Return the JSON text of Triton's model configuration, or None while it is not known."""

    def extensions(self) -> Sequence[str]:
        """Return the protocol extensions every server of the fleet has."""

    def sequence_idle_s(self, server: str, key: ModelVersion) -> float | None:
        """Return how long the server keeps a silent sequence of this version.

        None while it is not known, and for models that are not scheduled by sequence.
        """


class StatisticsSource(Protocol):
    """Reads one server's statistics."""

    async def statistics(
        self, server: str, model: str, version: str, *, timeout_s: float
    ) -> list[dict[str, Any]]:
        """Return the `model_stats` rows of one model ("" = all) as JSON objects.

        Raises Fault.
        """


class Fleet(Protocol):
    """The picture requests are routed on, and where they report what they ran into."""

    @property
    def snapshot(self) -> FleetSnapshot:
        """The current picture."""

    def unreachable(self, server: str, reason: str) -> None:
        """Report that no connection to the server could be made."""

    def exiting(self, server: str, reason: str) -> None:
        """Report that the server says it is going down and takes nothing new."""

    def broken(self, server: str) -> None:
        """Report that a connection to the server broke: it may be gone, and may be back soon."""

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        """Report that the server says it does not have this version ready."""


class FleetProbe(Protocol):
    """Looks at servers that are being changed."""

    def changing(self, server: str, model: str) -> AbstractAsyncContextManager[None]:
        """Watch a server closely while a model of it is loaded or unloaded.

        When the block ends the server is probed at once, and the picture of the fleet is up to
        date behind it, with the model's new description. Never raises.
        """


class ModelControl(Protocol):
    """Tells servers which models to hold. Methods raise Fault."""

    async def load(
        self,
        server: str,
        model: str,
        *,
        config: str | None,
        files: Mapping[str, bytes],
        timeout_s: float,
    ) -> None:
        """Load or reload a model, with `config` and `files` in place of what lies there."""

    async def unload(
        self, server: str, model: str, *, with_dependents: bool, timeout_s: float
    ) -> None:
        """Begin to unload a model; what runs on it still ends."""


class ModelCommands(Protocol):
    """Carries out commands to load and unload models."""

    async def carry_out(self, order: Order, *, by: str) -> Report:
        """Carry out a command and wait for its end; it goes on when the wait is cancelled.

        `by` says who gave it. Raises UnknownName and NoPlacement for a command that names no server
        there is; what goes wrong on servers is in the report.
        """


class SettingsCalls(Protocol):
    """Reads and changes one server's settings, as Triton's JSON has them. Methods raise Fault."""

    async def trace(
        self, server: str, model: str, values: Mapping[str, Sequence[str]], *, timeout_s: float
    ) -> dict[str, Any]:
        """Change trace settings (none: read them) of a model ("": of the server); return all.

        A setting without values goes back to its default.
        """

    async def log(
        self, server: str, values: Mapping[str, bool | int | str], *, timeout_s: float
    ) -> dict[str, Any]:
        """Change log settings (none: read them); return all."""


class Observer(Protocol):
    """Is told of every settled request."""

    def observe(self, exchange: Exchange) -> None:
        """Take note of a settled exchange; must neither block nor raise."""


class Channels(Protocol):
    """What the ops listener shows of the connections to the servers."""

    def states(self, server: str) -> Iterable[Mapping[str, Any]]:
        """Return one mapping for each channel to the server: its state and calls in flight."""

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return what is wrong with the servers, and how to mend it."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source of servers does.

    `problem` says why it fails, `answered_s` when it last answered completely, in Unix seconds.
    `kept` are those of its servers that it does not name any more.
    """

    name: str
    up: bool
    problem: str | None
    answered_s: float | None
    servers: int
    kept: Sequence[str]


class Membership(Protocol):
    """Where the servers of the fleet come from."""

    def source_of(self, server: str) -> str | None:
        """Return the source of a server, None for one that has left it."""

    def sources(self) -> Sequence[SourceStatus]:
        """Return how the sources do that are asked."""

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return what is wrong with them, and how to mend it."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What came of scraping one server: its page, or the `problem`; and how long it took."""

    server: str
    text: str | None
    problem: str | None
    took_s: float


class MetricsPages(Protocol):
    """Reads the servers' own metrics."""

    async def pages(self) -> Sequence[MetricsPage]:
        """Return one page for each server whose metrics address is known. Never raises."""


class StoreDown(Exception):
    """The shared store cannot be asked at the moment; the message says why, for operators."""


class Entry(NamedTuple):
    """What is at a key of a shared store, and for how many seconds still."""

    value: str
    left_s: float


class SharedStore(Protocol):
    """Small texts that all processes and gateways see, each gone by itself after its time.

    Every operation is atomic and may be carried out elsewhere; all raise StoreDown.
    """

    async def claim(
        self, key: str, value: str, *, ttl_s: float, instead_of: str | None = None
    ) -> str:
        """Put `value` where nothing is, or where `instead_of` is; return what is there then."""

    async def renew(self, key: str, *, ttl_s: float) -> str | None:
        """Return what is at `key`, which stays for `ttl_s` from now; None if nothing is."""

    async def forget(self, key: str, value: str) -> None:
        """Take `value` away; anything else at `key` stays."""

    async def look(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return what is at each key, None where nothing is, and renew nothing."""


class QuotaStore(Protocol):
    """What is used up of quotas, over all processes and gateways; see `routing.quota`.

    Every operation is atomic and may be carried out elsewhere; all raise StoreDown. A place is
    named by its key and its holder.
    """

    async def decide(self, ask: Ask) -> Answer:
        """Charge all that is asked for, or nothing if something enforced does not fit."""

    async def give_back(self, amounts_us: Mapping[str, int]) -> None:
        """Take back what was charged at each key, as far as it is not worked off."""

    async def hold(self, places: Sequence[tuple[str, str]], *, ttl_s: float) -> list[int]:
        """Keep places for `ttl_s` from now, whatever the limit; return how many are taken."""

    async def free(self, places: Sequence[tuple[str, str]]) -> None:
        """Give places back; those that are not held are left alone."""

    async def forget(self, keys: Sequence[str]) -> None:
        """Make quotas as if they had never been used."""


class UsageStore(Protocol):
    """What was used in each month, over all processes and gateways. Methods raise StoreDown."""

    @property
    def kind(self) -> str:
        """Where it is kept: `memory`, `file` or `redis`."""

    async def add(self, flush: Flush) -> None:
        """Add amounts, all or none of them, and only once however often a flush comes."""

    async def month(self, month: str) -> Totals:
        """Return what was used in a month; nothing for one that is not kept."""


class StoreState(Protocol):
    """What operators see of the shared store."""

    @property
    def kind(self) -> str:
        """`memory` or `redis`."""

    @property
    def failures(self) -> int:
        """How many operations have failed so far."""

    def down_reason(self) -> str | None:
        """Return why the store cannot be asked at the moment, None if it can."""


class OpenSequenceCounts(Protocol):
    """What operators see of the sequences."""

    def by_server(self) -> Mapping[str, int]:
        """Return how many sequences are open on each server; servers without are left out."""


class LimitsDesk(Protocol):
    """What operators see of the rate limits, and do about them."""

    def view(self) -> Mapping[str, Any]:
        """Return the rules, and how decisions are made at the moment."""

    def decisions(self) -> Mapping[tuple[str, str], int]:
        """Return how often each rule (by name) has `allowed`, `denied` or `observed`."""

    def sources(self) -> Mapping[str, int]:
        """Return how many decisions were made by what: `shared`, `local`, `open`, `closed`."""

    async def show(self, tenant: str) -> Mapping[str, Any]:
        """Return what a tenant has used up. Raises StoreDown."""

    async def reset(self, tenant: str, *, by: str) -> Mapping[str, Any]:
        """Give a tenant its whole quotas back. Raises StoreDown."""


class PriorityView(Protocol):
    """What operators see of the priority classes."""

    def explain(self, route: VersionRoute, tenant: str | None) -> Mapping[str, Any] | None:
        """Return which class and level a tenant's requests get that ask for none.

        Without a tenant it is about callers that show nothing, and None where nothing is
        configured. Raises UnknownName.
        """


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What operators see of admission, besides the limits, which the pool has.

    `mode` is `off`, `observe` or `enforce`; `queued` returns how many requests wait, by model and
    class.
    """

    mode: str = "off"
    queued: Callable[[], Mapping[str, Mapping[str, int]]] = dict


@dataclass(frozen=True, slots=True)
class CoreView:
    """What a reload of the configuration replaces, as far as operators look at it and steer it."""

    fleet: Fleet
    pool: Pool
    channels: Channels
    aliases: Aliases
    pages: MetricsPages
    sequences: OpenSequenceCounts
    store: StoreState
    limits: LimitsDesk
    priorities: PriorityView
    admission: AdmissionView = AdmissionView()


CurrentView = Callable[[], CoreView]
"""Returns what is in force now; ask each time, and use one answer for one piece of work."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """Which configuration is in force, since when (seconds of the epoch), and what became of the
    last attempt to replace it.
    """

    digest: str
    loaded_s: float
    last_reload_ok: bool


class ConfigRefused(Exception):
    """A configuration was not taken up, and nothing was changed. `problems` says why."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class ConfigDesk(Protocol):
    """Replaces the configuration at operators' command."""

    def view(self) -> Mapping[str, Any]:
        """Return what is in force, since when, and what was refused since."""

    async def plan(self) -> Mapping[str, Any]:
        """Return what a reload would change now. Raises ConfigRefused."""

    async def reload(self, *, by: str) -> Mapping[str, Any]:
        """Take up what the files say now, and return what changed. Raises ConfigRefused."""


class StateStore(Protocol):
    """Keeps what operators decided over a restart."""

    @property
    def keeps(self) -> bool:
        """Whether anything outlasts a restart."""

    def read(self) -> Mapping[str, Any]:
        """Return what was kept. Raises ValueError."""

    def write(self, state: Mapping[str, Any]) -> None:
        """Keep `state` instead. Raises OSError."""


class Host(Protocol):
    """The processes behind one ops listener: one, or a supervisor and its workers."""

    async def refresh(self) -> None:
        """Bring the figures up to date that the view of the core in force shows."""

    async def metrics(self) -> bytes:
        """Return the metrics of all processes as one page in Prometheus's text format."""

    async def explain_request(self, request_id: str) -> Mapping[str, Any]:
        """Explain a past request. Raises UnknownName."""

    async def explain_model(
        self, model: str, version: int | None, tenant: str | None
    ) -> Mapping[str, Any]:
        """Explain where a request (of `tenant`) would go now. Raises UnknownName."""

    def workers(self) -> Mapping[str, Any]:
        """Return the worker processes (`workers`) and how a restart goes (`restart`, or None)."""

    def restart(self) -> None:
        """Begin to replace every worker. Raises ValueError when that cannot be done."""
