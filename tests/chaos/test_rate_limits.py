"""Rate limits over several gateway processes, one of which may be killed."""

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.limits import SECOND_US
from routing.quota import Ask, Charge, Quotas
from tests import clients
from tests.clients import Connection
from tests.fakes.triton import FakeTriton
from tests.gateways import GatewayProcess, configuration
from tests.limits.building import rate
from tests.redis_server import RedisServer
from tests.serving import fake_triton

GATEWAYS = 3
CLIENTS = 20
OFFERED_PER_S = 500
PER_S = 200
BURST = 20
LEASE_S = 30


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    async with fake_triton("echo") as triton:
        yield triton


def gateways(
    count: int, triton: FakeTriton, redis: RedisServer, folder: Path, limits: dict[str, Any]
) -> Iterator[GatewayProcess]:
    """Gateways that count together."""
    config = configuration(
        {"a": triton.address},
        limits=limits,
        redis={"url": redis.url, "namespace": uuid.uuid4().hex, "timeout_s": 0.5},
    )
    for number in range(count):
        yield GatewayProcess(config, folder / str(number))


async def until_shared(gateway: GatewayProcess) -> None:
    while not (await asyncio.to_thread(gateway.fleet))["store"]["up"]:
        await asyncio.sleep(0.05)


async def offer(ports: list[int], seconds: float) -> tuple[list[float], int, float]:
    """Offer requests evenly; return when each was, how many were admitted, and the whole time."""
    admitted, offered_s = 0, list[float]()
    began_s = time.monotonic()

    async def client(number: int) -> None:
        nonlocal admitted
        async with await Connection.open(ports[number % len(ports)]) as connection:
            step_s = CLIENTS / OFFERED_PER_S
            due_s = began_s + number * step_s / CLIENTS
            while due_s < began_s + seconds:
                await asyncio.sleep(due_s - time.monotonic())
                due_s += step_s
                offered_s.append(time.monotonic())
                reply = await connection.ask(clients.infer())
                assert reply.status in (200, 429), reply
                admitted += reply.status == 200

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return offered_s, admitted, time.monotonic() - began_s


def admissible(offered_s: list[float]) -> int:
    """Return how many of these requests one gateway alone, and without any delay, would admit."""
    rule, quotas = rate(PER_S, BURST), Quotas()
    ask = Ask((Charge("k", rule.cost_us(1), rule.burst_us),))
    return sum(not quotas.decide(ask, int(at_s * SECOND_US)).refused for at_s in offered_s)


@pytest.mark.parametrize(
    ("seconds", "share"), [(5, 0.97), pytest.param(60, 0.99, marks=pytest.mark.accept)]
)
async def test_three_gateways_admit_what_the_limit_says(
    triton: FakeTriton, redis_server: RedisServer, tmp_path: Path, seconds: int, share: float
) -> None:
    """At most the burst and what the rate yields; and nearly all that these clients could get."""
    limits = {"all": {"per_s": PER_S, "burst": BURST}}
    running = list(gateways(GATEWAYS, triton, redis_server, tmp_path, limits))
    try:
        for gateway in running:
            await asyncio.to_thread(gateway.start)
            await until_shared(gateway)
        ports = [gateway.api_port for gateway in running]
        offered_s, admitted, took_s = await offer(ports, seconds)
        of_limit = admitted / (BURST + PER_S * took_s)
        print(f"admitted {admitted} of {len(offered_s)} in {took_s:.2f} s: {of_limit:.2%}")
        assert admitted <= BURST + PER_S * took_s
        assert len(offered_s) > 1.5 * PER_S * seconds
        assert admitted >= share * admissible(offered_s)
    finally:
        for gateway in running:
            await asyncio.to_thread(gateway.stop)


@pytest.mark.accept
async def test_places_of_a_killed_gateway_are_free_within_the_lease_time(
    triton: FakeTriton, redis_server: RedisServer, tmp_path: Path
) -> None:
    limits = {"places": {"concurrent": 50}}
    doomed, other = gateways(2, triton, redis_server, tmp_path, limits)
    try:
        for gateway in (doomed, other):
            await asyncio.to_thread(gateway.start)
            await until_shared(gateway)
        triton.models["echo"].hang()
        connections = [await Connection.open(doomed.api_port) for _ in range(50)]
        for connection in connections:
            connection.send(clients.infer())
        await triton.until(lambda: triton.infer_started == 50)
        assert (await clients.ask(other.api_port, clients.infer())).status == 429
        doomed.signal(signal.SIGKILL)
        killed_s = time.monotonic()
        await asyncio.to_thread(doomed.wait)
        for connection in connections:
            connection.close()
        triton.models["echo"].release()
        while (await clients.ask(other.api_port, clients.infer())).status == 429:
            await asyncio.sleep(0.2)
        assert time.monotonic() - killed_s < LEASE_S + 1
    finally:
        for gateway in (doomed, other):
            await asyncio.to_thread(gateway.stop)
