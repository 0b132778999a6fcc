"""The handler of the API listener: one request in, one answer out, one settlement.

Called by aiohttp's low-level server for each request. Whatever happens, the exchange is settled
exactly once, also when the client leaves half-way, which arrives here as a cancellation.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from aiohttp import hdrs, web

from gateway.edge.answers import JSON, SERVER, Answer, fault_answer
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.metadata import Handler
from gateway.edge.receive import REQUEST_ID, BodyLimits, Inbound, read_body, request_id, timeout_s
from gateway.edge.response import WholeResponse
from gateway.edge.routes import Route, match
from gateway.exchange import Exchange
from gateway.faults import Fault, Kind, Origin
from gateway.pipeline import AnsweredInfer, Pipeline, ReceivedInfer
from gateway.ports import Clock, Observer

HEADER_LENGTH = "Inference-Header-Content-Length"
_BINARY = "application/octet-stream"
_log = logging.getLogger(__name__)


class Api:
    """Answers the requests of the API listener."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        handlers: Mapping[str, Handler],
        observer: Observer,
        body_limits: BodyLimits,
        inbound: Inbound,
        forwarded: ForwardedHeaders,
        draining: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._handlers = handlers
        self._observer = observer
        self._body_limits = body_limits
        self._inbound = inbound
        self._forwarded = forwarded
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
        try:
            answer = await self._answer(exchange, request)
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
            self._inbound.release(exchange.bytes_in)
            self._settle(exchange)

    async def _answer(self, exchange: Exchange, request: web.BaseRequest) -> Answer:
        try:
            return await self._dispatch(exchange, request)
        except Fault as fault:
            exchange.fault = fault.without_frames()
        except Exception as error:
            _log.exception("request %s failed inside the gateway", exchange.request_id)
            exchange.fault = Fault(
                Kind.INTERNAL,
                "internal error of the gateway",
                origin=Origin.GATEWAY,
                detail=repr(error),
            )
        answer = fault_answer(exchange.fault)
        answer.close = not request.content.is_eof()
        return answer

    async def _dispatch(self, exchange: Exchange, request: web.BaseRequest) -> Answer:
        exchange.path = request.raw_path
        exchange.timeout_s = timeout_s(request)
        # The body before the route: left unread, it would make the connection useless.
        body = await read_body(
            request, self._body_limits, self._inbound, allowed_s=exchange.timeout_s
        )
        exchange.bytes_in = len(body)
        route = match(request.method, request.raw_path)
        exchange.route = route.name
        if route.name != "infer":
            return await self._handlers[route.name](route, body)
        received = _received(request, route, body)
        received.metadata, exchange.dropped_headers = self._forwarded.take(request.headers)
        return _infer_answer(await self._pipeline.infer(exchange, received))

    async def _write(
        self, exchange: Exchange, request: web.BaseRequest, answer: Answer
    ) -> web.StreamResponse:
        exchange.enter("reply")
        exchange.status = answer.status
        exchange.bytes_out = answer.length
        answer.headers[REQUEST_ID] = exchange.request_id
        answer.headers["Server"] = SERVER
        answer.headers["Server-Timing"] = _server_timing(exchange)
        response = WholeResponse(
            answer,
            close=answer.close or self._draining(),
            stall_s=self._body_limits.stall_s,
        )
        await response.prepare(request)
        await response.write_eof()
        return response

    async def _cut_off(self, exchange: Exchange, request: web.BaseRequest) -> None:
        """Tell the caller that the grace time is over, if there is still somebody to tell."""
        if exchange.status or request.transport is None or request.transport.is_closing():
            return
        exchange.fault = Fault(Kind.SHUTDOWN, "the gateway was shut down", origin=Origin.GATEWAY)
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


def _infer_answer(infer: AnsweredInfer) -> Answer:
    answer = Answer(parts=infer.parts, headers={"Content-Type": JSON})
    if infer.header_length is not None:
        answer.headers["Content-Type"] = _BINARY
        answer.headers[HEADER_LENGTH] = str(infer.header_length)
    if infer.encoding is not None:
        answer.headers[hdrs.CONTENT_ENCODING] = infer.encoding
    return answer


def _server_timing(exchange: Exchange) -> str:
    """Return the Server-Timing header: the gateway's own time and the upstream's, in ms."""
    own_ms = exchange.own_time_s * 1000
    if not exchange.attempts:
        return f"gateway;dur={own_ms:.3f}"
    return f"gateway;dur={own_ms:.3f}, upstream;dur={exchange.spent_s.get('send', 0.0) * 1000:.3f}"


def _client_gone() -> Fault:
    return Fault(Kind.CLIENT_GONE, "the client closed the connection", origin=Origin.CLIENT)
