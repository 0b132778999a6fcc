"""Generate requests: one call, any number of answers, passed on as they come.

Decides what becomes of a stream: how long it may take, what an error before its first event means
(a fault like any other, tried elsewhere if nothing has run), what one behind it means (an event,
and the stream goes on), and when an answer is cut short. Refuses to know HTTP. Called by the edge;
the stages and the retry loop are the pipeline's. Models that answer exactly once are asked by a
unary call, the others on a stream of their own.
"""

import math
from contextlib import ExitStack
from dataclasses import dataclass

from gateway.attempt import Attempt
from gateway.codec.generate import GenerateDecoder, encode_generated
from gateway.codec.types import InferCall, InferReply
from gateway.exchange import Exchange
from gateway.faults import Blame, Fault, Kind, Origin
from gateway.pipeline import Pipeline, ReceivedInfer
from gateway.ports import Transport, UpstreamStream
from gateway.sequences import Turn
from routing.fleet import VersionRoute
from routing.pool import Lease
from routing.types import ModelSpec

_EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class Events:
    """The answers to one request, each as JSON, in the order the model gives them.

    `close` must be called once nobody wants more of them, whatever happened before.
    """

    def __init__(self, exchange: Exchange, first: bytes | None) -> None:
        self._exchange = exchange
        self._first = first

    async def next(self) -> bytes | Fault | None:
        """Return the next answer, or an error of the model in place of one; None at the end.

        Raises Fault when the answers are cut short.
        """
        first, self._first = self._first, None
        if first is not None:
            self._exchange.count_event()
        return first

    def close(self) -> None:
        """Let go of the server."""


class StreamedEvents(Events):
    """Events of a stream, of which the first has been read and there are more.

    `idle_s` bounds the wait for each, the exchange's deadline all of them. `turn` is its place in
    a sequence, if it has one.
    """

    def __init__(
        self,
        exchange: Exchange,
        first: bytes,
        *,
        attempt: Attempt,
        stream: UpstreamStream,
        idle_s: float,
        turn: Turn | None,
    ) -> None:
        super().__init__(exchange, first)
        self._attempt = attempt
        self._stream = stream
        self._idle_s = idle_s
        self._turn = turn
        self._failed: Fault | None = None
        self._over = False
        self._ended = exchange.until_ended(_nothing)  # its place is taken as long as it lasts

    async def next(self) -> bytes | Fault | None:
        """Return the next event; see `Events.next`."""
        first = await super().next()
        if first is not None:
            return first
        self._exchange.enter("send")
        try:
            event = await self._wait()
        except Fault as fault:
            self._end(fault.blame, fault)
            if self._turn is not None:
                raise await self._turn.failed(fault) from None
            raise
        self._exchange.enter("reply")
        if event is None:
            self._end(self._failed.blame if self._failed else Blame.NOBODY)
            if self._turn is not None:
                await self._turn.ended()
            return None
        self._exchange.count_event()
        self._attempt.lease.heard(self._exchange.clock())
        return self._encoded(event)

    async def _wait(self) -> InferReply | Fault | None:
        left_s = self._exchange.remaining_s()
        if left_s <= 0:
            raise Fault.deadline_passed()
        try:
            return await self._stream.next(min(left_s, self._idle_s))
        except TimeoutError:
            if left_s <= self._idle_s:
                raise Fault.deadline_passed() from None
            message = f"the model sent nothing for {self._idle_s:g} s"
            raise Fault(Kind.DEADLINE, message, origin=Origin.UPSTREAM, blame=Blame.SLOW) from None

    def _encoded(self, event: InferReply | Fault) -> bytes | Fault:
        if isinstance(event, InferReply):
            try:
                return _encoded(event, self._turn)
            except Fault as fault:
                event = fault
        self._failed = self._exchange.fault = self._failed or event.without_frames()
        return event

    def close(self) -> None:
        """Cancel the stream unless it is over; a model that failed before is blamed for it."""
        self._end(self._failed.blame if self._failed else Blame.UNTOLD)
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.left()

    def _end(self, blame: Blame, fault: Fault | None = None) -> None:
        if not self._over:
            self._over = True
            self._attempt.over(blame, fault)
            self._ended()


