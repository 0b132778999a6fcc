"""A scripted Triton, and a gateway in front of it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fakes.triton import FakeTriton
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
