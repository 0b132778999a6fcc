"""Bodies are freed with their requests, not when the garbage collector gets round to it.

Reference cycles would keep hundreds of large bodies until a full collection, which a quiet process
makes rarely.
"""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from tests.clients import Connection, infer, tensor
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, fake_triton, serving, until

LARGE = tensor(*[1.0] * 20_000)
LARGE_BYTES = 50_000
TIMES = 5

Work = Callable[[Serving, FakeTriton], Awaitable[None]]


async def is_answered(gateway: Serving, fake: FakeTriton) -> None:
    assert (await gateway.ask(infer(body=LARGE))).status == 200


async def is_unknown(gateway: Serving, fake: FakeTriton) -> None:
    assert (await gateway.ask(infer("nope", LARGE))).status == 404


async def is_malformed(gateway: Serving, fake: FakeTriton) -> None:
    assert (await gateway.ask(infer(body=LARGE[:-1] + b"]"))).status == 400


async def expires(gateway: Serving, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    reply = await gateway.ask(infer(body=LARGE, X_Request_Timeout_Ms="20"))
    assert reply.status == 504
    fake.models["echo"].release()
    await until(lambda: gateway.idle)


async def leaves(gateway: Serving, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    started = fake.infer_started
    connection = await Connection.open(gateway.port)
    connection.send(infer(body=LARGE))
    await fake.until(lambda: fake.infer_started == started + 1)
    connection.reset()
    await until(lambda: gateway.api.in_flight == 0)
    fake.models["echo"].release()
    await until(lambda: gateway.idle)


async def leaves_during_the_body(gateway: Serving, fake: FakeTriton) -> None:
    connection = await Connection.open(gateway.port)
    connection.send(infer(body=LARGE)[:-10])
    await until(lambda: gateway.api.in_flight == 1)
    connection.reset()
    await until(lambda: gateway.api.in_flight == 0)


@contextmanager
def uncollected() -> Iterator[list[object]]:
    """Switch the collector off; afterwards the list holds what only a collection would free."""
    garbage: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield garbage
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        garbage += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def large_parts(garbage: list[object]) -> list[str]:
    """Name the objects that keep something large."""
    return [
        type(owner).__name__
        for owner in garbage
        for part in gc.get_referents(owner)
        if isinstance(part, bytes | bytearray | memoryview) and len(part) > LARGE_BYTES
    ]


@pytest.fixture
async def gateway(fake: FakeTriton) -> AsyncIterator[Serving]:
    async with serving({"a": fake}) as running:
        yield running


@pytest.mark.parametrize(
    "work",
    [
        is_answered,
        is_unknown,
        is_malformed,
        expires,
        leaves,
        leaves_during_the_body,
    ],
    ids=lambda work: work.__name__,
)
async def test_a_request_leaves_no_body_behind_that(
    gateway: Serving, fake: FakeTriton, work: Work
) -> None:
    await work(gateway, fake)
    with uncollected() as garbage:
        for _ in range(TIMES):
            await work(gateway, fake)
        gateway.gateway.flush()  # settled requests are told to the observers a moment later
    assert large_parts(garbage) == []


async def test_a_second_attempt_leaves_no_body_behind() -> None:
    async with fake_triton() as a, fake_triton() as b:
        a.models["echo"].error = (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
        async with serving({"a": a, "b": b}, balancing={"policy": "round_robin"}) as gateway:
            await is_answered(gateway, b)
            with uncollected() as garbage:
                while a.infer_started < TIMES:
                    await is_answered(gateway, b)
                gateway.gateway.flush()
            assert large_parts(garbage) == []
