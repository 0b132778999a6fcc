"""What goes out on one connection: frames of one turn together, bodies as the windows allow.

Decides how much of which call is sent when. Refuses to know what comes back. Called by
`gateway.upstream.http2.connection`.
"""

import asyncio
import struct
from collections import deque

from gateway.upstream.http2 import frames
from gateway.upstream.http2.call import PREFIX_BYTES, Call, Part

_JOINED_BYTES = 65_536
_PREFIX = struct.Struct(">BI")


class Sender:
    """The outgoing half of a connection. `window` and `frame_bytes` are the other end's bounds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.transport: asyncio.Transport | None = None
        self.window = frames.DEFAULT_WINDOW
        self.frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._out: list[Part] = []
        self._held_back: deque[Call] = deque()

    def put(self, data: Part) -> None:
        """Send bytes at the end of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def request(self, call: Call) -> None:
        """Send a call that has its stream; as much of its message as the windows allow at once."""
        self._headers(call)
        size = call.size + PREFIX_BYTES
        if size <= min(self.window, call.window, self.frame_bytes) and not self._held_back:
            self.window -= size
            call.window -= size
            self.put(frames.header(size, frames.DATA, frames.END_STREAM, call.stream))
            self.put(_PREFIX.pack(0, call.size))
            self._out += call.parts
        else:
            call.left = size
            call.unsent = deque(
                (_PREFIX.pack(0, call.size), *(memoryview(part) for part in call.parts))
            )
            self._held_back.append(call)
            self.go_on()

    def go_on(self) -> None:
        """Send what the windows allow by now, a frame of each call in turn."""
        waiting, stalled = self._held_back, 0
        while waiting and self.window > 0 and stalled < len(waiting):
            call = waiting.popleft()
            if call.unsent is None:
                continue  # ended meanwhile
            if call.window > 0:
                stalled = 0
                self._frame(call, call.unsent)
            else:
                stalled += 1
            if call.unsent is not None:
                waiting.append(call)

    def _headers(self, call: Call) -> None:
        block, stream, most = call.block, call.stream, self.frame_bytes
        if len(block) <= most:
            self.put(frames.header(len(block), frames.HEADERS, frames.END_HEADERS, stream))
            self.put(block)
            return
        for at in range(0, len(block), most):
            kind = frames.CONTINUATION if at else frames.HEADERS
            flags = frames.END_HEADERS if at + most >= len(block) else 0
            self.put(frames.frame(kind, flags, stream, block[at : at + most]))

    def _frame(self, call: Call, unsent: deque[Part]) -> None:
        size = min(self.window, call.window, self.frame_bytes, call.left)
        call.left -= size
        call.window -= size
        self.window -= size
        flags = 0 if call.left else frames.END_STREAM
        self.put(frames.header(size, frames.DATA, flags, call.stream))
        while size:
            part = unsent.popleft()
            if len(part) > size:
                unsent.appendleft(part[size:])
                part = part[:size]
            self._out.append(part)
            size -= len(part)
        if not call.left:
            call.unsent = None

    def _flush(self) -> None:
        out, self._out = self._out, []
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if sum(map(len, out)) <= _JOINED_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
