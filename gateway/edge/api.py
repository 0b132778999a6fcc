"""The handler of the API listener: one request in, one answer out, one settlement.

Called by aiohttp's low-level server for each request. Whatever happens, the exchange is settled
exactly once, also when the client leaves half-way, which arrives here as a cancellation.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import hdrs, web

from gateway.edge.access import EVERYTHING, Access
from gateway.edge.answers import JSON, SERVER, Answer, error_body, fault_answer
from gateway.edge.authentication import Authentication
from gateway.edge.control import Asked, ControlHandler
from gateway.edge.event_response import EventResponse
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.limits import LimitHeaders
from gateway.edge.metadata import Handler
from gateway.edge.receive import REQUEST_ID, BodyLimits, Inbound, read_body, request_id, timeout_s
from gateway.edge.response import WholeResponse
from gateway.edge.restricted import Restrictions
from gateway.edge.routes import Route, match
from gateway.exchange import ANONYMOUS, INFERENCE, Exchange
from gateway.faults import Blame, Fault, Kind, Origin
from gateway.pipeline import AnsweredInfer, Pipeline, ReceivedInfer
from gateway.ports import Clock, Observer
from gateway.streams import Events, Streams
from routing.errors import RoutingError

HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "application/octet-stream"
_EVENTS = "text/event-stream; charset=utf-8"
# What stands between must neither keep events nor collect them first.
_EVENT_HEADERS = {
    "Content-Type": _EVENTS,
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
_log = logging.getLogger(__name__)


class Api:
    """Answers the requests of the API listener.

    `authentication` is None where callers are not asked who they are; `unknown_model` returns what
    is said of a model that is not there.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        streams: Streams,
        handlers: Mapping[str, Handler],
        controls: Mapping[str, ControlHandler],
        restrictions: Restrictions,
        observer: Observer,
        body_limits: BodyLimits,
        inbound: Inbound,
        forwarded: ForwardedHeaders,
        authentication: Authentication | None,
        unknown_model: Callable[[str], RoutingError],
        older_limit_headers: bool,
        draining: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._streams = streams
        self._handlers = handlers
        self._controls = controls
        self._restrictions = restrictions
        self._observer = observer
        self._body_limits = body_limits
        self._inbound = inbound
        self._forwarded = forwarded
        self._authentication = authentication
        self._unknown_model = unknown_model
        self._limit_headers = LimitHeaders(older=older_limit_headers)
        self._draining = draining
        self._clock = clock
        self._running: set[asyncio.Task[object]] = set()

    @property
    def in_flight(self) -> int:
        """The requests under way."""
        return len(self._running)

    def cut_off(self) -> None:
        """End every request under way: the time for them is over."""
        for task in tuple(self._running):
            task.cancel()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        exchange = Exchange(
            request_id=request_id(request),
            caller=request.remote or "",
            route="unknown",
            clock=self._clock,
            started_s=self._clock(),
        )
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        holds_body = True
        try:
            answer = await self._answer(exchange, request)
            if isinstance(answer, Events):
                self._inbound.release(exchange.bytes_in)  # it was sent on
                holds_body = False
                return await self._write_events(exchange, request, answer)
            return await self._write(exchange, request, answer)
        except asyncio.CancelledError:
            if self._draining():
                await self._cut_off(exchange, request)
            exchange.fault = exchange.fault or _client_gone()
            raise
        except ConnectionError:
            exchange.fault = exchange.fault or _client_gone()
            raise
        finally:
            self._running.discard(task)
            if holds_body:
                self._inbound.release(exchange.bytes_in)
            self._settle(exchange)

    async def _answer(self, exchange: Exchange, request: web.BaseRequest) -> Answer | Events:
        try:
            return await self._dispatch(exchange, request)
        except Fault as fault:
            exchange.fault = fault.without_frames()
        except Exception as error:
            exchange.fault = _internal(exchange, error)
        answer = fault_answer(exchange.fault)
        if exchange.route == "generate_stream" and _is_the_models(exchange.fault):
            answer.parts = [b"data: %b\n\n" % part for part in answer.parts]
            answer.headers["Content-Type"] = _EVENTS
        answer.close = not request.content.is_eof()
        return answer

    async def _dispatch(self, exchange: Exchange, request: web.BaseRequest) -> Answer | Events:
        # Without the query, which nothing needs and which may hold what was meant for a header.
        exchange.path = request.raw_path.partition("?")[0]
        access = EVERYTHING
        if self._authentication is not None:
            access = await self._authentication.admit(exchange, request)
        body = await self._read(exchange, request) if access.known else b""
        route = self._route(exchange, request, access)
        if route.name in INFERENCE:
            return await self._infer(exchange, request, route, body)
        if route.name in self._controls:
            exchange.enter("send")
            return await self._controls[route.name](_asked(exchange, request, route, body))
        answer = await self._handlers[route.name](route, body)
        answer.close = not request.content.is_eof()
        return answer

    def _route(self, exchange: Exchange, request: web.BaseRequest, access: Access) -> Route:
        """Return the route with what its caller may do there. Raises Fault."""
        permit = partial(self._restrictions.check, request.headers) if self._restrictions else None
        route = match(request.method, request.raw_path, permit)
        exchange.route, route.access = route.name, access
        if route.model and not access.may_use(route.model) and route.name != "model_ready":
            raise Fault.of_routing(self._unknown_model(route.model))
        return route

    async def _infer(
        self, exchange: Exchange, request: web.BaseRequest, route: Route, body: bytes
    ) -> Answer | Events:
        received = _received(request, route, body)
        received.metadata, exchange.dropped_headers = self._forwarded.take(request.headers)
        if route.name == "infer":
            return _infer_answer(await self._pipeline.infer(exchange, received))
        if route.name == "generate":
            document = await self._streams.generate(exchange, received)
            return Answer(parts=(document,), headers={"Content-Type": JSON})
        return await self._streams.generate_stream(exchange, received)

    async def _read(self, exchange: Exchange, request: web.BaseRequest) -> bytes:
        """Read the body, before the route is known: left unread, it would cost the connection."""
        exchange.timeout_s = timeout_s(request)
        body = await read_body(
            request, self._body_limits, self._inbound, allowed_s=exchange.timeout_s
        )
        exchange.bytes_in = len(body)
        return body

    async def _write(
        self, exchange: Exchange, request: web.BaseRequest, answer: Answer
    ) -> web.StreamResponse:
        exchange.enter("reply")
        exchange.status = answer.status
        exchange.bytes_out = answer.length
        answer.headers |= self._gateway_headers(exchange)
        response = WholeResponse(
            answer,
            close=answer.close or self._draining(),
            stall_s=self._body_limits.stall_s,
        )
        await response.prepare(request)
        await response.write_eof()
        return response

    def _gateway_headers(self, exchange: Exchange) -> dict[str, str]:
        headers = {
            REQUEST_ID: exchange.request_id,
            "Server": SERVER,
            "Server-Timing": _server_timing(exchange),
        }
        if exchange.limits:
            headers |= self._limit_headers.of(exchange)
        return headers

    async def _write_events(
        self, exchange: Exchange, request: web.BaseRequest, events: Events
    ) -> web.StreamResponse:
        exchange.enter("reply")
        exchange.status = 200
        response = EventResponse(
            _EVENT_HEADERS | self._gateway_headers(exchange),
            close=self._draining(),
            stall_s=self._body_limits.stall_s,
        )
        try:
            await self._pass_on(exchange, request, events, response)
        except Fault as fault:
            exchange.fault = fault.without_frames()
        except asyncio.CancelledError:
            if not self._draining():
                raise
            exchange.fault = _shut_down()
        except ConnectionError:
            raise
        except Exception as error:
            exchange.fault = _internal(exchange, error)
        else:
            return response
        finally:
            events.close()
        await response.cut_off(error_body(exchange.fault.message))
        return response

    async def _pass_on(
        self,
        exchange: Exchange,
        request: web.BaseRequest,
        events: Events,
        response: EventResponse,
    ) -> None:
        await response.prepare(request)
        while (event := await events.next()) is not None:
            document = error_body(event.message) if isinstance(event, Fault) else event
            exchange.bytes_out += await response.send(document, within_s=exchange.remaining_s())
        await response.write_eof()

    async def _cut_off(self, exchange: Exchange, request: web.BaseRequest) -> None:
        """Tell the caller that the grace time is over, if there is still somebody to tell."""
        if exchange.status or request.transport is None or request.transport.is_closing():
            return
        exchange.fault = _shut_down()
        with contextlib.suppress(ConnectionError):
            await self._write(exchange, request, fault_answer(exchange.fault))

    def _settle(self, exchange: Exchange) -> None:
        exchange.enter("settle")
        if exchange.fault is not None and not exchange.status:
            exchange.status = fault_answer(exchange.fault).status
        exchange.end()
        self._observer.observe(exchange)


