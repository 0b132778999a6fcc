"""The API listener: aiohttp's low-level server on one socket.

The low-level server spares the router, middlewares and signals of an application; see
ARCHITECTURE.md for what that is worth. Handlers are cancelled when their client leaves, and
request bodies are not unpacked here: the codec does that, with a bound.
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.edge.answers import JSON, SERVER, Answer, error_body
from gateway.edge.api import Api
from gateway.edge.receive import READ_BUFFER_BYTES, REQUEST_ID, request_id
from gateway.edge.response import WholeResponse

_BACKLOG = 1024
_MAX_HEADERS = 256
_STALL_S = 60.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the HTTP layer."""

    max_header_bytes: int
    keepalive_timeout_s: float


class _Protocol(RequestHandler):
    """aiohttp's connection, with Triton's shape for what it refuses by itself."""

    __slots__ = ()

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
    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class Listener:
    """Accepts connections on a bound socket and hands their requests to the API."""

    def __init__(
        self,
        api: Api,
        sock: socket.socket,
        *,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._api = api
        self._socket = sock
        self._limits = limits
        self._tls = tls
        self._server: _Server | None = None
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        self._server = _Server(
            self._api.handle,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=logging.getLogger("gateway.http"),
            keepalive_timeout=self._limits.keepalive_timeout_s,
            max_line_size=self._limits.max_header_bytes,
            max_field_size=self._limits.max_header_bytes,
            max_headers=_MAX_HEADERS,
            read_bufsize=READ_BUFFER_BYTES,
        )
        loop = asyncio.get_running_loop()
        self._accepting = await loop.create_server(
            self._server, sock=self._socket, ssl=self._tls, backlog=_BACKLOG
        )

    def stop_accepting(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._accepting is not None:
            self._accepting.close()

    async def close(self, *, timeout_s: float) -> None:
        """Close every connection; requests under way are cut off and get `timeout_s` to say so."""
        if self._server is not None:
            self._api.cut_off()
            self._server.pre_shutdown()
            await self._server.shutdown(timeout_s)
