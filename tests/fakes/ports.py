"""What may listen on a port instead of a Triton's gRPC: its other ports, and strangers."""

import asyncio
import contextlib
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.fakes.proxy import HOST

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# RFC 9113: empty SETTINGS, and HEADERS on stream 1 that end it with `:status: 404` (RFC 7541, A).
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HEADERS_404 = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x8d"


def free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row."""
    for first in random.SystemRandom().sample(range(20000, 32000), 1000):
        if all(_is_free(first + step) for step in range(count)):
            return first
    raise AssertionError("no free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@contextlib.asynccontextmanager
async def listening(
    answer: Answer, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve connections with `answer` inside the block; gives `host:port`."""

    open_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now[task] = writer
        with contextlib.suppress(OSError):
            await answer(reader, writer)
        writer.transport.abort()
        del open_now[task]

    server = await asyncio.start_server(serve, HOST, port, ssl=tls)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_now.values():
            writer.transport.abort()
        await asyncio.gather(*open_now, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close one turn later


def triton_http(server_id: str = "fake") -> Answer:
    """Triton's HTTP port: `/v2` is JSON, everything else unknown; no HTTP/2."""
    said = json.dumps({"name": server_id, "version": "2.58.0", "extensions": []})

    def page(path: str) -> tuple[str, str]:
        return ("200 OK", said) if path == "/v2" else ("404 Not Found", '{"error":"Not Found"}')

    return _pages(page)


def triton_metrics() -> Answer:
    """Triton's metrics port: an empty 200 for every path but one."""
    text = "# HELP nv_cpu_utilization CPU\n# TYPE nv_cpu_utilization gauge\nnv_cpu_utilization 0\n"
    return _pages(lambda path: ("200 OK", text if path == "/metrics" else ""))


def web_page(text: str = "<html>hello</html>") -> Answer:
    """A web server that is no Triton: the same page for every path."""
    return _pages(lambda _: ("200 OK", text))


def _pages(page: Callable[[str], tuple[str, str]]) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readline()).split()
        if len(request) < 2 or request[0] != b"GET":
            return  # as Triton does with what it cannot read
        status, body = page(request[1].decode())
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        await reader.read()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, and never say anything."""
    while await reader.read(65536):
        pass


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept and close."""


async def ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet like an SSH server."""
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await reader.read()


async def http2_without_grpc(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak just enough HTTP/2 to answer the first request with 404."""
    writer.write(SETTINGS)
    received = b""
    while b":path" not in received and b"ServerMetadata" not in received:
        data = await reader.read(65536)
        if not data:
            return
        received += data
    writer.write(SETTINGS[:4] + b"\x01" + SETTINGS[5:] + HEADERS_404)
    await reader.read()
