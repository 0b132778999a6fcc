"""Scripted Tritons that may be cancelled and that may not, and a gateway in front of each."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fakes.triton import FakeTriton
from tests.serving import Serving, fake_triton, no_diagnosis, serving, until

SAFE, UNSAFE = "2.58.0", "2.51.0"
WARM_UP_CALLS = 8


@pytest.fixture(autouse=True)
def undiagnosed() -> Iterator[None]:
    """What is counted here is what clients leave behind."""
    with no_diagnosis():
        yield


@pytest.fixture
async def safe() -> AsyncIterator[FakeTriton]:
    """A server whose calls may be cancelled."""
    async with fake_triton(version=SAFE) as server:
        yield server


@pytest.fixture
async def unsafe() -> AsyncIterator[FakeTriton]:
    """A server that a cancelled call could kill."""
    async with fake_triton(version=UNSAFE) as server:
        yield server


@pytest.fixture(params=[SAFE, UNSAFE])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeTriton]:
    """Either of the two."""
    async with fake_triton(version=request.param) as server:
        yield server


@pytest.fixture
async def gateway(fake: FakeTriton) -> AsyncIterator[Serving]:
    """A gateway that must be left with nothing: no work, no task, no traceback."""
    async with serving({"a": fake}) as running:
        await _open_all_connections(running, fake)
        tasks = len(asyncio.all_tasks())
        yield running
        for model in fake.models.values():
            model.release()
        await until(lambda: running.idle)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert fake.infer_started == fake.infer_finished + fake.infer_cancelled
        if fake.version == UNSAFE:
            assert fake.infer_cancelled == 0
        assert running.tracebacks == []
        states = running.watcher.states("a")
        assert {state["in_flight"] for state in states} == {0}


async def _open_all_connections(gateway: Serving, fake: FakeTriton) -> None:
    """Make everything that is made once: the tasks of a connection are no leak."""
    fake.models["echo"].hang()
    asking = asyncio.gather(*(gateway.infer() for _ in range(WARM_UP_CALLS)))
    await fake.until(lambda: fake.infer_started == WARM_UP_CALLS)
    fake.models["echo"].release()
    await asking
    await until(lambda: gateway.idle and fake.proxy.open_connections == 4)
