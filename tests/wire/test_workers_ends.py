"""How a host of several worker processes ends, and what a single process says of workers."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients import Connection, ask, infer, request
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.operators import operate
from tests.processes import alive
from tests.workers import SOON_S, Workers, until


def two(fake: FakeTriton, folder: Path, **sections: Any) -> Workers:
    config = configuration({"a": fake.address}, **sections)
    return Workers({**config, "workers": 2}, folder)


@pytest.fixture
async def gateway(fake: FakeTriton, tmp_path: Path) -> AsyncIterator[Workers]:
    running = two(fake, tmp_path)
    await running.begin()
    try:
        yield running
    finally:
        await running.end()


async def test_workers_end_with_the_supervisor(gateway: Workers) -> None:
    pids = await gateway.pids()
    gateway.signal(signal.SIGKILL)

    async def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    await until(gone)


async def test_a_signal_lets_what_is_under_way_finish(gateway: Workers, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    asking = [asyncio.create_task(ask(gateway.api_port, infer())) for _ in range(10)]
    await fake.until(lambda: fake.infer_started == 10)
    gateway.signal(signal.SIGTERM)
    await _refused(gateway.api_port)
    fake.models["echo"].release()
    replies = await asyncio.gather(*asking)
    assert {(reply.status, reply.headers["connection"]) for reply in replies} == {(200, "close")}
    assert await asyncio.to_thread(gateway.wait) == 0
    assert gateway.events()[-1]["event"] == "stopped"
    assert gateway.events()[-1]["left_behind"] == 0
    assert sum(event["event"] == "request" for event in gateway.events()) == 10


async def test_a_second_signal_ends_it_at_once(gateway: Workers, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    connection = await Connection.open(gateway.api_port)
    connection.send(infer())
    await fake.until(lambda: fake.infer_started == 1)
    pids = await gateway.pids()
    gateway.signal(signal.SIGTERM)
    await _refused(gateway.api_port)
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 128 + signal.SIGTERM

    async def gone() -> bool:
        return not any(alive(pid) for pid in pids)

    await until(gone)
    connection.close()


async def _refused(port: int) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                connection = await Connection.open(port)
            except ConnectionRefusedError:
                return
            connection.close()
            await asyncio.sleep(0.01)


async def test_the_host_says_that_it_goes_before_it_goes(fake: FakeTriton, tmp_path: Path) -> None:
    gateway = two(fake, tmp_path, shutdown={"drain_delay_s": 1.5})
    await gateway.begin()
    try:
        kept = await Connection.open(gateway.api_port)
        assert (await kept.ask(request("GET", "/v2/health/ready"))).status == 200
        gateway.signal(signal.SIGTERM)
        status = 200
        while status == 200:
            status = (await ask(gateway.api_port, request("GET", "/v2/health/ready"))).status
        assert status == 400  # what a Triton says when it is not ready
        assert (await ask(gateway.api_port, infer())).status == 200
        kept.close()
        assert await asyncio.to_thread(gateway.wait) == 0
    finally:
        await gateway.end()


async def test_one_process_has_nothing_to_replace(fake: FakeTriton, tmp_path: Path) -> None:
    gateway = Workers(configuration({"a": fake.address}), tmp_path)
    await gateway.begin()
    try:
        done = await operate("restart", ops_port=gateway.ops_port)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("this gateway is one process (`workers: 1`)")
        gateway.signal(signal.SIGUSR2)

        async def told() -> Mapping[str, Any] | None:
            return next((e for e in gateway.events() if e["event"] == "not restarted"), None)

        await until(told)
        assert (await ask(gateway.api_port, infer())).status == 200
        assert await gateway.workers() == []
    finally:
        await gateway.end()
