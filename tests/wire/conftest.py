"""A scripted Triton, and a gateway in front of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.triton import FakeTriton
from tests.reloading import Reloading, reloading
from tests.serving import Serving, fake_triton, no_diagnosis, serving


@pytest.fixture
def undiagnosed() -> Iterator[None]:
    """For tests that count what the gateway does to serve and to watch."""
    with no_diagnosis():
        yield


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with fake_triton() as server:
        yield server


@pytest.fixture
async def gateway(fake: FakeTriton) -> AsyncIterator[Serving]:
    async with serving({"a": fake}) as running:
        yield running
        assert running.tracebacks == []


@pytest.fixture
async def other() -> AsyncIterator[FakeTriton]:
    async with fake_triton(server_id="other") as server:
        yield server


@pytest.fixture
async def one(fake: FakeTriton, tmp_path: Path) -> AsyncIterator[Reloading]:
    """A gateway in front of one server, `a`."""
    async with reloading(tmp_path, {"a": fake}) as running:
        yield running
