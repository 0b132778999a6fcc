"""A scripted HTTP/2 peer: says exactly what a test wants, frame by frame."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import hpack

from gateway.upstream.http2 import frames
from tests.fakes.proxy import HOST

OK = ((":status", "200"), ("content-type", "application/grpc"))
DONE = (("grpc-status", "0"),)


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


class Peer:
    """One accepted connection. Everything that comes is read; `received` has all of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.received: list[Frame] = []
        self._encoder = hpack.Encoder()
        self._came = asyncio.Event()

    async def read(self) -> None:
        """Take in frames until the other end closes."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await self._reader.readexactly(len(frames.PREFACE)) == frames.PREFACE
            while True:
                head = await self._reader.readexactly(frames.HEADER_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                stream = frames.uint31(head, 5)
                self.received.append(Frame(head[3], head[4], stream, payload))
                self._came.set()

    async def until(self, condition: Callable[[Frame], bool], count: int = 1) -> list[Frame]:
        """Wait until so many frames like this have come."""
        async with asyncio.timeout(5):
            while len(found := [f for f in self.received if condition(f)]) < count:
                self._came.clear()
                await self._came.wait()
        return found

    async def request(self, count: int = 1) -> int:
        """Wait until so many requests have arrived whole; return the stream of the last."""
        ended = await self.until(
            lambda f: f.kind == frames.DATA and f.flags & frames.END_STREAM != 0, count
        )
        return ended[count - 1].stream

    def body(self, stream: int) -> bytes:
        return b"".join(
            f.payload for f in self.received if f.kind == frames.DATA and f.stream == stream
        )

    def send(self, *what: bytes) -> None:
        self.writer.write(b"".join(what))

    def settings(self, **values: int) -> None:
        self.send(frames.settings({getattr(frames, name.upper()): v for name, v in values.items()}))

    def block(self, *headers: tuple[str, str]) -> bytes:
        return self._encoder.encode(headers)

    def headers(self, stream: int, *headers: tuple[str, str], flags: int = 0) -> bytes:
        return frames.frame(
            frames.HEADERS, flags | frames.END_HEADERS, stream, self.block(*headers)
        )

    def data(self, stream: int, payload: bytes, flags: int = 0) -> bytes:
        return frames.frame(frames.DATA, flags, stream, payload)

    def answer(self, stream: int, message: bytes = b"fine") -> bytes:
        """Return a whole reply."""
        return b"".join(
            (
                self.headers(stream, *OK),
                self.data(stream, grpc_message(message)),
                self.headers(stream, *DONE, flags=frames.END_STREAM),
            )
        )


def grpc_message(message: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


Script = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def http2_peer(*scripts: Script) -> AsyncIterator[tuple[str, list[Peer]]]:
    """Accept connections, the first with the first script and so on; gives address and peers."""
    peers: list[Peer] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        script = scripts[min(len(peers), len(scripts) - 1)]
        peers.append(peer)
        tasks.append(asyncio.create_task(script(peer)))
        with contextlib.suppress(ConnectionError):
            await peer.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}", peers
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)
