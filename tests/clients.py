"""A lean HTTP client on raw asyncio streams: what it sends, and when it leaves, is up to the test.

Unlike an HTTP library it can send half a request, read nothing, and hang up with a FIN or an RST.
"""

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any, Self

READ_LIMIT_BYTES = 2**26
ANSWER_TIMEOUT_S = 20.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


@dataclass
class Reply:
    """One answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error; fails for anything that has not exactly that shape."""
        assert self.headers["content-type"] == "application/json", self
        (key,) = self.json
        assert key == "error", self
        return str(self.json["error"])


class Connection:
    """One connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, port: int, *, tls: ssl.SSLContext | None = None, receive_buffer_bytes: int = 0
    ) -> Self:
        """Connect to a port of this machine, where wanted with a tiny receive buffer."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            name = "localhost" if tls else None
            limit = receive_buffer_bytes or READ_LIMIT_BYTES
            streams = asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name, limit=limit)
            return cls(*await streams)
        except BaseException:
            sock.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def reply(self, *, head_only: bool = False) -> Reply:
        """Read one answer with a Content-Length."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            size = 0 if head_only else int(headers.get("content-length", 0))
            return Reply(int(status.split()[1]), headers, await self.reader.readexactly(size))

    async def ask(self, data: bytes) -> Reply:
        """Send a request and read its answer."""
        self.send(data)
        return await self.reply()

    async def ended(self) -> bool:
        """Wait until the other side closes; tell whether it did so without another byte."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            try:
                return not await self.reader.read()
            except ConnectionError:
                return True

    def close(self) -> None:
        """Leave with a FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.writer.transport.abort()


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Write a request; a body brings its Content-Length unless a header says otherwise."""
    lines = {"Host": "test", **(headers or {})}
    if body is not None and "Transfer-Encoding" not in lines:
        lines.setdefault("Content-Length", str(len(body)))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    return head.encode("latin-1") + b"\r\n" + (body or b"")


def infer(
    model: str = "echo",
    body: bytes | None = None,
    *,
    version: str = "",
    **headers: str,
) -> bytes:
    """Write an inference request; underscores in the names of headers become dashes."""
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request("POST", path, tensor(1.5) if body is None else body, named)


def tensor(*values: float) -> bytes:
    """Write a body with one FP32 input."""
    return json.dumps(
        {
            "inputs": [
                {"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": list(values)}
            ]
        }
    ).encode()


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """Write pieces as chunks of a body."""
    framed = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)
    return framed + (b"0\r\n\r\n" if end else b"")


async def ask(port: int, data: bytes, *, tls: ssl.SSLContext | None = None) -> Reply:
    """Send one request over a connection of its own."""
    async with await Connection.open(port, tls=tls) as connection:
        return await connection.ask(data)
