"""A complete answer, written at once: status line, headers and body in one go.

aiohttp's own Response prepares headers in a mapping, adds some and writes in two steps; for answers
that are known from their first to their last byte that is a third of the server's whole cost.
"""

import asyncio
import math
from http import HTTPStatus

from aiohttp import web
from aiohttp.http import HttpVersion10

from gateway.edge.answers import Answer

DRAIN_FROM_BYTES = 64 * 1024
"""More unsent bytes than this are waited for."""
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


async def drain(
    request: web.BaseRequest,
    transport: asyncio.Transport,
    *,
    stall_s: float,
    within_s: float = math.inf,
) -> None:
    """Wait until the client has taken what was written, as long as it takes any of it at all.

    Cuts it off and raises ConnectionResetError after `stall_s` without progress, or `within_s`.
    """
    now = asyncio.get_running_loop().time
    end_s = now() + within_s
    left = transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(min(stall_s, end_s - now())):
                await request.writer.drain()
            return
        except TimeoutError:
            before, left = left, transport.get_write_buffer_size()
            if left >= before or now() >= end_s:
                transport.abort()
                raise ConnectionResetError("the client stopped reading") from None


class WholeResponse(web.StreamResponse):
    """What aiohttp is given for an `Answer`; header values must be free of line breaks.

    A client that takes nothing of a large answer for `stall_s` is cut off.
    """

    def __init__(self, answer: Answer, *, close: bool, stall_s: float) -> None:
        super().__init__(status=answer.status)
        self._answer = answer
        self._stall_s = stall_s
        if close:
            self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Note the request that is answered; called by aiohttp, possibly twice."""
        self._req = request
        if self.keep_alive is None:
            self._keep_alive = request.keep_alive

    async def write_eof(self, data: bytes = b"") -> None:
        """Write everything; called by aiohttp, possibly twice. Raises ConnectionResetError."""
        request, self._req = self._req, None
        if self._eof_sent or request is None:
            return
        self._eof_sent = True
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        head = self._head(request)
        parts = [] if request.method == "HEAD" else self._answer.parts
        transport.writelines([head, *parts])
        request.writer.output_size += len(head) + self._answer.length
        if self._answer.length >= DRAIN_FROM_BYTES:
            await drain(request, transport, stall_s=self._stall_s)

    def _head(self, request: web.BaseRequest) -> bytes:
        answer = self._answer
        version = "1.1"
        connection = "" if self.keep_alive else "Connection: close\r\n"
        if request.version == HttpVersion10:
            version = "1.0"
            connection = "Connection: keep-alive\r\n" if self.keep_alive else ""
        lines = "".join([f"{name}: {value}\r\n" for name, value in answer.headers.items()])
        return (
            f"HTTP/{version} {answer.status} {_PHRASES[answer.status]}\r\n"
            f"{lines}Content-Length: {answer.length}\r\n{connection}\r\n"
        ).encode("latin-1")
