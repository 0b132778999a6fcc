"""One HTTP/2 connection to a server, and the calls on it.

Decides when what is sent and what an answer means for its call. Refuses to know how connections
come about and whether a call is worth another try. Called by `gateway.upstream.channels`.

Frames of one turn of the event loop are written together. Replies are taken in as fast as they
come: each is bounded by `max_reply_bytes`, and somebody waits for it. Of the replies to a
`StreamCall`, no more come than it has room for.
"""

import asyncio
import logging
import struct
from collections import deque
from typing import Protocol, cast

import grpc

from gateway.upstream.http2 import frames
from gateway.upstream.http2.call import PREFIX_BYTES, REPLY_WINDOW, Call, Part
from gateway.upstream.http2.frames import ErrorCode
from gateway.upstream.http2.headers import Blocks, Fields

_OURS = {
    frames.HEADER_TABLE_SIZE: 0,
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: REPLY_WINDOW,
    frames.MAX_FRAME_SIZE: 131_072,
}
_MAX_FRAME_BYTES = _OURS[frames.MAX_FRAME_SIZE]
_TOP_UP_BYTES = 1024 * 1024
_JOINED_BYTES = 65_536
_PING_ANSWERED_WITHIN_S = 20.0
_PREFIX = struct.Struct(">BI")
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_Code = grpc.StatusCode
_OF_RESET = {
    ErrorCode.CANCEL: _Code.CANCELLED,
    ErrorCode.REFUSED_STREAM: _Code.UNAVAILABLE,
    ErrorCode.ENHANCE_YOUR_CALM: _Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: _Code.PERMISSION_DENIED,
}
_OF_HTTP = {
    "401": _Code.UNAUTHENTICATED,
    "403": _Code.PERMISSION_DENIED,
    "404": _Code.UNIMPLEMENTED,
    **dict.fromkeys(("429", "502", "503", "504"), _Code.UNAVAILABLE),
}
NO_CONNECTION = "no connection to"
NOT_TAKEN = "the call was not taken by"
CONNECTION_LOST = "lost the connection to"
"""What the details of errors begin with that no server has sent, all of them UNAVAILABLE."""
_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Whoever opened the connection."""

    def lost(self, connection: "Connection") -> None:
        """Take note that no call may be started on the connection any more."""

    def send_again(self, call: Call) -> None:
        """Start a call anew that the server is known not to have taken."""


class Connection(asyncio.Protocol):
    """One connection. `ready` is done when the other end has shown that it speaks HTTP/2."""

    def __init__(
        self,
        owner: Owner,
        *,
        target: str,
        max_reply_bytes: int,
        max_header_bytes: int,
        keepalive_interval_s: float,
    ) -> None:
        self._owner = owner
        self._target = target
        self._max_reply_bytes = max_reply_bytes
        self._max_header_bytes = max_header_bytes
        self._keepalive_interval_s = keepalive_interval_s
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.usable = False
        self.confirmed = False
        self._transport: asyncio.Transport | None = None
        self._blocks = Blocks(max_header_bytes)
        self._streams: dict[int, Call] = {}
        self._next_stream = 1
        self._max_streams = frames.MAX_STREAM_ID
        self._queued: deque[Call] = deque()
        self._held_back: deque[Call] = deque()
        self._window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._out: list[Part] = []
        self._rest = b""
        self._taken = 0
        self._block: bytearray | None = None
        self._block_of = (0, 0)
        self._reason: str | None = None
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None
        self._handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.CONTINUATION: self._on_continuation,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # --- the calls

    def start(self, call: Call) -> None:
        """Put a call on the wire, or in line if the server takes no more of them at once."""
        if len(self._streams) >= self._max_streams:
            self._queued.append(call)
            call.connection = self
            return
        stream = self._next_stream
        self._next_stream = stream + 2
        if self._next_stream > frames.MAX_STREAM_ID:
            self._retire()
        call.connection, call.stream, call.window = self, stream, self._stream_window
        self._streams[stream] = call
        self._put_headers(call)
        size = call.size + PREFIX_BYTES
        if size <= min(self._window, call.window, self._frame_bytes) and not self._held_back:
            self._window -= size
            call.window -= size
            self._put(frames.header(size, frames.DATA, frames.END_STREAM, stream))
            self._put(_PREFIX.pack(0, call.size))
            self._out += call.parts
        else:
            call.left = size
            call.unsent = deque(
                (_PREFIX.pack(0, call.size), *(memoryview(part) for part in call.parts))
            )
            self._held_back.append(call)
            self._send_held_back()

    def cancel(self, call: Call) -> None:
        """Take a call off the connection and have the server stop it."""
        if self._streams.get(call.stream) is call:
            self._forget(call)
            self._put(frames.reset(call.stream, ErrorCode.CANCEL))
        elif call in self._queued:
            self._queued.remove(call)

    def make_room(self, call: Call, size: int) -> None:
        """Let the server send so many bytes more of what it answers."""
        if self._streams.get(call.stream) is call:
            self._put(frames.window_update(call.stream, size))

    @property
    def idle(self) -> bool:
        """Whether there is no call on the connection."""
        return not self._streams and not self._queued

    def close(self) -> None:
        """Close the connection; calls on it end at once."""
        self._end("closed by the gateway")

    def _put_headers(self, call: Call) -> None:
        block, stream = call.block, call.stream
        if len(block) <= self._frame_bytes:
            self._put(frames.header(len(block), frames.HEADERS, frames.END_HEADERS, stream))
            self._put(block)
            return
        pieces = [
            block[at : at + self._frame_bytes] for at in range(0, len(block), self._frame_bytes)
        ]
        for at, piece in enumerate(pieces):
            kind = frames.CONTINUATION if at else frames.HEADERS
            flags = frames.END_HEADERS if at == len(pieces) - 1 else 0
            self._put(frames.frame(kind, flags, stream, piece))

    def _send_held_back(self) -> None:
        """Send what the windows allow, a frame of each call in turn."""
        waiting, stalled = self._held_back, 0
        while waiting and self._window > 0 and stalled < len(waiting):
            call = waiting.popleft()
            if call.unsent is None:
                continue  # ended meanwhile
            if call.window > 0:
                stalled = 0
                self._send_frame(call)
            else:
                stalled += 1
            if call.unsent is not None:
                waiting.append(call)

    def _send_frame(self, call: Call) -> None:
        assert call.unsent is not None
        size = min(self._window, call.window, self._frame_bytes, call.left)
        call.left -= size
        call.window -= size
        self._window -= size
        self._put(
            frames.header(size, frames.DATA, 0 if call.left else frames.END_STREAM, call.stream)
        )
        while size:
            part = call.unsent.popleft()
            if len(part) > size:
                call.unsent.appendleft(part[size:])
                part = part[:size]
            self._out.append(part)
            size -= len(part)
        if not call.left:
            call.unsent = None

    def _forget(self, call: Call) -> None:
        del self._streams[call.stream]
        while self._queued and len(self._streams) < self._max_streams and self.usable:
            self.start(self._queued.popleft())
        if not self.usable and self.idle:
            self._loop.call_soon(self._end, "replaced")

    # --- the wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves; called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._put(frames.PREFACE + frames.settings(_OURS))
        self._put(frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW))
        self._timer = self._loop.call_later(self._keepalive_interval_s, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        """Take in what came; called by the event loop."""
        self._heard = True
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        try:
            while size - at >= frames.HEADER_BYTES:
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                start = at + frames.HEADER_BYTES
                if length > _MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {length} bytes")
                if start + length > size:
                    break
                handle = self._handlers.get(data[at + 3])
                if handle is not None:
                    stream = frames.uint31(data, at + 5)
                    handle(data[at + 4], stream, data[start : start + length])
                at = start + length
        except ValueError as error:
            self._end(f"the server does not speak HTTP/2 as it should: {error}")
            return
        self._rest = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the connection is gone; called by the event loop."""
        reason = getattr(exc, "strerror", None) or str(exc) if exc else "Socket closed"
        self._end(reason)

    def _put(self, data: Part) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        if sum(map(len, out)) <= _JOINED_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def _end(self, reason: str) -> None:
        """Close, and end every call that is left."""
        if self._transport is None:
            return
        reason = self._reason or reason
        transport, self._transport = self._transport, None
        transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
            self.ready.exception()  # whoever opened the connection may have given up
        self._retire()
        streams, self._streams = self._streams, {}
        queued, self._queued = self._queued, deque()
        for call in streams.values():
            what = NOT_TAKEN if call.unsent is not None else CONNECTION_LOST
            call.fail(_Code.UNAVAILABLE, f"{what} {self._target}: {reason}")
        for call in queued:
            self._again(call, reason)

    def _retire(self) -> None:
        """Take no new calls; those that are under way may end."""
        if self.usable:
            self.usable = False
            self._owner.lost(self)

    def _again(self, call: Call, reason: str) -> None:
        if call.resent:
            call.fail(_Code.UNAVAILABLE, f"{NOT_TAKEN} {self._target}: {reason}")
            return
        call.resent = True
        call.forget_reply()
        self._owner.send_again(call)

    def _keep_alive(self) -> None:
        heard, self._heard = self._heard, False
        wait_s = self._keepalive_interval_s
        if not heard and self._streams:  # an idle server counts pings as a nuisance
            self._put(frames.frame(frames.PING, 0, 0, b"keepaliv"))
            self._timer = self._loop.call_later(_PING_ANSWERED_WITHIN_S, self._expect_ping)
            return
        self._timer = self._loop.call_later(wait_s, self._keep_alive)

    def _expect_ping(self) -> None:
        if self._heard:
            self._keep_alive()
        else:
            self._end("keepalive ping was not answered")

    # --- the frames

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= _TOP_UP_BYTES:
            self._put(frames.window_update(0, self._taken))
            self._taken = 0
        call = self._streams.get(stream)
        if call is None:
            return  # cancelled
        if flags & frames.PADDED:
            payload = frames.unpadded(payload, flags)
        expected = call.receive(payload)
        if expected > self._max_reply_bytes:
            self.cancel(call)
            sizes = f"{expected} vs. {self._max_reply_bytes}"
            text = f"CLIENT: Received message larger than max ({sizes})"
            call.fail(_Code.RESOURCE_EXHAUSTED, text)
        elif flags & frames.END_STREAM:
            self._finish(call, Fields(None, "", None, ""))
        elif expected > call.room:
            self.make_room(call, min(expected, frames.MAX_WINDOW - REPLY_WINDOW))
            call.room = expected

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & (frames.PADDED | frames.PRIORITY):
            payload = frames.unpadded(payload, flags)
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream, payload)
        else:
            self._block, self._block_of = bytearray(payload), (flags, stream)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or stream != self._block_of[1]:
            raise ValueError("a continuation of nothing")
        self._block += payload
        if len(self._block) > self._max_header_bytes:
            raise ValueError("endless headers")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(*self._block_of, block)

    def _on_block(self, flags: int, stream: int, block: bytes) -> None:
        fields = self._blocks.decode(block)
        call = self._streams.get(stream)
        if call is None:
            return
        if flags & frames.END_STREAM or fields.status not in (None, "200"):
            self._finish(call, fields)

    def _finish(self, call: Call, fields: Fields) -> None:
        """End a call by its trailers."""
        self._forget(call)
        if call.unsent is not None:  # answered before it was all there: keep the rest
            self._put(frames.reset(call.stream, ErrorCode.NO_ERROR))
        if fields.grpc_status == 0:
            call.succeed()
        elif fields.grpc_status is not None:
            code = _CODES.get(fields.grpc_status, _Code.UNKNOWN)
            call.fail(code, fields.grpc_message)
        elif fields.status is not None and fields.status != "200":
            code = _OF_HTTP.get(fields.status, _Code.UNKNOWN)
            call.fail(code, f"Received http2 header with status: {fields.status}")
        else:
            call.fail(_Code.INTERNAL, "the answer ended without a status")

    def _on_reset(self, _: int, stream: int, payload: bytes) -> None:
        call = self._streams.get(stream)
        if call is None:
            return
        self._forget(call)
        code = ErrorCode(frames.uint31(payload))
        reason = f"Received RST_STREAM with error code {code.value}"
        if code is ErrorCode.REFUSED_STREAM:
            self._again(call, reason)
        else:
            call.fail(_OF_RESET.get(code, _Code.INTERNAL), reason)

    def _on_settings(self, flags: int, _: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        for setting, value in frames.read_settings(payload):
            if setting == frames.MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif setting == frames.MAX_FRAME_SIZE:
                self._frame_bytes = max(value, frames.DEFAULT_FRAME_BYTES)
            elif setting == frames.INITIAL_WINDOW_SIZE:
                for call in self._streams.values():
                    call.window += value - self._stream_window
                self._stream_window = value
        self._put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_held_back()
        if not self.ready.done():
            self.usable = True
            self.ready.set_result(None)

    def _on_ping(self, flags: int, _: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self._put(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _: int, __: int, payload: bytes) -> None:
        last, code, debug = frames.uint31(payload), frames.uint31(payload, 4), payload[8:]
        if code != ErrorCode.NO_ERROR:
            said = debug[:200].decode(errors="replace")
            self._reason = f"GOAWAY received; error code: {code}; {said}"
            if ErrorCode(code) is ErrorCode.ENHANCE_YOUR_CALM:
                _log.warning(
                    "the server closes a connection for too many keepalive pings: raise"
                    " upstream.keepalive_interval_s (a stock Triton takes one in 300 s)"
                )
        self._retire()
        for stream, call in tuple(self._streams.items()):
            if stream > last:
                del self._streams[stream]
                self._again(call, "GOAWAY received")
        queued, self._queued = self._queued, deque()
        for call in queued:
            self._again(call, "GOAWAY received")
        if self.idle:
            self._end("GOAWAY received")

    def _on_window_update(self, _: int, stream: int, payload: bytes) -> None:
        amount = frames.uint31(payload)
        if stream == 0:
            self._window += amount
        elif call := self._streams.get(stream):
            call.window += amount
        self._send_held_back()
