"""The stores under test: in memory, and in a real Redis, each test in a namespace of its own."""

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from gateway.ports import SharedStore
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.redis_client import RedisTarget, make_client
from gateway.stores.redis_connection import RedisConnection, RedisLimits
from gateway.workers.link import Link
from gateway.workers.linked_store import SERVICE, LinkedStore, store_service
from tests.redis_server import HOST, RedisServer, redis_cluster

PATIENT_S = 5.0
"""For tests that are not about time: the machine may be busy."""


class Log(list[str]):
    """What a connection logs: the events."""

    def __call__(self, event: str, **_: Any) -> None:
        self.append(event)


@contextlib.asynccontextmanager
async def connected(
    *ports: int,
    kind: Any = "single",
    timeout_s: float = PATIENT_S,
    connect_timeout_s: float = PATIENT_S,
    max_connections: int = 8,
    namespace: str | None = None,
    log: Log | None = None,
    **target: Any,
) -> AsyncIterator[RedisConnection]:
    """Give a connection, not started, in a namespace of its own."""
    told = Log() if log is None else log
    nodes: Sequence[tuple[str, int]] = [(HOST, port) for port in ports]
    connection = RedisConnection(
        make_client(
            RedisTarget(kind, nodes, **target),
            timeout_s=connect_timeout_s,
            max_connections=max_connections,
        ),
        limits=RedisLimits(timeout_s, max_connections),
        namespace=namespace or uuid.uuid4().hex,
        clock=time.monotonic,
        told_up=told,
        told_down=told,
    )
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def linked(store: SharedStore) -> AsyncIterator[LinkedStore]:
    """Give what a worker sees of a store in the supervisor."""
    ours, theirs = socket.socketpair()
    services = {SERVICE: store_service(store)}
    ends = [
        await Link.open(ours, on_message=print, services=services),
        await Link.open(theirs, on_message=print, services={}),
    ]
    running = [asyncio.create_task(end.run()) for end in ends]
    try:
        yield LinkedStore(ends[1])
    finally:
        for end in ends:
            await end.finish()
        await asyncio.gather(*running)


@pytest.fixture(params=["memory", "linked", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SharedStore]:
    """Give each kind of store."""
    if request.param == "memory":
        yield MemoryStore(time.monotonic, max_entries=1000)
        return
    if request.param == "linked":
        async with linked(MemoryStore(time.monotonic, max_entries=1000)) as store:
            yield store
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    async with connected(server.port) as connection:
        yield RedisStore(connection)


@pytest.fixture(scope="session")
def redis_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Give a cluster of three, shared like `redis_server`."""
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


async def until_gone(store: SharedStore, key: str) -> None:
    """Wait until nothing is at a key."""
    async with asyncio.timeout(PATIENT_S):
        while await store.claim(key, "mine", ttl_s=0.001) != "mine":
            await asyncio.sleep(0.01)
