"""The store of a host without Redis, as its workers see it."""

import time

import pytest

from gateway.ports import StoreDown
from gateway.stores.memory import MemoryStore
from tests.stores.conftest import linked


async def test_two_workers_share_what_the_supervisor_keeps() -> None:
    memory = MemoryStore(time.monotonic, max_entries=10)
    async with linked(memory) as one, linked(memory) as other:
        assert await one.claim("k", "one", ttl_s=60) == "one"
        assert await other.claim("k", "other", ttl_s=60) == "one"


async def test_without_a_supervisor_it_is_down() -> None:
    async with linked(MemoryStore(time.monotonic, max_entries=10)) as store:
        pass
    with pytest.raises(StoreDown, match="the supervisor does not answer"):
        await store.renew("k", ttl_s=60)
    assert store.failures == 1
