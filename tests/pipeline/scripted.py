"""A pipeline whose servers follow a script: no sockets, and time moves only when the script says.

`World` holds the real pipeline, pool and fleet table between a scripted transport and a manual
clock. Tests queue what the next calls will do, ask, and look at what was sent and what is held.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from gateway.admission import Admission, AdmissionSettings
from gateway.codec.infer_request import InferDecoder
from gateway.codec.types import InferCall, InferReply, OutputTensor
from gateway.exchange import ANONYMOUS, Exchange
from gateway.faults import Blame, Fault, Kind, Origin, Replay
from gateway.hedging import HedgePolicy
from gateway.limits.gate import RateLimits
from gateway.limits.limiter import Limiter
from gateway.pipeline import AnsweredInfer, Deadlines, Pipeline, ReceivedInfer, Retries
from gateway.ports import SharedStore
from gateway.ranking import Ranking
from gateway.sequences import Sequences, SequenceSettings
from gateway.stores.memory import MemoryStore
from gateway.stores.quotas import MemoryQuotas
from gateway.switches import Switches
from routing.aliases import Alias, Aliases
from routing.balancing.least_request import LeastRequest
from routing.budget import RetryBudget
from routing.classes import STANDARD
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion, VersionRoute
from routing.health.breaker import Breaker
from routing.limits import Rule, RuleBook
from routing.pool import Lease, Pool, PoolSettings
from routing.priorities import Priorities
from routing.queueing import Queueing
from routing.retry import RetryPolicy
from routing.sequences import OpenSequences
from routing.types import ModelSpec, Server, TensorSpec

SPEC = ModelSpec(
    "m",
    1,
    inputs=(TensorSpec("IN", "INT32", (-1,)),),
    outputs=(TensorSpec("OUT", "INT32", (-1,)),),
)
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'
SEQUENCE_BODY = BODY[:-1] + b',"parameters":{"sequence_id":7}}'
START_BODY = BODY[:-1] + b',"parameters":{"sequence_id":7,"sequence_start":true}}'

IDLE_S = 5.0

NOT_READY = Fault(
    Kind.NOT_READY, "version 1 is not at ready state", origin=Origin.UPSTREAM, replay=Replay.SAFE
)
DRAINING = Fault(
    Kind.DRAINING, "Server exiting", origin=Origin.UPSTREAM, replay=Replay.SAFE, retry_after_s=1
)
UNREACHABLE = Fault(
    Kind.UNREACHABLE,
    "the server could not be reached",
    origin=Origin.UPSTREAM,
    replay=Replay.SAFE,
    blame=Blame.SERVER,
    detail="failed to connect to all addresses; 10.0.0.5:8001 refused",
)
BROKEN = Fault(
    Kind.BROKEN,
    "connection lost",
    origin=Origin.UPSTREAM,
    replay=Replay.UNSURE,
    blame=Blame.SERVER,
)
QUEUE_FULL = Fault(
    Kind.OVERLOADED,
    "queue full",
    origin=Origin.UPSTREAM,
    replay=Replay.SAFE,
    blame=Blame.OVERLOAD,
    retry_after_s=1,
)
FAILED = Fault(Kind.FAILED, "the model raised", origin=Origin.UPSTREAM, blame=Blame.VERSION)
FATAL = Fault(Kind.FAILED, "Stub process is not healthy", origin=Origin.UPSTREAM, blame=Blame.FATAL)
SLOW = Fault(Kind.DEADLINE, "too late", origin=Origin.UPSTREAM, blame=Blame.SLOW)


class Clock:
    """Monotonic seconds that only the script moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._texts = count(1)

    def __call__(self) -> float:
        return self.now_s

    def text(self) -> str:
        """Return a text that is later than all before it."""
        return f"{next(self._texts):04}"


@dataclass(frozen=True)
class Step:
    """What one call does: after `after_s` it ends with `fault`, or with an echo of its inputs.

    With `hangs` it never ends by itself; a test may `finish` it, or end it once it was abandoned. A
    `late` one is noticed only after its time was up.
    """

    after_s: float = 0.0
    fault: Fault | None = None
    hangs: bool = False
    late: bool = False


def echo(call: InferCall) -> InferReply:
    outputs = [OutputTensor("OUT", i.datatype, i.shape, bytes(i.raw)) for i in call.inputs]
    return InferReply(call.model, call.version, outputs, id=call.id)


