"""HTTP with every byte under control: what is sent is what the test wrote, in the pieces it chose.

Answers are read by the standard library, which normalises nothing that matters here.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

ANSWER_TIMEOUT_S = 10
PIECE_GAP_S = 0.01
"""Between two pieces, so that they arrive one by one."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; header names are in lower case, the last of repeated ones counts.

    Status 0 stands for a connection that was closed without an answer.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    closes: bool


class Connection:
    """One connection that requests are written to as they are."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def write(self, *pieces: bytes) -> None:
        """Send the pieces, with a pause between them."""
        for at, piece in enumerate(pieces):
            if at:
                time.sleep(PIECE_GAP_S)
            self._socket.sendall(piece)

    def read(self, method: str = "POST") -> Answer:
        """Read one answer; interim ones (1xx) are passed over."""
        response = http.client.HTTPResponse(self._socket, method=method)
        try:
            response.begin()
        except (http.client.RemoteDisconnected, ConnectionError):
            return Answer(0, {}, b"", closes=True)
        try:
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = response.read()
            return Answer(response.status, headers, body, response.will_close)
        finally:
            response.close()

    def read_bytes(self, size: int) -> bytes:
        """Read what there is, at most `size` bytes; empty when the other side has closed."""
        return self._socket.recv(size)

    def ask(self, *pieces: bytes) -> Answer:
        """Send a request and read its answer."""
        self.write(*pieces)
        return self.read(pieces[0].split(b" ", 1)[0].decode("latin-1"))


def ask(address: str, *pieces: bytes) -> Answer:
    """Send a request over a connection of its own and return the answer."""
    with Connection(address) as connection:
        return connection.ask(*pieces)


def request(
    method: str,
    target: str | bytes,
    body: bytes = b"",
    headers: Sequence[str | bytes] = (),
    version: str = "HTTP/1.1",
) -> bytes:
    """Build a request with its Content-Length; `headers` are whole lines, sent as they are."""
    length = [f"Content-Length: {len(body)}"] if body or method == "POST" else []
    return head(method, target, [*headers, *length], version) + body


def head(
    method: str, target: str | bytes, headers: Sequence[str | bytes], version: str = "HTTP/1.1"
) -> bytes:
    """Build the head of a request, up to and including the empty line."""
    start = b" ".join((method.encode(), _bytes(target), version.encode()))
    lines = [start, b"Host: t", *map(_bytes, headers), b"", b""]
    return b"\r\n".join(lines)


def chunk(data: bytes) -> bytes:
    """Frame one piece of a chunked body; the empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
