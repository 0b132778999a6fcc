"""One HTTP/2 connection to a server, and the calls on it.

Decides when what is sent and what an answer means for its call. Refuses to know how connections
come about and whether a call is worth another try. Called by `gateway.upstream.channels`.

Frames of one turn of the event loop are written together. Replies are taken in as fast as they
come: each is bounded by `max_reply_bytes`, and somebody waits for it. Of the replies to a
`StreamCall`, no more come than it has room for.
"""

import asyncio
import logging
from collections import deque
from typing import Protocol, cast

import grpc

from gateway.upstream.http2 import frames
from gateway.upstream.http2.call import REPLY_WINDOW, Call
from gateway.upstream.http2.frames import ErrorCode
from gateway.upstream.http2.headers import Blocks, Fields
from gateway.upstream.http2.sending import Sender

_OURS = {
    frames.HEADER_TABLE_SIZE: 0,
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: REPLY_WINDOW,
    frames.MAX_FRAME_SIZE: 131_072,
}
_MAX_FRAME_BYTES = _OURS[frames.MAX_FRAME_SIZE]
_TOP_UP_BYTES = 1024 * 1024
_PING_ANSWERED_WITHIN_S = 20.0
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
        self._blocks = Blocks(max_header_bytes)
        self._streams: dict[int, Call] = {}
        self._next_stream = 1
        self._max_streams = frames.MAX_STREAM_ID
        self._queued: deque[Call] = deque()
        self._sender = Sender(self._loop)
        self._put = self._sender.put
        self._stream_window = frames.DEFAULT_WINDOW
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
        self._sender.request(call)

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

    def _forget(self, call: Call) -> None:
        del self._streams[call.stream]
        while self._queued and len(self._streams) < self._max_streams and self.usable:
            self.start(self._queued.popleft())
        if not self.usable and self.idle:
            self._loop.call_soon(self._end, "replaced")

    # --- the wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves; called by the event loop."""
        self._sender.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
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

    def _end(self, reason: str) -> None:
        """Close, and end every call that is left."""
        transport, self._sender.transport = self._sender.transport, None
        if transport is None:
            return
        reason = self._reason or reason
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
                self._sender.frame_bytes = max(value, frames.DEFAULT_FRAME_BYTES)
            elif setting == frames.INITIAL_WINDOW_SIZE:
                for call in self._streams.values():
                    call.window += value - self._stream_window
                self._stream_window = value
        self._put(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._sender.go_on()
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
            self._sender.window += amount
        elif call := self._streams.get(stream):
            call.window += amount
        self._sender.go_on()
