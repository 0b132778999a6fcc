"""Clients that leave streams, that read slowly or not at all, and what is left of their streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cancel.test_storm import at_rest
from tests.clients import Connection
from tests.conftest import Launch
from tests.gateways import GatewayProcess, configuration
from tests.processes import resident_bytes
from tests.real.repository import streams
from tests.streams.sse import Parser, indices, stream_request

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

MIB = 1024 * 1024
PATIENCE_S = 30.0
Start = Callable[..., Awaitable[GatewayProcess]]


class Stream:
    """One client of a stream, on a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._parser = Parser()
        self._events: list[Any] = []
        self.ended = False

    @classmethod
    async def open(cls, port: int, body: dict[str, Any], **sent: Any) -> Stream:
        connection = await Connection.open(port, **sent)
        connection.send(stream_request(body))
        return cls(connection)

    async def head(self) -> None:
        head = await self.connection.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK"), head

    async def read(self, most: int) -> list[Any]:
        """Read up to `most` events, fewer at the regular end."""
        found: list[Any] = []
        while len(found) < most and not self.ended:
            size = int(await self.connection.reader.readuntil(b"\r\n"), 16)
            data = await self.connection.reader.readexactly(size + 2)
            self.ended = size == 0
            found += [json.loads(event) for event in self._parser.feed(data[:-2])]
        return found


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a gateway in front of one server; it has to end well."""
    running: list[GatewayProcess] = []

    async def start(address: str, **sections: Any) -> GatewayProcess:
        gateway = GatewayProcess(configuration({"a": address}, **sections), tmp_path)
        running.append(gateway)
        await asyncio.to_thread(gateway.start)
        return gateway

    yield start
    for gateway in running:
        assert await asyncio.to_thread(gateway.stop) == 0
        assert not [event for event in gateway.events() if "exception" in event]


@pytest.mark.parametrize(
    ("clients", "rounds", "growth_bytes"),
    [(12, 1, None), pytest.param(50, 6, 2 * MIB, marks=pytest.mark.accept)],
    ids=["short", "long"],
)
async def test_half_of_the_clients_leave(
    launch_triton: Launch,
    fixture_models: Path,
    start: Start,
    clients: int,
    rounds: int,
    growth_bytes: int | None,
) -> None:
    """Each one that leaves is one execution cancelled within a second; the others notice nothing.

    All share the connections to the server, which is one that dies of cancelled unary calls.
    """
    server_id = f"leaving{clients}"
    triton = await asyncio.to_thread(launch_triton, server_id, ["stream"])
    gateway = await start(triton.grpc_address, upstream={"channels": 2})
    grown_bytes = 0
    for number in range(rounds):
        await _round(gateway, clients)
        await asyncio.wait_for(at_rest(gateway), 1.0)
        if number == rounds // 2:
            grown_bytes = -resident_bytes(gateway.pid)
    grown_bytes += resident_bytes(gateway.pid)

    await _executions(fixture_models, server_id, clients * rounds)
    done = streams(fixture_models, server_id)
    assert done == {
        "started": clients * rounds,
        "cancelled": clients * rounds // 2,
        "finished": clients * rounds // 2,
    }
    outcomes = await _outcomes(gateway, clients * rounds)
    assert outcomes.count("client_gone") == outcomes.count("ok") == clients * rounds // 2
    assert growth_bytes is None or grown_bytes < growth_bytes
    assert triton.alive


async def _round(gateway: GatewayProcess, clients: int) -> None:
    plan = {"COUNT": 200, "DELAY_MS": 10}

    async def leave(number: int) -> None:
        stream = await Stream.open(gateway.api_port, plan)
        await stream.head()
        assert indices(await stream.read(3)) == [0, 1, 2]
        (stream.connection.reset if number % 4 else stream.connection.close)()

    async def stay() -> None:
        stream = await Stream.open(gateway.api_port, plan)
        await stream.head()
        assert indices(await stream.read(999)) == list(range(200))
        assert stream.ended
        stream.connection.close()

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            *(leave(number) if number % 2 else stay() for number in range(clients))
        )


async def _executions(models: Path, server_id: str, count: int) -> None:
    """Wait until so many executions have ended: a model notices it at its next event."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            done = streams(models, server_id)
            if done["finished"] + done["cancelled"] >= count:
                return
            await asyncio.sleep(0.02)


