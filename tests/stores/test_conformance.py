"""The stores do what `gateway.ports.SharedStore` says, in memory and in Redis however it is run."""

import time
from collections.abc import AsyncIterator

import pytest

from gateway.ports import SharedStore
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from tests.pipeline.scripted import Clock
from tests.redis_server import RedisServer, redis_sentinel
from tests.stores.conformance import LONG_S, StoreConformance
from tests.stores.conftest import connected


class TestStores(StoreConformance):
    """In memory, and in one Redis."""


class TestSentinel(StoreConformance):
    """In a Redis that a Sentinel knows."""

    @pytest.fixture(scope="class")
    @staticmethod
    def sentinel(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisServer]:
        with redis_sentinel(tmp_path_factory.mktemp("sentinel")) as server:
            yield server

    @pytest.fixture
    @staticmethod
    async def store(sentinel: RedisServer) -> AsyncIterator[SharedStore]:
        async with connected(sentinel.port, kind="sentinel", service="tg") as connection:
            yield RedisStore(connection)


class TestCluster(StoreConformance):
    """In a cluster of three."""

    @pytest.fixture
    @staticmethod
    async def store(redis_nodes: list[RedisServer]) -> AsyncIterator[SharedStore]:
        async with connected(redis_nodes[0].port, kind="cluster") as connection:
            yield RedisStore(connection)

    async def test_all_keys_of_a_namespace_are_on_one_node(
        self, redis_nodes: list[RedisServer]
    ) -> None:
        nodes = redis_nodes
        async with connected(nodes[1].port, kind="cluster", namespace="tg") as connection:
            store = RedisStore(connection)
            for number in range(20):
                await store.claim(str(number), "x", ttl_s=LONG_S)
        slots = {node.ask("CLUSTER", "KEYSLOT", "{tg}:1:7") for node in nodes}
        assert slots == {nodes[0].ask("CLUSTER", "KEYSLOT", "tg")}
        held = [len(node.ask("KEYS", "{tg}:1:*")) for node in nodes]  # type: ignore[arg-type]
        assert sorted(held) == [0, 0, 20]


async def test_entries_in_redis_have_a_namespace_a_schema_and_an_end(
    redis_server: RedisServer,
) -> None:
    async with connected(redis_server.port, namespace="fleet-7") as connection:
        await RedisStore(connection).claim("seq:a", "x", ttl_s=LONG_S)
    assert redis_server.ask("KEYS", "{fleet-7}*") == ["{fleet-7}:1:seq:a"]
    left_ms = redis_server.ask("PTTL", "{fleet-7}:1:seq:a")
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= LONG_S * 1000


async def test_namespaces_share_nothing(redis_server: RedisServer) -> None:
    async with connected(redis_server.port) as one, connected(redis_server.port) as other:
        await RedisStore(one).claim("k", "x", ttl_s=LONG_S)
        assert await RedisStore(other).renew("k", ttl_s=LONG_S) is None


# --- memory alone


async def test_memory_is_given_back_as_entries_expire() -> None:
    clock = Clock()
    store = MemoryStore(clock, max_entries=100)
    for number in range(50):
        await store.claim(str(number), "x", ttl_s=5.0)
    clock.now_s += 5.0
    await store.claim("new", "x", ttl_s=5.0)
    assert store.entries == 1
    await store.claim("new", "y", ttl_s=0.0, instead_of="x")
    assert store.entries == 0


async def test_when_memory_is_full_the_longest_unused_goes() -> None:
    store = MemoryStore(time.monotonic, max_entries=3)
    for key in "abc":
        await store.claim(key, "x", ttl_s=LONG_S)
    await store.renew("a", ttl_s=LONG_S)
    await store.claim("d", "x", ttl_s=LONG_S)
    found = [key for key in "abcd" if await store.renew(key, ttl_s=LONG_S)]
    assert found == ["a", "c", "d"]
    assert store.down_reason() is None
