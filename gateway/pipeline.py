"""The life of an inference request: receive, resolve, decode, admit, pick, send, reply, settle.

The edge has received the request; `Pipeline.infer` takes it from resolve to reply. Pick and send
form the retry loop. Everything is decided synchronously on one snapshot; only send waits. What is
special about streams is in `gateway.streams`, which goes through the same stages.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

from gateway.admission import Admission
from gateway.attempt import Attempt
from gateway.codec.compression import choose_encoding, pack, unpack
from gateway.codec.infer_reply import EncodedBody, encode_reply
from gateway.codec.infer_request import InferDecoder, parse_header_length
from gateway.codec.types import InferCall, InferReply
from gateway.exchange import Admitted, Exchange, Hedge
from gateway.faults import Fault
from gateway.hedging import HedgePolicy, hedged
from gateway.limits.gate import RateLimits, cost_of
from gateway.ports import Clock, Fleet, Transport
from gateway.ranking import PRIORITY_CLASS, Ranking
from gateway.sequences import Sequences, Turn
from routing.aliases import Aliases
from routing.budget import RetryBudget
from routing.errors import NoRoom, RoutingError
from routing.fleet import VersionRoute
from routing.pool import Lease, Pool
from routing.retry import RetryPolicy
from routing.types import ModelSpec

T = TypeVar("T")

_UNLIMITED = nullcontext()


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a request may take, in seconds: the smallest of all that apply.

    `default_s` is for requests where neither the client nor the model sets one. A stream has that
    time for its first event; afterwards each one may take `stream_idle_s` and all of them, from the
    start of the request, `stream_max_s`.
    """

    default_s: float
    max_s: float
    by_model: Mapping[str, float]
    stream_idle_s: float
    stream_max_s: float

    def allow(self, model: str, asked_s: float | None) -> float:
        """Return the seconds a request to `model` has in all."""
        limits = [limit for limit in (asked_s, self.by_model.get(model)) if limit is not None]
        return min([*limits, self.max_s]) if limits else self.default_s

    def allow_stream(self, asked_s: float | None) -> float:
        """Return the seconds a stream has in all once its first event has come."""
        return self.stream_max_s if asked_s is None else min(asked_s, self.stream_max_s)


@dataclass(slots=True)
class ReceivedInfer:
    """An inference request as it came over HTTP: path, the headers that matter, raw body."""

    model: str
    version: int | None
    body: bytes
    content_encoding: str
    accept_encoding: str | None
    header_lengths: list[str]
    header: Callable[[str], str | None]
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class AnsweredInfer:
    """An inference response ready to be written; `encoding` is None for identity.

    `header_length` is the length of the uncompressed JSON, None without a binary tail.
    """

    parts: Sequence[bytes]
    encoding: str | None
    header_length: int | None


class Retries:
    """What the retry loop needs to know: the policy, and each model's budget and idempotence.

    `not_idempotent` are the models a request of which must not run twice, `hedges` those that are
    asked twice when they are slow.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        new_budget: Callable[[], RetryBudget],
        not_idempotent: Collection[str] = (),
        hedges: Mapping[str, HedgePolicy] | None = None,
    ) -> None:
        self.policy = policy
        self.hedges = dict(hedges or {})
        self._new_budget = new_budget
        self._not_idempotent = frozenset(not_idempotent)
        self._budgets: dict[str, RetryBudget] = {}

    def idempotent(self, model: str) -> bool:
        """Whether a request to the model may run twice."""
        return model not in self._not_idempotent

    def budget(self, model: str) -> RetryBudget:
        """Return the model's budget; `model` has resolved, so there are not many."""
        found = self._budgets.get(model)
        if found is None:
            found = self._budgets[model] = self._new_budget()
        return found