async def _outcomes(gateway: GatewayProcess, count: int) -> list[str]:
    """Wait for so many request lines and return what became of the requests."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            lines = [event for event in gateway.events() if event["event"] == "request"]
            if len(lines) >= count:
                return [line["outcome"] for line in lines]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", [Connection.close, Connection.reset], ids=["FIN", "RST"])
async def test_a_client_that_leaves_between_two_events_is_noticed(
    triton_a: LocalTriton, fixture_models: Path, start: Start, how: Callable[[Connection], None]
) -> None:
    """Nothing is written when the client leaves, and nothing would be for a long time."""
    before = streams(fixture_models, "a")
    gateway = await start(triton_a.grpc_address)
    stream = await Stream.open(gateway.api_port, {"COUNT": 3, "DELAY_MS": 1500})
    await stream.head()
    assert indices(await stream.read(1)) == [0]
    how(stream.connection)
    await asyncio.wait_for(at_rest(gateway), 1.0)
    await _executions(fixture_models, "a", before.total() - before["started"] + 1)
    assert streams(fixture_models, "a")["cancelled"] == before["cancelled"] + 1


async def test_a_client_that_does_not_read_costs_no_memory_and_delays_nobody(
    triton_a: LocalTriton, start: Start
) -> None:
    """What it does not take stays on the server, and all of it is there once it reads again."""
    gateway = await start(triton_a.grpc_address, upstream={"channels": 1})
    large = {"COUNT": 40, "SIZE": 250_000}  # a megabyte each, over gRPC as in JSON
    slow = await Stream.open(gateway.api_port, large, receive_buffer_bytes=65536)
    await slow.head()
    await asyncio.sleep(0.5)
    before_bytes = resident_bytes(gateway.pid)
    for _ in range(5):
        other = await Stream.open(gateway.api_port, {"COUNT": 50})
        await other.head()
        async with asyncio.timeout(5):
            assert len(await other.read(999)) == 50
        other.connection.close()
        await asyncio.sleep(0.2)
    assert resident_bytes(gateway.pid) - before_bytes < 8 * MIB
    async with asyncio.timeout(PATIENCE_S):
        assert indices(await slow.read(999)) == list(range(40))
    slow.connection.close()
    assert resident_bytes(gateway.pid) - before_bytes < 32 * MIB
    await at_rest(gateway)


async def test_a_client_that_never_reads_is_cut_off(triton_a: LocalTriton, start: Start) -> None:
    gateway = await start(triton_a.grpc_address, api={"body_timeout_s": 1})
    large = {"COUNT": 40, "SIZE": 250_000}
    stream = await Stream.open(gateway.api_port, large, receive_buffer_bytes=65536)
    await stream.head()
    await asyncio.sleep(0.5)
    assert (await asyncio.to_thread(gateway.fleet))["servers"][0]["in_flight_calls"] == 1
    await asyncio.wait_for(at_rest(gateway), 3.0)
    stream.connection.close()
    assert await _outcomes(gateway, 1) == ["client_gone"]


async def test_streams_that_are_left_give_their_places_back(
    launch_triton: Launch, start: Start
) -> None:
    """Two at a time are allowed; a hundred are begun and left, and two run to their end."""
    triton = await asyncio.to_thread(launch_triton, "places", ["stream"])
    gateway = await start(triton.grpc_address, limits={"places": {"concurrent": 2}})
    plan = {"COUNT": 1000, "DELAY_MS": 5}

    async def begin() -> Stream:
        stream = await Stream.open(gateway.api_port, plan)
        await stream.head()
        return stream

    async def taken(count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await asyncio.to_thread(gateway.fleet))["limits"]["places_held"] != count:
                await asyncio.sleep(0.01)

    for number in range(50):
        pair = [await begin(), await begin()]
        if number % 10 == 0:
            await taken(2)
            third = await Stream.open(gateway.api_port, plan)
            head = await third.connection.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b'RateLimit-Policy: "places";q=2;qu="concurrent-requests"' in head
            third.connection.close()
        for stream in pair:
            stream.connection.reset()
        await taken(0)
    plan = {"COUNT": 20, "DELAY_MS": 1}
    for stream in [await begin(), await begin()]:
        assert indices(await stream.read(999)) == list(range(20))
        assert stream.ended
        stream.connection.close()
    await taken(0)
