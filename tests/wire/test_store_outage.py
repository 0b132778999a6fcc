"""What callers and operators notice when the Redis behind a gateway is slow, silent or gone."""

import asyncio
import json
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tritonclient.grpc import model_config_pb2

from tests.clients import Connection, Reply, infer
from tests.fakes.model import FakeModel, model_config
from tests.fakes.proxy import TcpProxy
from tests.fakes.triton import FakeTriton
from tests.redis_server import RedisServer
from tests.serving import Serving, serving
from tests.wire.test_ops import metrics

BUDGET_S = 0.025
FAULTS = ["frozen", "slow", "refused"]


def step(own_id: int, *, start: bool = False) -> bytes:
    entry = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [own_id]}
    parameters = {"sequence_id": own_id, "sequence_start": start}
    return infer("stateful", json.dumps({"inputs": [entry], "parameters": parameters}).encode())


@dataclass
class Setup:
    """Two gateways before one server, sharing a Redis behind a proxy."""

    one: Serving
    two: Serving
    proxy: TcpProxy
    redis: RedisServer

    async def break_it(self, fault: str) -> None:
        if fault == "frozen":
            self.proxy.freeze()
        elif fault == "slow":
            self.proxy.delay_s = 10 * BUDGET_S
        else:
            await self.proxy.stop()

    async def mend(self, fault: str) -> None:
        self.proxy.thaw()
        self.proxy.delay_s = 0.0
        if fault == "refused":
            await self.proxy.start(self.redis.port)

    async def until(self, up: float) -> None:
        async with asyncio.timeout(20):
            while (await metrics(self.one))["triton_gateway_store_up", "redis"] != up:
                await asyncio.sleep(0.05)
            while (await metrics(self.two))["triton_gateway_store_up", "redis"] != up:
                await asyncio.sleep(0.05)


@pytest.fixture
async def setup(redis_server: RedisServer) -> AsyncIterator[Setup]:
    batching = model_config_pb2.ModelSequenceBatching(max_sequence_idle_microseconds=60_000_000)
    model = FakeModel(model_config("stateful", sequence_batching=batching))
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    shared = {"url": f"redis://127.0.0.1:{proxy.port}", "namespace": uuid.uuid4().hex}
    async with (
        FakeTriton(model, server_id="fake") as fake,
        serving({"a": fake}, redis={**shared, "timeout_s": 0.5}) as one,
        serving({"a": fake}, redis={**shared, "timeout_s": BUDGET_S}) as two,
    ):
        yield Setup(one, two, proxy, redis_server)
    await proxy.close()


async def answered(gateway: Serving, own_id: int, *, start: bool = False) -> Reply:
    reply = await gateway.ask(step(own_id, start=start))
    assert reply.status == 200, reply
    return reply


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_outage_is_visible_and_passes_by_itself(setup: Setup, fault: str) -> None:
    one = setup.one
    await setup.until(up=1)
    await answered(one, 1, start=True)
    await setup.break_it(fault)
    await setup.until(up=0)
    store = (await one.ops("/fleet")).json["store"]
    assert (store["kind"], store["up"]) == ("redis", False)
    assert store["reason"]
    assert (await one.ops("/readyz")).status == 200
    assert (await metrics(one))["triton_gateway_store_failures_total", "redis"] >= 3
    await answered(one, 1)
    await answered(one, 2, start=True)
    unknown = await setup.two.ask(step(1))
    assert unknown.status == 503
    assert unknown.headers["retry-after"] == "1"
    assert "127.0.0.1" not in unknown.error
    await setup.mend(fault)
    await setup.until(up=1)
    assert (await one.ops("/fleet")).json["store"] == {"kind": "redis", "up": True}
    await answered(one, 2)  # makes known what began meanwhile
    for own_id in (1, 2):
        await answered(setup.two, own_id)


@pytest.mark.accept
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_outage_of_a_minute_adds_no_time(setup: Setup, fault: str) -> None:
    """200 requests a second, of 20 sequences. What counts is the time spent on the store."""
    await setup.until(up=1)
    for own_id in range(1, 21):
        await answered(setup.two, own_id, start=True)
    await paced(setup.two, 5)
    before = admit_ms(setup.two)
    await setup.break_it(fault)
    await paced(setup.two, 60)
    during = admit_ms(setup.two)[len(before) :]
    await setup.mend(fault)
    await setup.until(up=1)
    p99_ms, waited = statistics.quantiles(during, n=100)[98], sum(ms > 5 for ms in during)
    print(f"{fault}: {len(during)} requests, p99 {p99_ms:.2f} ms, {waited} waited over 5 ms")
    assert len(during) > 60 * 100
    assert p99_ms < BUDGET_S * 1000
    assert waited < len(during) / 50


def admit_ms(gateway: Serving) -> list[float]:
    """How long each request so far has spent finding its server."""
    return [event["stages_us"]["admit"] / 1000 for event in gateway.events("request")]


async def paced(gateway: Serving, seconds: float, per_s: int = 10) -> None:
    """Go on with every sequence so often for so long, each over a connection of its own."""

    async def one(own_id: int) -> None:
        async with await Connection.open(gateway.port) as connection:
            began_s = time.monotonic()
            for number in range(int(seconds * per_s)):
                await asyncio.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
                assert (await connection.ask(step(own_id))).status == 200

    await asyncio.gather(*(one(own_id) for own_id in range(1, 21)))
