"""Limits of concurrent requests: a stream holds its place until it ends, however it does.

The server is one that dies of cancelled unary calls; a stream may be cancelled on every one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from tests.clients import Connection
from tests.serving import Serving, serving, until
from tests.streams.sse import stream_request
from tests.streams.test_leaving import Stream

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

AT_ONCE = 50
ROUNDS = 2


def taken(gateway: Serving) -> int:
    return int(gateway.cores.current.view.limits.view()["places_held"])


async def all_taken(gateway: Serving) -> None:
    assert taken(gateway) == AT_ONCE
    reply = await gateway.ask(stream_request({"COUNT": 1, "DELAY_MS": 0}))
    assert reply.status == 429


async def leave(gateway: Serving) -> None:
    """All clients hang up when they have read something."""
    plan = {"COUNT": 1000, "DELAY_MS": 20}
    streams = [await Stream.open(gateway.port, plan) for _ in range(AT_ONCE)]
    for stream in streams:
        await stream.head()
        await stream.read(2)
    await all_taken(gateway)
    for stream in streams:
        stream.connection.reset()


async def run_out_of_time(gateway: Serving) -> None:
    """The deadlines of all pass in the middle of their streams."""
    data = stream_request({"COUNT": 1000, "DELAY_MS": 20}, **{"X-Request-Timeout-Ms": "1000"})
    connections = [await Connection.open(gateway.port) for _ in range(AT_ONCE)]
    for connection in connections:
        connection.send(data)
    await until(lambda: taken(gateway) == AT_ONCE)
    await all_taken(gateway)
    for connection in connections:
        said = await connection.reader.read()  # to its end, which is no regular one
        assert b"the deadline of the request has passed" in said
        assert not said.endswith(b"0\r\n\r\n")
        connection.close()


@pytest.mark.parametrize("end", [leave, run_out_of_time])
async def test_streams_that_end_early_give_their_places_back(
    triton_a: LocalTriton, end: Callable[[Serving], Awaitable[None]]
) -> None:
    limits = {"places": {"concurrent": AT_ONCE}}
    async with serving({"a": triton_a.grpc_address}, limits=limits) as gateway:
        for _ in range(ROUNDS):
            await end(gateway)
            await until(lambda: taken(gateway) == 0)
        reply = await gateway.ask(stream_request({"COUNT": 0, "DELAY_MS": 0}))
        assert reply.status == 200
        await until(lambda: gateway.idle)
        assert gateway.tracebacks == []
