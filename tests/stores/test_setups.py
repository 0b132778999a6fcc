"""Gateways share limits, sequences and switches through a Redis Cluster, and through Sentinels."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from gateway import switchboard
from tests.clients import infer, tensor
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.operators import operate
from tests.redis_server import HOST, RedisServer, redis_failover
from tests.serving import Serving, serving, until

LIMITS = {"slow": {"per_minute": 1, "burst": 3, "models": ["echo"]}, "seats": {"concurrent": 5}}
FAILED_OVER_WITHIN_S = 20.0


class Pair:
    """Two gateways before two servers, and the sequences that were begun through the first."""

    def __init__(self, one: Serving, two: Serving, servers: list[FakeTriton]) -> None:
        self.one = one
        self.two = two
        self._servers = servers
        self._places: dict[int, list[int]] = {}

    async def step(self, gateway: Serving, own_id: int, *, start: bool = False) -> int:
        flag = b',"sequence_start":true' if start else b""
        body = tensor(1.0)[:-1] + b',"parameters":{"sequence_id":%d%b}}' % (own_id, flag)
        before = [server.infer_started for server in self._servers]
        reply = await gateway.ask(infer("counter", body))
        if reply.status == 200:
            after = [server.infer_started for server in self._servers]
            self._places.setdefault(own_id, []).append(
                next(n for n, (a, b) in enumerate(zip(before, after, strict=True)) if b > a)
            )
        return reply.status

    async def agree(self, first: int) -> None:
        """Sequences that one begins go on through the other, on the server they began on."""
        for own_id in range(first, first + 6):
            assert await self.step(self.one, own_id, start=True) == 200
            assert await self.step(self.two, own_id) == 200
            assert await self.step(self.one, own_id) == 200
        assert await self.step(self.two, first + 6) == 400

    def stayed(self) -> bool:
        return all(len(set(places)) == 1 for places in self._places.values())

    async def statuses(self) -> list[int]:
        """Ask in turn for what is limited."""
        gateways = (self.one, self.two) * 2
        return [(await gateway.infer("echo")).status for gateway in gateways]

    async def reset(self) -> None:
        for gateway in (self.one, self.two):
            done = await operate("limits", "reset", "anonymous", ops_port=gateway.ops_port)
            assert done.code == 0, done.err

    async def switch(self, command: str, *words: str) -> None:
        done = await operate(command, "limits", *words, ops_port=self.one.ops_port)
        assert (done.code, done.err) == (0, "")
        name = f"feature {command}d"
        count = len(self.one.events(name))
        await until(lambda: len(self.two.events(name)) == count)


@contextlib.asynccontextmanager
async def pair(url: str, **redis: Any) -> AsyncIterator[Pair]:
    idle = model_config_pb2.ModelSequenceBatching(max_sequence_idle_microseconds=60_000_000)

    def server(name: str) -> FakeTriton:
        counter = FakeModel(model_config("counter", sequence_batching=idle))
        return FakeTriton(counter, FakeModel(model_config("echo")), server_id=name)

    shared = {"url": url, "namespace": uuid.uuid4().hex, "timeout_s": 0.5, **redis}
    async with (
        server("a") as a,
        server("b") as b,
        serving({"a": a, "b": b}, limits=LIMITS, redis=shared) as one,
        serving({"a": a, "b": b}, limits=LIMITS, redis=shared) as two,
    ):
        both = Pair(one, two, [a, b])
        for gateway in (one, two):
            await until_up(gateway)
        yield both


async def until_up(gateway: Serving, timeout_s: float = 10.0) -> None:
    store = gateway.cores.current.view.store
    await until(lambda: store.down_reason() is None, timeout_s)


async def works(both: Pair, first: int) -> None:
    await both.agree(first)
    await both.reset()
    assert await both.statuses() == [200, 200, 200, 429]
    await both.switch("disable", "--for", "10m")
    assert await both.statuses() == [200] * 4
    await both.switch("enable")
    assert 429 in await both.statuses()
    assert both.stayed()


async def test_a_cluster_is_enough(
    redis_nodes: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switchboard, "FOLLOW_S", 0.1)
    hosts = ",".join(f"{HOST}:{node.port}" for node in redis_nodes)
    async with pair(f"redis+cluster://{hosts}") as both:
        await works(both, 1)


@pytest.mark.accept
async def test_a_failover_of_sentinels_loses_nothing_that_was_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switchboard, "FOLLOW_S", 0.1)
    with redis_failover(tmp_path) as (master, sentinel):
        async with pair(f"redis+sentinel://{HOST}:{sentinel.port}/tg") as both:
            await works(both, 1)
            await both.switch("disable", "--for", "10m")
            await asyncio.sleep(0.5)  # replicas follow behind
            killed_s = time.monotonic()
            master.kill()
            store = both.one.cores.current.view.store
            await until(lambda: store.down_reason() is not None)
            assert await both.step(both.one, 1) == 200  # known here
            for gateway in (both.one, both.two):
                await until_up(gateway, FAILED_OVER_WITHIN_S)
            print(f"failed over within {time.monotonic() - killed_s:.1f} s")
            for own_id in range(1, 7):
                assert await both.step(both.two, own_id) == 200
            assert await both.statuses() == [200] * 4
            await both.switch("enable")
            await works(both, 11)
