"""One call, from before it is on a connection until its outcome is known.

`Call` has one reply, `StreamCall` any number of them.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from gateway.upstream.http2.connection import Connection

Part = bytes | memoryview
PREFIX_BYTES = 5  # of a gRPC message: compressed or not, and its length
REPLY_WINDOW = 1024 * 1024
"""What a server may send of the replies to one call without being told that there is room."""


class RpcError(Exception):
    """A call that ended without a reply."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


class Call:
    """One call. `block` is its header block, `parts` together its message.

    `on_end` runs once, when `reply` or `error` is set. `unsent` is what flow control has kept back
    so far, None when everything has left. `room` is how long a reply may be before the server has
    to be told that there is room for it.
    """

    __slots__ = (
        "_chunks", "_expected", "_received", "block", "connection", "ended", "error", "left",
        "on_end", "parts", "reply", "resent", "room", "size", "stream", "unsent", "window",
    )  # fmt: skip

    def __init__(
        self, block: bytes, parts: Sequence[Part], on_end: "Callable[[Call], None]"
    ) -> None:
        self.block = block
        self.parts = parts
        self.size = sum(map(len, parts))
        self.on_end = on_end
        self.connection: Connection | None = None
        self.stream = 0
        self.window = 0
        self.left = 0
        self.room = REPLY_WINDOW - PREFIX_BYTES
        self.unsent: deque[Part] | None = None
        self.resent = False
        self.ended = False
        self.reply = b""
        self.error: RpcError | None = None
        self._chunks: list[bytes] = []
        self._received = 0
        self._expected = -1

    def result(self) -> bytes:
        """Return the reply's message. Raises RpcError; may be asked once the call has ended."""
        if self.error is not None:
            raise self.error
        return self.reply

    def cancel(self) -> None:
        """Stop the call, on the server as well."""
        if self.connection is not None:
            self.connection.cancel(self)
        self.fail(grpc.StatusCode.CANCELLED, "cancelled by the gateway")

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the call without a reply."""
        self._end(RpcError(code, details))

    def succeed(self) -> None:
        """End the call with the message that was received."""
        if self._received != self._expected:
            self.fail(grpc.StatusCode.INTERNAL, "the reply is not one whole message")
            return
        self.reply = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._end(None)

    def receive(self, payload: bytes) -> int:
        """Take the next piece of the reply; return the length its message has, -1 if not known."""
        if self._expected < 0:
            payload = b"".join((*self._chunks, payload))
            if len(payload) < PREFIX_BYTES:
                self._chunks = [payload]
                return -1
            self._chunks.clear()
            # A set first byte means compression, which was not offered: no length fits that.
            self._expected = int.from_bytes(payload[1:PREFIX_BYTES], "big") + (payload[0] << 32)
            payload = payload[PREFIX_BYTES:]
        self._chunks.append(payload)
        self._received += len(payload)
        return self._expected

    def forget_reply(self) -> None:
        """Begin anew on another connection."""
        self.connection = None
        self.unsent = None
        self.room = REPLY_WINDOW - PREFIX_BYTES
        self._chunks = []
        self._received, self._expected = 0, -1

    def _end(self, error: RpcError | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.parts = ()
        self.unsent = None
        self._chunks = []
        on_end, self.on_end = self.on_end, _ignore  # or each would keep the other alive
        on_end(self)


class StreamCall(Call):
    """A call with any number of replies, which are taken one by one.

    `on_news` runs when there is something to take, or the call has ended. A server is told that
    there is room only while somebody waits, so what nobody takes stays with it, but for a window.
    """

    __slots__ = ("_arrived", "_buffer", "_credit", "_wanted", "on_news")

    def __init__(
        self,
        block: bytes,
        parts: Sequence[Part],
        *,
        on_news: Callable[[], None],
        on_end: "Callable[[Call], None]",
    ) -> None:
        super().__init__(block, parts, on_end)
        self.on_news = on_news
        self.room = sys.maxsize  # told of here instead
        self._arrived: deque[bytes] = deque()
        self._buffer = bytearray()
        self._credit = 0
        self._wanted = False

    def take(self) -> bytes | None:
        """Return the next reply, None if it is not there yet or there are no more."""
        if self._arrived:
            return self._arrived.popleft()
        self._wanted = True
        self._make_room()
        return None

    def receive(self, payload: bytes) -> int:
        """Take the next piece of the replies; return the length of the longest of them."""
        self.parts, self.resent = (), True  # it was taken, so it is never sent again
        self._credit += len(payload)
        self._buffer += payload
        longest = -1
        while len(self._buffer) >= PREFIX_BYTES:
            size = int.from_bytes(self._buffer[1:PREFIX_BYTES], "big") + (self._buffer[0] << 32)
            longest = max(longest, size)
            end = PREFIX_BYTES + size
            if len(self._buffer) < end:
                break
            self._arrived.append(bytes(self._buffer[PREFIX_BYTES:end]))
            del self._buffer[:end]
        if self._wanted and self._arrived:
            self._wanted = False
            self.on_news()
        elif self._wanted:
            self._make_room()
        return longest

    def succeed(self) -> None:
        """End the call; every reply has come."""
        if self._buffer:
            self.fail(grpc.StatusCode.INTERNAL, "the last reply is not one whole message")
        else:
            self._end(None)

    def forget_reply(self) -> None:
        """Begin anew on another connection."""
        super().forget_reply()
        self.room = sys.maxsize

    def _make_room(self) -> None:
        if self._credit >= REPLY_WINDOW // 2 and self.connection is not None:
            self.connection.make_room(self, self._credit)
            self._credit = 0

    def _end(self, error: RpcError | None) -> None:
        super()._end(error)
        self.on_news()


def _ignore(_: Call) -> None:
    pass