class ScriptedCall:
    """One call on one server. `abandoned` tells whether the pipeline let go of it."""

    def __init__(
        self,
        server: str,
        call: InferCall,
        step: Step,
        *,
        clock: Clock,
        runs_on: bool,
        answer: Callable[[InferCall], InferReply] = echo,
    ) -> None:
        self.server = server
        self.ended = False
        self.abandoned = False
        self.begun = asyncio.Event()
        self._call = call
        self._step = step
        self._clock = clock
        self._runs_on = runs_on
        self._answer = answer
        self._on_end: Callable[[], None] | None = None
        self._finished = asyncio.Event()
        self._outcome: Fault | None = None

    async def reply(self, timeout_s: float) -> InferReply:
        self.begun.set()
        if self._step.hangs:
            await self._finished.wait()
            self.ended = True
            if self._outcome is not None:
                raise self._outcome
            return self._answer(self._call)
        if self._step.after_s >= timeout_s and not self._step.late:
            self._clock.now_s += timeout_s
            raise TimeoutError
        self._clock.now_s += self._step.after_s
        self.ended = True
        if self._step.fault is not None:
            raise self._step.fault
        return self._answer(self._call)

    def abandon(self, on_end: Callable[[], None]) -> bool:
        self.abandoned = True
        self._on_end = on_end
        return self._runs_on

    def finish(self, fault: Fault | None = None) -> None:
        """End a hanging call with an answer or a fault."""
        self._outcome = fault
        self._finished.set()

    def end(self) -> None:
        """End an abandoned call on the wire."""
        self.ended = True
        assert self._on_end is not None
        self._on_end()


class ScriptedTransport:
    """Plays one step a call, in the order the calls are sent."""

    def __init__(self, clock: Clock, *, runs_on: bool) -> None:
        self.steps: deque[Step | Fault] = deque()
        self.usual: dict[str, Step] = {}
        """What a server does when no step is queued; it answers unless it is told otherwise."""
        self.sent: list[tuple[str, float]] = []
        """Server and time left of each call."""
        self.calls: list[ScriptedCall] = []
        self.infer_calls: list[InferCall] = []
        self.started = asyncio.Event()
        self.answer: Callable[[InferCall], InferReply] = echo
        self.uncancellable: set[str] = set()
        """Servers where calls run on although cancelling is safe elsewhere."""
        self._clock = clock
        self._runs_on = runs_on

    def cancels(self, server: str) -> bool:
        return not self._runs_on and server not in self.uncancellable

    def start(self, server: str, call: InferCall, *, timeout_s: float) -> ScriptedCall:
        step = self.steps.popleft() if self.steps else self.usual.get(server, Step())
        if isinstance(step, Fault):
            raise step
        self.sent.append((server, timeout_s))
        self.infer_calls.append(call)
        runs_on = not self.cancels(server)
        started = ScriptedCall(
            server, call, step, clock=self._clock, runs_on=runs_on, answer=self.answer
        )
        self.calls.append(started)
        self.started.set()
        return started


class ScriptedFleet:
    """The real table; it takes reports like the real watcher and remembers them."""

    def __init__(self, table: FleetTable, clock: Clock) -> None:
        self.table = table
        self.reports: list[tuple[str, ...]] = []
        self._clock = clock

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        self.reports.append(("unreachable", server, reason))
        self.table.server_down(server, reason, now_s=self._clock())

    def exiting(self, server: str, reason: str) -> None:
        self.reports.append(("exiting", server, reason))
        self.table.server_down(server, reason, now_s=self._clock())

    def broken(self, server: str) -> None:
        self.reports.append(("broken", server))

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        self.reports.append(("not ready", server, f"{key.model}/{key.version}", reason))
        self.table.suspect(server, key, reason, now_s=self._clock())


class IdleTimes:
    """Descriptions that state an idle time of 5 s for every version but 9."""

    def sequence_idle_s(self, server: str, key: ModelVersion) -> float | None:
        return None if key.version == 9 else IDLE_S


