"""Accepting on sockets that others have open, too: nothing that waits there is lost."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from aiohttp import web

from gateway.edge.api import Api
from gateway.edge.listener import HttpLimits
from gateway.edge.shared_listener import SharedListener
from tests.clients import Connection, ask, request
from tests.serving import until

LIMITS = HttpLimits(max_header_bytes=8192, header_timeout_s=10.0, keepalive_timeout_s=75.0)
ASK = request("GET", "/")


class Named:
    """An API that answers with a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.wait = asyncio.Event()
        self.wait.set()

    async def handle(self, _: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        await self.wait.wait()
        return web.Response(text=self.name)


def bound(count: int) -> list[socket.socket]:
    sockets = []
    port = 0
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
        sock.setblocking(False)
        port = sock.getsockname()[1]
        sockets.append(sock)
    return sockets


@contextlib.asynccontextmanager
async def listening(
    sockets: Sequence[socket.socket], slot: int, named: Named
) -> AsyncIterator[SharedListener]:
    api = cast(Api, named)
    own = [sock.dup() for sock in sockets]  # as a worker inherits them
    for sock in own:
        sock.setblocking(False)
    listener = SharedListener(lambda: api, own, slot, cut_off=lambda: None, limits=LIMITS)
    await listener.start()
    try:
        yield listener
    finally:
        listener.stop_accepting()
        listener.close_idle()
        await listener.close(timeout_s=1.0)


async def names(port: int, count: int = 30) -> set[str]:
    replies = await asyncio.gather(*(ask(port, ASK) for _ in range(count)))
    return {reply.body.decode() for reply in replies}


async def test_each_takes_its_own_socket_and_others_when_told() -> None:
    sockets = bound(2)
    port = sockets[0].getsockname()[1]
    async with listening(sockets, 0, Named("zero")) as zero:
        async with listening(sockets, 1, Named("one")):
            assert await names(port) == {"zero", "one"}
        zero.accept_for({1})  # nobody accepts on socket 1 any more
        assert await names(port) == {"zero"}
        zero.accept_for(frozenset())
        waiting = [asyncio.create_task(ask(port, ASK)) for _ in range(30)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        async with listening(sockets, 1, Named("one again")):  # takes what waits on socket 1
            replies = await asyncio.gather(*waiting)
        assert {reply.body.decode() for reply in replies} == {"zero", "one again"}
    for sock in sockets:
        sock.close()


async def test_what_waits_when_it_stops_is_served() -> None:
    sockets = bound(1)
    async with listening(sockets, 0, Named("zero")) as zero:
        connections = [socket.create_connection(sockets[0].getsockname()) for _ in range(20)]
        zero.stop_accepting()
        assert zero.connections == 20
        for connection in connections:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(connection, ASK)
        for connection in connections:
            answer = await asyncio.get_running_loop().sock_recv(connection, 4096)
            assert answer.endswith(b"zero")
            connection.close()
    sockets[0].close()


async def test_a_connection_that_is_idle_is_closed_and_one_that_works_is_not() -> None:
    sockets = bound(1)
    port = sockets[0].getsockname()[1]
    api = Named("zero")
    async with listening(sockets, 0, api) as zero:
        idle = await Connection.open(port)
        assert (await idle.ask(ASK)).status == 200
        zero.close_idle()
        assert await idle.reader.read() == b""
        idle.close()
        api.wait.clear()
        busy = await Connection.open(port)
        busy.send(ASK)
        await until(lambda: api.asked == 2)
        zero.close_idle()
        api.wait.set()
        assert (await busy.reply()).status == 200
        busy.close()
    sockets[0].close()


async def test_without_file_descriptors_it_pauses(monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.edge.shared_listener._PAUSE_S", 0.01)
    sockets = bound(1)
    port = sockets[0].getsockname()[1]
    real, failures = socket.socket.accept, [OSError(24, "Too many open files")] * 3

    def accept(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return real(self)

    async with listening(sockets, 0, Named("zero")):
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert await names(port, 3) == {"zero"}
        assert failures == []
    sockets[0].close()
