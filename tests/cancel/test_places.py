"""Limits of concurrent requests: every way a request can end gives its place back."""

import asyncio

import pytest

from tests.clients import Connection, infer, request
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, serving, until

LIMITS = {"places": {"concurrent": 2}}
UPSTREAM = {"max_detached_calls": 1000}
ROUNDS = 50
"""Of two requests each, one of them a stream."""


def asks(**headers: str) -> list[bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    stream = request("POST", "/v2/models/echo/generate_stream", b'{"IN": [1.5]}', named)
    return [infer(**headers), stream]


def taken(gateway: Serving) -> int:
    return int(gateway.cores.current.view.limits.view()["places_held"])


async def leave(gateway: Serving, fake: FakeTriton) -> None:
    """Two callers hang up while their calls are on the server."""
    started = fake.infer_started
    connections = [await Connection.open(gateway.port) for _ in range(2)]
    for connection, data in zip(connections, asks(), strict=True):
        connection.send(data)
    await fake.until(lambda: fake.infer_started == started + 2)
    for connection in connections:
        connection.reset()
    await until(lambda: gateway.api.in_flight == 0)


async def run_out_of_time(gateway: Serving, _: FakeTriton) -> None:
    """Two deadlines pass while the calls are on the server."""
    replies = await asyncio.gather(*map(gateway.ask, asks(X_Request_Timeout_Ms="10")))
    assert [reply.status for reply in replies] == [504, 504]


@pytest.mark.parametrize("end", [leave, run_out_of_time])
async def test_a_server_that_can_be_told_gives_the_places_back_at_once(
    safe: FakeTriton, end: object
) -> None:
    async with serving({"a": safe}, limits=LIMITS, upstream=UPSTREAM) as gateway:
        safe.models["echo"].hang()
        for _ in range(ROUNDS):
            await end(gateway, safe)  # type: ignore[operator]
            await until(lambda: taken(gateway) == 0)
        safe.models["echo"].release()
        replies = await asyncio.gather(gateway.infer(), gateway.infer())
        assert [reply.status for reply in replies] == [200, 200]


@pytest.mark.parametrize("end", [leave, run_out_of_time])
async def test_on_an_old_server_a_place_is_taken_until_its_work_has_ended(
    unsafe: FakeTriton, end: object
) -> None:
    async with serving({"a": unsafe}, limits=LIMITS, upstream=UPSTREAM) as gateway:
        for _ in range(ROUNDS):
            unsafe.models["echo"].hang()
            await end(gateway, unsafe)  # type: ignore[operator]
            assert taken(gateway) == gateway.held()[2] == 2
            assert (await gateway.infer()).status == 429
            unsafe.models["echo"].release()
            await until(lambda: taken(gateway) == 0)
        replies = await asyncio.gather(gateway.infer(), gateway.infer())
        assert [reply.status for reply in replies] == [200, 200]
