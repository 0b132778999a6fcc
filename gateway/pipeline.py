"""The life of an inference request: receive, resolve, decode, admit, pick, send, reply, settle.

The edge has received the request; `Pipeline.infer` takes it from resolve to reply. Pick and send
form the retry loop. Everything is decided synchronously on one snapshot; only send waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.codec.compression import choose_encoding, pack, unpack
from gateway.codec.infer_reply import EncodedBody, encode_reply
from gateway.codec.infer_request import InferDecoder, parse_header_length
from gateway.codec.types import InferCall, InferReply
from gateway.exchange import Exchange
from gateway.faults import Fault, Kind, Origin
from gateway.ports import Clock, Fleet, Transport, UpstreamCall
from routing.errors import RoutingError
from routing.fleet import ModelVersion, VersionRoute
from routing.pool import Lease, Pool
from routing.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a request may take, in seconds: the smallest of all that apply.

    `default_s` is for requests where neither the client nor the model sets one.
    """

    default_s: float
    max_s: float
    by_model: Mapping[str, float]

    def allow(self, model: str, asked_s: float | None) -> float:
        """Return the seconds a request to `model` has in all."""
        limits = [limit for limit in (asked_s, self.by_model.get(model)) if limit is not None]
        return min([*limits, self.max_s]) if limits else self.default_s


@dataclass(frozen=True, slots=True)
class ReceivedInfer:
    """An inference request as it came over HTTP: path, the headers that matter, raw body."""

    model: str
    version: int | None
    body: bytes
    content_encoding: str
    accept_encoding: str | None
    header_lengths: list[str]


@dataclass(frozen=True, slots=True)
class AnsweredInfer:
    """An inference response ready to be written; `encoding` is None for identity.

    `header_length` is the length of the uncompressed JSON, None without a binary tail.
    """

    parts: Sequence[bytes]
    encoding: str | None
    header_length: int | None


class Pipeline:
    """Takes inference requests through their stages."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        pool: Pool,
        transport: Transport,
        decoder: InferDecoder,
        deadlines: Deadlines,
        retry: RetryPolicy,
        max_unpacked_bytes: int,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._pool = pool
        self._transport = transport
        self._decoder = decoder
        self._deadlines = deadlines
        self._retry = retry
        self._max_unpacked_bytes = max_unpacked_bytes
        self._clock = clock

    async def infer(self, exchange: Exchange, request: ReceivedInfer) -> AnsweredInfer:
        """Answer one request. Raises Fault for everything that is not an answer."""
        exchange.enter("resolve")
        route = self._resolve(exchange, request)
        exchange.enter("decode")
        call = self._decode(request, route)
        reply = await self._send(exchange, route, call)
        exchange.enter("reply")
        return _encode(encode_reply(reply, call), request.accept_encoding)

    def _resolve(self, exchange: Exchange, request: ReceivedInfer) -> VersionRoute:
        try:
            route = self._fleet.snapshot.resolve(request.model, request.version, self._clock())
        except RoutingError as error:
            raise Fault.of_routing(error) from None
        spec = route.spec
        exchange.model, exchange.version = spec.model, str(spec.version)
        allowed_s = self._deadlines.allow(spec.model, exchange.timeout_s)
        exchange.deadline_s = exchange.started_s + allowed_s
        if spec.decoupled:
            raise Fault.unsupported(
                "HTTP end point doesn't support models with decoupled transaction policy"
            )
        return route

    def _decode(self, request: ReceivedInfer, route: VersionRoute) -> InferCall:
        body = request.body
        if request.content_encoding:
            body = unpack(body, request.content_encoding, max_bytes=self._max_unpacked_bytes)
        return self._decoder.decode(body, parse_header_length(request.header_lengths), route.spec)

    async def _send(self, exchange: Exchange, route: VersionRoute, call: InferCall) -> InferReply:
        """Pick and send until there is an answer, or no further attempt is allowed."""
        failed: Fault | None = None
        while True:
            exchange.enter("pick")
            lease = self._pick(exchange, route, call, failed)
            exchange.enter("send")
            try:
                return await self._attempt(exchange, call, lease)
            except Fault as fault:
                exchange.tried.add(lease.server)
                self._report(lease.server, route, fault)
                if call.is_sequence() or not self._retry.allows(
                    fault.replay, attempts=exchange.attempts, remaining_s=exchange.remaining_s()
                ):
                    raise
                failed = fault.without_frames()

    def _pick(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, failed: Fault | None
    ) -> Lease:
        # The servers are looked up again: what made the last attempt fail may have changed them.
        spec = route.spec
        rows = call.rows() if spec.max_batch_size > 0 else 1
        try:
            ready = self._fleet.snapshot.resolve(spec.model, spec.version, self._clock()).servers
            if spec.sequence or call.is_sequence():
                lease = self._pool.pick_pinned(ready, rows=rows)
            else:
                lease = self._pool.pick(ready, tried=exchange.tried, rows=rows)
        except RoutingError as error:
            raise (failed or Fault.of_routing(error)) from None
        exchange.server = lease.server
        exchange.attempts += 1
        return lease

    async def _attempt(self, exchange: Exchange, call: InferCall, lease: Lease) -> InferReply:
        remaining_s = exchange.remaining_s()
        if remaining_s <= 0:
            lease.release()
            raise _deadline_passed()
        try:
            upstream = self._transport.start(lease.server, call, timeout_s=remaining_s)
        except BaseException:
            lease.release()
            raise
        try:
            reply = await upstream.reply(remaining_s)
        except TimeoutError:
            raise _deadline_passed() from None
        finally:
            self._give_back(exchange, lease, upstream)
        self._pool.loads[lease.server].last_reply_s = self._clock()
        return reply

    def _give_back(self, exchange: Exchange, lease: Lease, upstream: UpstreamCall) -> None:
        # A place is free only when the work on the server is over, not when the caller is gone.
        if upstream.ended:
            lease.release()
        elif upstream.abandon(lease.release):
            lease.detach()
            exchange.detached = True

    def _report(self, server: str, route: VersionRoute, fault: Fault) -> None:
        if fault.origin is not Origin.UPSTREAM:
            return
        if fault.kind is Kind.UNREACHABLE:
            self._fleet.unreachable(server, fault.detail or fault.message)
        elif fault.kind is Kind.NOT_READY:
            key = ModelVersion(route.spec.model, route.spec.version)
            self._fleet.not_ready(server, key, fault.message)


def _deadline_passed() -> Fault:
    return Fault(Kind.DEADLINE, "the deadline of the request has passed", origin=Origin.GATEWAY)


def _encode(encoded: EncodedBody, accept_encoding: str | None) -> AnsweredInfer:
    header_length = len(encoded.head) if encoded.binary else None
    encoding = choose_encoding(accept_encoding) if accept_encoding else None
    if encoding is not None:
        packed = pack(encoded.head, encoded.tail, encoding)
        return AnsweredInfer((packed,), encoding, header_length)
    return AnsweredInfer((encoded.head, *encoded.tail), None, header_length)
