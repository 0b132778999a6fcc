"""The API listener: aiohttp's low-level server on one socket.

The low-level server spares the router, middlewares and signals of an application; see
ARCHITECTURE.md for what that is worth. Handlers are cancelled when their client leaves, and
request bodies are not unpacked here: the codec does that, with a bound.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.edge.answers import JSON, SERVER, Answer, error_body
from gateway.edge.api import Api
from gateway.edge.receive import READ_BUFFER_BYTES, REQUEST_ID, discard_rest, request_id
from gateway.edge.response import WholeResponse

BACKLOG = 1024
_MAX_HEADERS = 256
_STALL_S = 60.0
_TOO_LATE_BODY = error_body("no whole request arrived in time")
_TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
) % (len(_TOO_LATE_BODY), _TOO_LATE_BODY)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the HTTP layer."""

    max_header_bytes: int
    header_timeout_s: float
    keepalive_timeout_s: float


class Protocol(RequestHandler):
    """aiohttp's connection, with Triton's shape for what it refuses by itself.

    A client that begins a request has `header_timeout_s` for its head; aiohttp itself would wait
    for ever, also for the first request on a connection.
    """

    __slots__ = ("_head_timer", "header_timeout_s")

    header_timeout_s: float

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a request; called by the event loop."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take in what came; called by the event loop."""
        super().data_received(data)
        if self._messages or self._current_request is not None or self._request_in_progress:
            self._stop_expecting()
        elif self._head_timer is None:
            self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Expect nothing any more; called by the event loop."""
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_timer = self._loop.call_later(self.header_timeout_s, self._give_up)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(_TOO_LATE)
            self.force_close()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is under way on it."""
        if self._waiter is not None and not self._messages:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that never became one (bad HTTP, too long a line)."""
        ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(exc, ConnectionError)
        log = self.logger.error if ours else self.log_debug
        log("a request was ended by the server: %s", message or status, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was already begun")
        text = "malformed HTTP request" if status < 500 else "internal error of the gateway"
        headers = {"Content-Type": JSON, REQUEST_ID: request_id(request), "Server": SERVER}
        return WholeResponse(
            Answer(status, (error_body(text),), headers), close=True, stall_s=_STALL_S
        )


class _Server(web.Server):
    header_timeout_s: float

    def limit(self, limits: HttpLimits) -> None:
        """Bound the connections that are made from now on."""
        self._kwargs.update(
            keepalive_timeout=limits.keepalive_timeout_s,
            max_line_size=limits.max_header_bytes,
            max_field_size=limits.max_header_bytes,
        )
        self.header_timeout_s = limits.header_timeout_s

    def __call__(self) -> RequestHandler:
        protocol = Protocol(self, loop=self._loop, **self._kwargs)
        protocol.header_timeout_s = self.header_timeout_s
        return protocol


class Listener:
    """Accepts connections on a bound socket and hands their requests to the API.

    `current` returns the API that answers a request beginning now; `cut_off` ends all requests.
    """

    def __init__(
        self,
        current: Callable[[], Api],
        sock: socket.socket,
        *,
        cut_off: Callable[[], None],
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._current = current
        self._cut_off = cut_off
        self._socket = sock
        self._limits = limits
        self._tls = tls
        self._server: _Server | None = None
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        self._server = self._make_server()
        loop = asyncio.get_running_loop()
        self._accepting = await loop.create_server(
            self._server, sock=self._socket, ssl=self._tls, backlog=BACKLOG
        )

    def _make_server(self) -> _Server:
        server = _Server(
            self._handle,
            handler_cancellation=True,
            lingering_time=0,  # `discard_rest` does it
            auto_decompress=False,
            access_log=None,
            logger=logging.getLogger("gateway.http"),
            max_headers=_MAX_HEADERS,
            read_bufsize=READ_BUFFER_BYTES,
        )
        server.limit(self._limits)
        return server

    def limit(self, limits: HttpLimits) -> None:
        """Set other bounds for the connections that are made from now on."""
        self._limits = limits
        if self._server is not None:
            self._server.limit(limits)

    def stop_accepting(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._accepting is not None:
            self._accepting.close()

    async def close(self, *, timeout_s: float) -> None:
        """Close every connection; requests under way are cut off and get `timeout_s` to say so."""
        if self._server is not None:
            self._cut_off()
            self._server.pre_shutdown()
            await self._server.shutdown(timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._current().handle(request)
        if not request.content.is_eof():
            await discard_rest(request)
        return response