class Pipeline:
    """Takes inference requests through their stages. `admission` is None where nobody waits."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        aliases: Aliases,
        pool: Pool,
        transport: Transport,
        decoder: InferDecoder,
        deadlines: Deadlines,
        retries: Retries,
        sequences: Sequences,
        ranking: Ranking,
        limits: RateLimits,
        admission: Admission | None = None,
        max_unpacked_bytes: int,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._aliases = aliases
        self._pool = pool
        self._transport = transport
        self._decoder = decoder
        self.deadlines = deadlines
        self._retries = retries
        self._sequences = sequences
        self._ranking = ranking
        self._limits = limits
        self._admission = admission
        self._max_unpacked_bytes = max_unpacked_bytes
        self._clock = clock

    async def infer(self, exchange: Exchange, request: ReceivedInfer) -> AnsweredInfer:
        """Answer one request. Raises Fault for everything that is not an answer."""
        exchange.enter("resolve")
        route = self.resolve(exchange, request)
        if route.spec.decoupled:
            raise Fault.unsupported(
                "HTTP end point doesn't support models with decoupled transaction policy"
            )
        exchange.enter("decode")
        lengths = parse_header_length(request.header_lengths)
        call = self._decoder.decode(self.unpacked(request), lengths, route.spec)
        self.complete(exchange, route, call, request)
        reply = await self.ask(exchange, route, call, asked=request.version)
        exchange.enter("reply")
        return _encode(encode_reply(reply, call), request.accept_encoding)

    def resolve(self, exchange: Exchange, request: ReceivedInfer) -> VersionRoute:
        """Find where the model is ready, and set the deadline. Raises Fault."""
        model, version = self._aliases.resolve(
            request.model, request.version, tenant=exchange.tenant, header=request.header
        )
        try:
            route = self._fleet.snapshot.resolve(model, version, self._clock())
        except RoutingError as error:
            raise Fault.of_routing(error) from None
        spec = route.spec
        exchange.model, exchange.version = spec.model, str(spec.version)
        if request.version is None and request.model in self._aliases.by_name:
            exchange.alias = request.model
        allowed_s = self.deadlines.allow(spec.model, exchange.timeout_s)
        exchange.deadline_s = exchange.started_s + allowed_s
        return route

    def unpacked(self, request: ReceivedInfer) -> bytes:
        """Return the body as it was before it was compressed. Raises Fault."""
        if not request.content_encoding:
            return request.body
        return unpack(request.body, request.content_encoding, max_bytes=self._max_unpacked_bytes)

    def complete(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, request: ReceivedInfer
    ) -> None:
        """Add to a call what the headers of its request say. Raises Fault."""
        call.metadata = request.metadata
        self._ranking.rank(exchange, route, call, request.header(PRIORITY_CLASS))

    def attempt(self, exchange: Exchange, spec: ModelSpec, lease: Lease) -> Attempt:
        """Return what holds `lease` until the work on its server has ended."""
        return Attempt(exchange, spec, lease, fleet=self._fleet, clock=self._clock)

    async def join(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, *, asked: int | None
    ) -> Turn:
        """Find the server that has, or is to have, the state of a sequence; see `Sequences`."""
        exchange.enter("admit")
        return await self._sequences.join(exchange, route, call, asked=asked)

    async def ask(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, *, asked: int | None
    ) -> InferReply:
        """Return the one answer to a unary call; `asked` is the version the request names.

        Raises Fault.
        """
        async with self.admitted(exchange, route.spec, call):
            return await self._ask(exchange, route, call, asked=asked)

    def admitted(
        self, exchange: Exchange, spec: ModelSpec, call: InferCall
    ) -> AbstractAsyncContextManager[None]:
        """Return what lets a request in, within its limits, for the length of a block."""
        applied = self._limits.applied(exchange)
        if not applied:
            return _UNLIMITED
        exchange.enter("admit")
        cost = cost_of(call, batches=spec.max_batch_size > 0)
        return self._limits.admit(exchange, applied, cost)

    async def _ask(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, *, asked: int | None
    ) -> InferReply:
        if not call.is_sequence():
            return await self._send_unary(exchange, route, call)
        turn = await self.join(exchange, route, call, asked=asked)
        try:
            reply = await self._send_unary(exchange, turn.route, call)
            await turn.answered(reply)
        except Fault as fault:
            raise await turn.failed(fault) from None
        finally:
            turn.left()
        return reply

    async def _send_unary(
        self, exchange: Exchange, route: VersionRoute, call: InferCall
    ) -> InferReply:
        async def attempt(lease: Lease) -> InferReply:
            return await self._attempt_or_hedge(exchange, route.spec, call, lease)

        idempotent = self._retries.idempotent(route.spec.model)
        return await self.send(exchange, route, call, attempt, idempotent=idempotent)

    async def send(
        self,
        exchange: Exchange,
        route: VersionRoute,
        call: InferCall,
        attempt: Callable[[Lease], Awaitable[T]],
        *,
        idempotent: bool,
    ) -> T:
        """Pick and send until there is an answer, or no further attempt is allowed.

        Unless `idempotent`, what may have run is not sent again. Raises the last Fault.
        """
        failed: Fault | None = None
        self._retries.budget(route.spec.model).deposit(exchange.started_s)
        while True:
            exchange.enter("pick")
            lease = self._choose(exchange, route.spec, call, failed)
            if lease is None:
                lease = await self._turn(exchange, route.spec, call)
            if failed is not None:
                self._note_retry(exchange, failed)
            exchange.enter("send")
            try:
                return await attempt(lease)
            except Fault as fault:
                if not self._may_retry(exchange, route.spec, fault, idempotent=idempotent):
                    raise
                failed = fault.without_frames()

    def _may_retry(
        self, exchange: Exchange, spec: ModelSpec, fault: Fault, *, idempotent: bool
    ) -> bool:
        if exchange.pin is not None:
            return False
        return self._retries.policy.allows(
            fault.replay,
            attempts=exchange.attempts,
            unsure=exchange.unsure,
            idempotent=idempotent,
            remaining_s=exchange.remaining_s(),
            budget=self._retries.budget(spec.model),
            now_s=self._clock(),
        )

    def _note_retry(self, exchange: Exchange, failed: Fault) -> None:
        exchange.retried += (failed.kind,)
        budget = self._retries.budget(exchange.model)
        self._retries.policy.spend(failed.replay, budget, self._clock())

    def _choose(
        self, exchange: Exchange, spec: ModelSpec, call: InferCall, failed: Fault | None
    ) -> Lease | None:
        """Take a place for the first or a further attempt; None if it has to wait."""
        admission = self._admission
        if admission is None or exchange.pin is not None:
            return self._pick(exchange, spec, call, failed=failed)
        if failed is None:
            return self._admit(admission, exchange, spec, call)
        # What was let in goes on: rather where there is room, but it waits no second time.
        if admission.enforces:
            with suppress(NoRoom):
                return self._pick(exchange, spec, call, failed=failed, room=1.0)
        return self._pick(exchange, spec, call, failed=failed)

    def _admit(
        self, admission: Admission, exchange: Exchange, spec: ModelSpec, call: InferCall
    ) -> Lease | None:
        """Take a place for the first attempt at once, or return None."""
        if not admission.enforces:
            lease = self._pick(exchange, spec, call)
            admission.observe(exchange, lease)
            return lease
        room = admission.room(exchange)
        if room is None:
            return None
        try:
            lease = self._pick(exchange, spec, call, room=room)
        except NoRoom:
            return None
        exchange.admission = Admitted.PASSED
        return lease

    async def _turn(self, exchange: Exchange, spec: ModelSpec, call: InferCall) -> Lease:
        """Wait for a place; see `Admission.wait`."""
        assert self._admission is not None

        def pick(room: float) -> Lease:
            return self._pick(exchange, spec, call, room=room)

        return await self._admission.wait(exchange, spec, call, pick)

    def _pick(
        self,
        exchange: Exchange,
        spec: ModelSpec,
        call: InferCall,
        *,
        failed: Fault | None = None,
        avoid: Collection[str] = (),
        room: float | None = None,
    ) -> Lease:
        # The servers are looked up again: what made the last attempt fail may have changed them.
        rows = call.rows() if spec.max_batch_size > 0 else 1
        now_s = self._clock()
        try:
            route = self._fleet.snapshot.resolve(spec.model, spec.version, now_s)
            if exchange.pin is not None:
                server = exchange.pin.server
                lease = self._pool.pick_pinned(route, server, now_s=now_s, rows=rows)
            else:
                tried = exchange.tried.union(avoid)
                lease = self._pool.pick(route, now_s=now_s, tried=tried, rows=rows, room=room)
        except RoutingError as error:
            raise (failed or Fault.of_routing(error)) from None
        exchange.chose(lease)
        exchange.rows = rows
        return lease

    async def _attempt_or_hedge(
        self, exchange: Exchange, spec: ModelSpec, call: InferCall, lease: Lease
    ) -> InferReply:
        first = self._attempt(exchange, spec, call, lease)
        hedge = self._retries.hedges.get(spec.model)
        if hedge is None or exchange.pin is not None or not self._transport.cancels(lease.server):
            return await first
        hedge.budget.deposit(exchange.started_s)

        before = exchange.hedges

        def second() -> Coroutine[None, None, InferReply] | None:
            if not hedge.budget.affords(self._clock()):
                exchange.hedges = (*before, Hedge.NO_BUDGET)
                return None
            holders = lease.choices.holders
            unsafe = {name for name in holders if not self._transport.cancels(name)}
            try:
                room = self._admission.spare(exchange) if self._admission else None
                other = self._pick(exchange, spec, call, avoid=unsafe | {lease.server}, room=room)
            except (Fault, NoRoom) as none:
                why = Hedge.NO_SERVER if isinstance(none, Fault) else Hedge.NO_ROOM
                exchange.hedges = (*before, why)
                return None
            hedge.budget.withdraw(self._clock())
            exchange.hedges = (*before, Hedge.UNANSWERED)
            return self._attempt(exchange, spec, call, other)

        reply, by_second = await hedged(first, second, after_s=hedge.after_s)
        if exchange.hedges == (*before, Hedge.UNANSWERED):
            exchange.hedges = (*before, Hedge.WON if by_second else Hedge.LOST)
        if not by_second:
            exchange.server = lease.server
        return reply

    async def _attempt(
        self, exchange: Exchange, spec: ModelSpec, call: InferCall, lease: Lease
    ) -> InferReply:
        with self.attempt(exchange, spec, lease) as attempt:
            remaining_s = attempt.remaining_s()
            upstream = self._transport.start(lease.server, call, timeout_s=remaining_s)
            attempt.upstream = upstream
            return await upstream.reply(remaining_s)


def _encode(encoded: EncodedBody, accept_encoding: str | None) -> AnsweredInfer:
    header_length = len(encoded.head) if encoded.binary else None
    encoding = choose_encoding(accept_encoding) if accept_encoding else None
    if encoding is not None:
        packed = pack(encoded.head, encoded.tail, encoding)
        return AnsweredInfer((packed,), encoding, header_length)
    return AnsweredInfer((encoded.head, *encoded.tail), None, header_length)