@dataclass(slots=True)
class _Opening:
    """A stream that is about to be opened."""

    exchange: Exchange
    call: InferCall
    idle_s: float
    turn: Turn | None = None


class Streams:
    """Takes generate requests through their stages."""

    def __init__(self, pipeline: Pipeline, transport: Transport, decoder: GenerateDecoder) -> None:
        self._pipeline = pipeline
        self._transport = transport
        self._decoder = decoder

    async def generate(self, exchange: Exchange, request: ReceivedInfer) -> bytes:
        """Return the one answer to a request. Raises Fault for any other number of them."""
        events = await self._open(exchange, request, idle_s=math.inf)
        try:
            answer = await events.next()
            more = await events.next() if answer is not None else None
        finally:
            events.close()
        for event in (answer, more):
            if isinstance(event, Fault):
                raise event
        if not isinstance(answer, bytes) or more is not None:
            raise Fault.invalid(_EXACTLY_ONE)
        return answer

    async def generate_stream(self, exchange: Exchange, request: ReceivedInfer) -> Events:
        """Return the answers to a request, once it is certain that the first is no error."""
        deadlines = self._pipeline.deadlines
        events = await self._open(exchange, request, idle_s=deadlines.stream_idle_s)
        allowed_s = deadlines.allow_stream(exchange.timeout_s)
        exchange.deadline_s = exchange.started_s + allowed_s
        return events

    async def _open(self, exchange: Exchange, request: ReceivedInfer, *, idle_s: float) -> Events:
        exchange.enter("resolve")
        route = self._pipeline.resolve(exchange, request)
        exchange.enter("decode")
        call = self._decoder.decode(self._pipeline.unpacked(request), route.spec)
        self._pipeline.complete(exchange, route, call, request)
        if not route.spec.decoupled:
            reply = await self._pipeline.ask(exchange, route, call, asked=request.version)
            exchange.enter("reply")
            return Events(exchange, encode_generated(reply))
        opening = _Opening(exchange, call, idle_s)
        async with self._pipeline.admitted(exchange, route.spec, call):
            if not call.is_sequence():
                return await self._send(opening, route)
            opening.turn = await self._pipeline.join(exchange, route, call, asked=request.version)
            return await self._send_in_turn(opening, opening.turn)

    async def _send_in_turn(self, opening: _Opening, turn: Turn) -> Events:
        """Open the stream of a sequence; it leaves its place there when it is closed."""
        with ExitStack() as stack:
            stack.callback(turn.left)
            try:
                events = await self._send(opening, turn.route)
            except Fault as fault:
                raise await turn.failed(fault) from None
            if isinstance(events, StreamedEvents):
                stack.pop_all()
            else:
                await turn.ended()
        return events

    async def _send(self, opening: _Opening, route: VersionRoute) -> Events:
        async def attempt(lease: Lease) -> Events:
            return await self._begin(opening, route.spec, lease)

        # A stream that may have run is not run again: nobody knows how far it has come.
        return await self._pipeline.send(
            opening.exchange, route, opening.call, attempt, idempotent=False
        )

    async def _begin(self, opening: _Opening, spec: ModelSpec, lease: Lease) -> Events:
        """Open a stream and read its first event, of which anything but an error is a success."""
        exchange = opening.exchange
        attempt = self._pipeline.attempt(exchange, spec, lease)
        with ExitStack() as stack:
            stack.enter_context(attempt)
            remaining_s = attempt.remaining_s()
            stream = attempt.upstream = self._transport.open_stream(lease.server, opening.call)
            first = await stream.next(remaining_s)
            if isinstance(first, Fault):
                raise first
            if first is None:
                return Events(exchange, None)
            text = _encoded(first, opening.turn)
            stack.pop_all()
        lease.heard(exchange.clock())
        exchange.server = lease.server
        return StreamedEvents(
            exchange,
            text,
            attempt=attempt,
            stream=stream,
            idle_s=opening.idle_s,
            turn=opening.turn,
        )


def _nothing() -> None:
    pass


def _encoded(reply: InferReply, turn: Turn | None) -> bytes:
    if turn is not None:
        turn.restore(reply)
    return encode_generated(reply)
