"""Server-sent events: the head at once, then one chunk for each event as it comes.

Decides framing, and how a client learns that events are missing: the body ends without the end that
HTTP wants, so no client takes it for a whole one. HTTP/1.0 has no such end but the connection's:
there every close but the regular one is a reset. Refuses to know what events are. Called by the
API's handler, and by aiohttp as any response.
"""

import asyncio
import contextlib
import socket
import struct

from aiohttp import web
from aiohttp.http import HttpVersion11

from gateway.edge.response import DRAIN_FROM_BYTES, drain

_FLUSH_S = 1.0
"""How long a client that is cut off has to take what it was told last."""
_RESET_ON_CLOSE, _CLOSE_REGULARLY = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)  # SO_LINGER


class EventResponse(web.StreamResponse):
    """An event stream. Header values must be free of line breaks.

    A client that takes nothing of what is written for `stall_s` is cut off.
    """

    def __init__(self, headers: dict[str, str], *, close: bool, stall_s: float) -> None:
        super().__init__()
        self._head = headers
        self._stall_s = stall_s
        self._chunked_body = True
        if close:
            self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the head; called by aiohttp once more at the end."""
        if self._req is not None or self._eof_sent:
            return
        self._req = request
        self._chunked_body = request.version >= HttpVersion11
        if not self._chunked_body:
            self.force_close()
        if self.keep_alive is None:
            self._keep_alive = request.keep_alive
        transport = self._write(self._head_bytes())
        if not self._chunked_body:
            _linger(transport, _RESET_ON_CLOSE)

    async def send(self, document: bytes, *, within_s: float) -> int:
        """Write one event and return its length unframed; wait while too much is not taken.

        Raises ConnectionResetError when it is gone or takes nothing, at the latest `within_s` from
        now.
        """
        event = b"data: %b\n\n" % document
        transport = self._write(self._framed(event))
        if transport.get_write_buffer_size() >= DRAIN_FROM_BYTES:
            assert self._req is not None
            await drain(self._req, transport, stall_s=self._stall_s, within_s=within_s)
        return len(event)

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the regular end; called by aiohttp, possibly twice."""
        if self._eof_sent:
            return
        self._eof_sent = True
        transport = self._write(b"0\r\n\r\n" if self._chunked_body else b"")
        if not self._chunked_body:
            _linger(transport, _CLOSE_REGULARLY)
        self._req = None

    async def cut_off(self, document: bytes) -> None:
        """Write one last event and end the connection without the regular end of the body."""
        self._eof_sent = True
        self.force_close()
        request = self._req
        transport = request.transport if request is not None else None
        if request is None or transport is None or transport.is_closing():
            return
        transport.set_write_buffer_limits(0)  # whatever is unsent is waited for
        self._write(self._framed(b"data: %b\n\n" % document))
        with contextlib.suppress(ConnectionError):
            await drain(request, transport, stall_s=_FLUSH_S, within_s=_FLUSH_S)
        transport.abort()

    def _framed(self, event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked_body else event

    def _write(self, data: bytes) -> asyncio.Transport:
        request = self._req
        transport = request.transport if request is not None else None
        if request is None or transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        transport.write(data)
        request.writer.output_size += len(data)
        return transport

    def _head_bytes(self) -> bytes:
        lines = dict(self._head)
        if self._chunked_body:
            lines["Transfer-Encoding"] = "chunked"
        if not self.keep_alive:
            lines["Connection"] = "close"
        version = "1.1" if self._chunked_body else "1.0"
        text = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
        return f"HTTP/{version} 200 OK\r\n{text}\r\n".encode("latin-1")


def _linger(transport: asyncio.Transport, how: bytes) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