def _received(request: web.BaseRequest, route: Route, body: bytes) -> ReceivedInfer:
    headers = request.headers
    return ReceivedInfer(
        model=route.model,
        version=route.version,
        body=body,
        content_encoding=headers.get(hdrs.CONTENT_ENCODING, ""),
        accept_encoding=headers.get(hdrs.ACCEPT_ENCODING),
        header_lengths=headers.getall(HEADER_LENGTH, []),
        header=headers.get,
    )


def _asked(exchange: Exchange, request: web.BaseRequest, route: Route, body: bytes) -> Asked:
    return Asked(
        route=route,
        body=body,
        headers=request.headers,
        query=request.raw_path.partition("?")[2].partition("#")[0],
        caller=_who(exchange),
        timeout_s=exchange.timeout_s,
    )


def _who(exchange: Exchange) -> str:
    """Return who asks, for the record."""
    known = exchange.tenant != ANONYMOUS
    return f"{exchange.tenant} at {exchange.caller}" if known else exchange.caller


def _infer_answer(infer: AnsweredInfer) -> Answer:
    answer = Answer(parts=infer.parts, headers={"Content-Type": JSON})
    if infer.header_length is not None:
        answer.headers["Content-Type"] = _BINARY
        answer.headers[HEADER_LENGTH] = str(infer.header_length)
    if infer.encoding is not None:
        answer.headers[hdrs.CONTENT_ENCODING] = infer.encoding
    return answer


def _is_the_models(fault: Fault) -> bool:
    """Whether a model reported it: in a stream that is an event even when it is the first one."""
    return fault.origin is Origin.UPSTREAM and fault.blame in (Blame.VERSION, Blame.FATAL)


def _server_timing(exchange: Exchange) -> str:
    """Return the Server-Timing header: the gateway's own time and the upstream's, in ms."""
    own_ms = exchange.own_time_s * 1000
    if not exchange.attempts:
        return f"gateway;dur={own_ms:.3f}"
    return f"gateway;dur={own_ms:.3f}, upstream;dur={exchange.spent_s.get('send', 0.0) * 1000:.3f}"


def _internal(exchange: Exchange, error: Exception) -> Fault:
    _log.error("request %s failed inside the gateway", exchange.request_id, exc_info=error)
    return Fault(
        Kind.INTERNAL,
        "internal error of the gateway",
        origin=Origin.GATEWAY,
        detail=repr(error),
    )


def _shut_down() -> Fault:
    return Fault(Kind.SHUTDOWN, "the gateway was shut down", origin=Origin.GATEWAY)


def _client_gone() -> Fault:
    return Fault(Kind.CLIENT_GONE, "the client closed the connection", origin=Origin.CLIENT)
