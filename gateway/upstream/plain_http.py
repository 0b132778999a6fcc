"""One GET over a connection of its own, bounded in time and size.

For Triton's HTTP and metrics ports, which are asked now and then: a connection that stays open
would hold up the server's shutdown. Tolerates whatever answers there. Called by `identify` and
`scrape`.
"""

import asyncio
import http.client
import io
import re
from dataclasses import dataclass

_CHUNK_BYTES = 65536
_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Silent(Exception):
    """Connected, and nothing came."""


@dataclass(frozen=True, slots=True)
class Received:
    """What came; `ended` tells whether the other end was finished, or only the time or the room."""

    data: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer taken apart. With `measured` its length was announced and is all there."""

    status: int
    body: bytes = b""
    encoding: str = ""
    measured: bool = False


async def exchange(host: str, port: int, path: str, *, until: float, limit_bytes: int) -> Received:
    """Send one GET and return what came until the answer was complete or the time was up.

    `until` is a time of the loop's clock. At most about `limit_bytes` are read. Raises Silent,
    TimeoutError when no connection came about, and OSError.
    """
    ended = False
    async with asyncio.timeout_at(until):
        reader, writer = await asyncio.open_connection(host, port)
    data = bytearray()
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii", "replace"))
        async with asyncio.timeout_at(until):
            while not ended and len(data) < limit_bytes:
                chunk = await reader.read(_CHUNK_BYTES)
                data += chunk
                ended = not chunk or is_complete(data)
    except TimeoutError:
        if not data:
            raise Silent from None
    except ConnectionError:
        pass  # reset: what came before counts
    finally:
        writer.transport.abort()
    return Received(bytes(data), ended)


def is_complete(data: bytes | bytearray) -> bool:
    """Whether an answer of announced length has arrived, or something that is no HTTP at all."""
    if is_settings(data):
        return True
    head_length = data.find(b"\r\n\r\n")
    if head_length < 0:
        return False
    length = _CONTENT_LENGTH.search(data, 0, head_length)
    return length is not None and len(data) - head_length - 4 >= int(length[1])


def is_settings(data: bytes | bytearray) -> bool:
    """Whether an HTTP/2 server spoke first: its SETTINGS frame opens a connection (RFC 9113)."""
    return len(data) >= 9 and data[0] == 0 and data[3] == 4


class _Bytes:
    """As much of a socket as http.client wants to read an answer from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def parsed(reply: bytes) -> HttpAnswer:
    """Take an answer apart; one that is shorter than it said has no body."""
    answer = http.client.HTTPResponse(_Bytes(reply))  # type: ignore[arg-type]
    try:
        answer.begin()
        measured = answer.length is not None or bool(answer.chunked)
        encoding = answer.headers.get("Content-Encoding", "")
        return HttpAnswer(answer.status, answer.read(), encoding, measured)
    except http.client.HTTPException:
        return HttpAnswer(answer.status if isinstance(answer.status, int) else 0)