class World:
    """The pipeline between a script and a clock."""

    def __init__(
        self,
        servers: Sequence[str] = ("a", "b"),
        *,
        spec: ModelSpec = SPEC,
        runs_on: bool = True,
        free_retries_per_s: float = 1.0,
        not_idempotent: Collection[str] = (),
        hedges: Mapping[str, HedgePolicy] | None = None,
        default_s: float = 60.0,
        max_s: float = 600.0,
        aliases: Sequence[Alias] = (),
        random: Callable[[], float] = lambda: 0.0,  # of equally loaded servers the first one
        clock: Clock | None = None,
        store: SharedStore | None = None,
        max_open: int = 1000,
        limits: Sequence[Rule] = (),
        priorities: Priorities | None = None,
        queueing: Queueing | None = None,
        concurrency: int | None = None,
        admission: AdmissionSettings | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.tenant = ANONYMOUS
        self.kind = STANDARD
        self.transport = ScriptedTransport(self.clock, runs_on=runs_on)
        known = [Server(name) for name in servers]
        table = FleetTable(known, quorum=0.5, recently_ready_s=300.0)
        self.fleet = ScriptedFleet(table, self.clock)
        self.pool = Pool(
            known,
            random=random,
            settings=PoolSettings(
                max_detached_calls=2, limits={spec.model: concurrency} if concurrency else {}
            ),
            new_balancer=lambda _: LeastRequest(),
        )
        key = ModelVersion(spec.model, spec.version)
        for name in servers:
            table.observe_ready(name, [key], asked_s=0.0, now_s=self.clock())
            table.learn_spec(name, spec, now_s=self.clock())
            table.server_up(name, server_id=name, triton_version="2.51.0", now_s=self.clock())
        self.store = store or MemoryStore(self.clock, max_entries=1000)
        self.quotas = MemoryQuotas(self.clock)
        self.limiter = Limiter(self.quotas, me="me", down=lambda: None, clock=self.clock)
        self.switches = Switches(self.clock)
        self.sequences = Sequences(
            fleet=self.fleet,
            pool=self.pool,
            store=self.store,
            opened=OpenSequences(),
            descriptions=IdleTimes(),
            settings=SequenceSettings(margin_s=30.0, idle_s=60.0, max_open=max_open),
            begun=self.clock.text,
            clock=self.clock,
        )
        self.retries = Retries(
            RetryPolicy(),
            new_budget=lambda: RetryBudget(ratio=0.1, min_per_s=free_retries_per_s),
            not_idempotent=not_idempotent,
            hedges=hedges,
        )
        self.admission = admission and Admission(
            self.pool, admission, switches=self.switches, clock=self.clock
        )
        self.pipeline = Pipeline(
            aliases=Aliases({alias.name: alias for alias in aliases}, random),
            fleet=self.fleet,
            pool=self.pool,
            transport=self.transport,
            decoder=InferDecoder(max_tensor_bytes=1_000_000),
            deadlines=Deadlines(
                default_s=default_s, max_s=max_s, by_model={}, stream_idle_s=60, stream_max_s=3600
            ),
            retries=self.retries,
            sequences=self.sequences,
            ranking=Ranking(priorities or Priorities(), lambda *_: queueing),
            limits=RateLimits(RuleBook(limits), self.limiter, self.switches),
            admission=self.admission,
            max_unpacked_bytes=10_000,
            clock=self.clock,
        )
        self.exchange = self.new_exchange()

    def new_exchange(self, timeout_s: float | None = None) -> "Recorded":
        self.exchange = Recorded(
            request_id="r",
            caller="127.0.0.1",
            route="infer",
            clock=self.clock,
            started_s=self.clock(),
            timeout_s=timeout_s,
            tenant=self.tenant,
            priority_class=self.kind,
        )
        return self.exchange

    def will(self, *steps: Step | Fault) -> None:
        """Queue what the next calls do; a bare Fault is raised instead of sending."""
        self.transport.steps.extend(steps)

    async def ask(
        self,
        body: bytes = BODY,
        *,
        model: str | None = None,
        version: int | None = None,
        timeout_s: float | None = None,
        receiving_s: float = 0.0,
        **headers: Any,
    ) -> AnsweredInfer:
        exchange = self.new_exchange(timeout_s)
        self.clock.now_s += receiving_s
        request = ReceivedInfer(
            model=SPEC.model if model is None else model,
            version=version,
            body=body,
            content_encoding=headers.get("content_encoding", ""),
            accept_encoding=headers.get("accept_encoding"),
            header_lengths=headers.get("header_lengths", []),
            header=headers.get,
        )
        return await self.pipeline.infer(exchange, request)

    async def fault(self, *args: Any, **kwargs: Any) -> Fault:
        """Ask, and return the fault it ends with."""
        try:
            await self.ask(*args, **kwargs)
        except Fault as fault:
            return fault
        raise AssertionError("there was an answer")

    @property
    def route(self) -> VersionRoute:
        return self.fleet.snapshot.resolve(SPEC.model, SPEC.version, self.clock())

    def busy(self, *servers: str) -> list[Lease]:
        """Take a place on each of these servers."""
        everyone = set(self.pool.loads)
        return [
            self.pool.pick(self.route, now_s=self.clock(), tried=everyone - {name})
            for name in servers
        ]

    def circuits(self, server: str) -> dict[str, Breaker]:
        """Return the breakers of a server that are not closed."""
        found = self.pool.breakers().items()
        return {of: by_server[server] for of, by_server in found if server in by_server}

    async def hang_up(self) -> ScriptedCall:
        """Ask, let the client leave while the call is on a server, and return the call."""
        self.will(Step(hangs=True))
        self.transport.started.clear()
        asking = asyncio.get_running_loop().create_task(self.ask())
        await self.transport.started.wait()
        call = self.transport.calls[-1]
        await call.begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        return call

    @property
    def servers_asked(self) -> list[str]:
        return [server for server, _ in self.transport.sent]

    def held(self, name: str = "a") -> tuple[int, int, int]:
        """The calls, rows and detached calls on a server."""
        load = self.pool.loads[name]
        return load.calls, load.rows, load.detached

    @property
    def idle(self) -> bool:
        return all(self.held(name) == (0, 0, 0) for name in self.pool.loads)


def body_of(answer: AnsweredInfer) -> bytes:
    return b"".join(answer.parts)


class Recorded(Exchange):
    """An exchange that remembers the order of its stages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.order = ["receive"]

    def enter(self, stage: str) -> None:
        self.order.append(stage)
        super().enter(stage)
