"""Several worker processes balance and eject like one."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import pytest
from grpc import StatusCode as Code

from tests.clients import Connection, infer
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.operators import operate
from tests.serving import fake_triton
from tests.workers import BACK_S, Workers, until

AT_ONCE = 6
FAILURES = 5
NEWS_ARRIVE_S = 0.06


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with fake_triton("echo", "turns") as server:
        yield server


@pytest.fixture
async def other() -> AsyncIterator[FakeTriton]:
    async with fake_triton("echo", "turns", server_id="other") as server:
        yield server


@pytest.fixture
async def gateway(fake: FakeTriton, other: FakeTriton, tmp_path: Path) -> AsyncIterator[Workers]:
    config = configuration(
        {"a": fake.address, "b": other.address},
        balancing={"slow_start_s": 0},
        models={"turns": {"policy": "round_robin"}},
        breaker={"consecutive_failures": FAILURES, "open_min_s": 60, "open_max_s": 60},
    )
    running = Workers({**config, "workers": 2}, tmp_path)
    await running.begin()
    try:
        yield running
    finally:
        fake.models["echo"].release()
        other.models["echo"].release()
        await running.end()


def _name(number: int) -> str:
    return f"connection-{number}"


class Clients:
    """Connections that are kept open, by the worker that has accepted them."""

    def __init__(self, gateway: Workers) -> None:
        self.of: dict[int, list[Connection]] = {0: [], 1: []}
        self._gateway = gateway
        self._opened = 0

    async def open(self, each: int) -> None:
        """Connect until every worker has so many connections."""
        while min(map(len, self.of.values())) < each:
            numbers = range(self._opened, self._opened + 3 * each)
            opened = {_name(number): await self._open(number) for number in numbers}
            self._opened += len(opened)
            workers = await self._workers_of(opened)
            for name, connection in opened.items():
                self.of[workers[name]].append(connection)

    async def _open(self, number: int) -> Connection:
        connection = await Connection.open(self._gateway.api_port)
        assert (await connection.ask(infer(X_Request_Id=_name(number)))).status == 200
        return connection

    async def _workers_of(self, names: Collection[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}

        async def logged() -> bool:
            lines = [line for line in self._gateway.events() if line["event"] == "request"]
            found.update({line["request_id"]: line["worker"] for line in lines})
            return found.keys() >= set(names)

        await until(logged)
        return found

    def send(self, worker: int) -> None:
        """Send a request over each of so many connections of a worker."""
        for connection in self.of[worker][:AT_ONCE]:
            connection.send(infer())

    def close(self) -> None:
        for connections in self.of.values():
            for connection in connections:
                connection.close()


@contextlib.asynccontextmanager
async def clients(gateway: Workers, each: int = AT_ONCE) -> AsyncIterator[Clients]:
    opened = Clients(gateway)
    try:
        await opened.open(each)
        yield opened
    finally:
        opened.close()


async def cordon(gateway: Workers, command: str, server: str) -> None:
    done = await operate("servers", command, server, ops_port=gateway.ops_port)
    assert done.code == 0, done.err


async def _all_of_one_worker_on_a(gateway: Workers, a: FakeTriton, asking: Clients) -> int:
    """Leave requests of the first worker under way on a, and none on b; return how many came."""
    await cordon(gateway, "cordon", "b")
    before = a.infer_started
    asking.send(0)
    await a.until(lambda: a.infer_started == before + AT_ONCE)
    await cordon(gateway, "uncordon", "b")
    return a.infer_started


async def test_a_worker_sees_what_another_has_under_way(
    gateway: Workers, fake: FakeTriton, other: FakeTriton
) -> None:
    async with clients(gateway) as asking:
        fake.models["echo"].hang()
        other.models["echo"].hang()
        before_a = await _all_of_one_worker_on_a(gateway, fake, asking)
        before_b = other.infer_started
        asking.send(1)
        await other.until(lambda: other.infer_started == before_b + AT_ONCE)
        assert fake.infer_started == before_a


async def test_what_a_killed_worker_had_under_way_is_forgotten_within_2_s(
    gateway: Workers, fake: FakeTriton, other: FakeTriton
) -> None:
    async with clients(gateway) as asking:
        fake.models["echo"].hang()
        other.models["echo"].hang()
        before_a = await _all_of_one_worker_on_a(gateway, fake, asking)
        before_b = other.infer_started
        os.kill((await gateway.pids())[0], signal.SIGKILL)
        await asyncio.sleep(2.0)
        asking.send(1)

        async def all_came() -> bool:
            came = fake.infer_started + other.infer_started
            return came == before_a + before_b + AT_ONCE

        await until(all_came, BACK_S)
        assert fake.infer_started - before_a == AT_ONCE / 2
        assert other.infer_started - before_b == AT_ONCE / 2


async def test_failures_seen_by_both_eject_for_both(
    gateway: Workers, fake: FakeTriton, other: FakeTriton
) -> None:
    """Five in all, not five for each worker."""
    async with clients(gateway, each=1) as asking:
        other.models["turns"].error = (Code.INTERNAL, "it broke")
        statuses = []
        for turn in range(60):
            connection = asking.of[turn % 2][0]
            statuses.append((await connection.ask(infer("turns"))).status)
            await asyncio.sleep(NEWS_ARRIVE_S)
        assert set(statuses) == {200, 500}
        assert statuses.count(500) in (FAILURES, FAILURES + 1)
        assert await gateway.metric("triton_gateway_server_up") == 2
