"""Real Tritons that are killed under load, and the connections they see."""

import asyncio
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients import ask, infer
from tests.conftest import Launch
from tests.gateways import GatewayProcess, configuration
from tests.processes import established

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

RATE_PER_S = 200


def sleep_request(ms: int) -> bytes:
    tensor = {"name": "MS", "datatype": "INT32", "shape": [1], "data": [ms]}
    return infer("sleep", json.dumps({"inputs": [tensor]}).encode())


@dataclass
class Asked:
    """One request: when it was sent and answered, in seconds of the loop, and the status."""

    sent_s: float
    answered_s: float = float("inf")
    status: int = 0


class Load:
    """Requests at a fixed rate, whatever becomes of them."""

    def __init__(self, port: int, ms: int) -> None:
        self._port = port
        self._data = sleep_request(ms)
        self._loop = asyncio.get_running_loop()
        self.asked: list[Asked] = []

    async def run(self, seconds: float) -> None:
        """Send for so long, and wait for the last answer."""
        begun_s = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE_PER_S)):
                await asyncio.sleep(begun_s + number / RATE_PER_S - self._loop.time())
                group.create_task(self._ask())

    async def _ask(self) -> None:
        asked = Asked(self._loop.time())
        self.asked.append(asked)
        reply = await ask(self._port, self._data)
        asked.answered_s = self._loop.time()
        asked.status = reply.status


@pytest.mark.parametrize(
    ("rounds", "seconds"),
    [(1, 3.0), pytest.param(10, 12.0, marks=pytest.mark.accept)],
    ids=["short", "long"],
)
async def test_a_killed_server_is_hidden_by_the_other_one(
    launch_triton: Launch, tmp_path: Path, rounds: int, seconds: float
) -> None:
    a: LocalTriton = await asyncio.to_thread(launch_triton, f"kill-a{rounds}", ["sleep"])
    b: LocalTriton = await asyncio.to_thread(launch_triton, f"kill-b{rounds}", ["sleep"])
    config = configuration({"a": a.grpc_address, "b": b.grpc_address})
    gateway = GatewayProcess(config, tmp_path)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.to_thread(gateway.start)
        for _ in range(rounds):
            load = Load(gateway.api_port, ms=10)
            running = loop.create_task(load.run(seconds))
            await asyncio.sleep(seconds / 3)
            killed_s = loop.time()
            os.kill(a.pid, signal.SIGKILL)
            await running
            assert any(asked.sent_s < killed_s < asked.answered_s for asked in load.asked)
            assert Counter(asked.status for asked in load.asked) == {200: len(load.asked)}
            if rounds > 1:
                await asyncio.to_thread(a.restart)
                await asyncio.to_thread(a.wait_ready)
                await _up(gateway, "a")
    finally:
        assert await asyncio.to_thread(gateway.stop) == 0
    assert not [event for event in gateway.events() if "exception" in event]


async def _up(gateway: GatewayProcess, name: str) -> None:
    async with asyncio.timeout(30):
        while True:
            servers = (await asyncio.to_thread(gateway.fleet))["servers"]
            if next(row for row in servers if row["name"] == name)["up"]:
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "ms", [20, pytest.param(2000, marks=pytest.mark.accept)], ids=["short", "long"]
)
async def test_three_hundred_slow_calls_make_four_connections(
    launch_triton: Launch, tmp_path: Path, ms: int
) -> None:
    triton: LocalTriton = await asyncio.to_thread(launch_triton, f"slow{ms}", ["sleep"])
    port = int(triton.grpc_address.rpartition(":")[2])
    config = configuration(
        {"a": triton.grpc_address}, upstream={"channels": 4}, deadlines={"default_s": 400.0}
    )
    gateway = GatewayProcess(config, tmp_path)
    try:
        await asyncio.to_thread(gateway.start)
        asking = [
            asyncio.get_running_loop().create_task(_patient(gateway.api_port, sleep_request(ms)))
            for _ in range(300)
        ]
        await _in_flight(gateway, at_least=250)
        assert established(port) == 4
        assert Counter(await asyncio.gather(*asking)) == {200: 300}
        assert established(port) == 4
    finally:
        assert await asyncio.to_thread(gateway.stop) == 0


async def _patient(port: int, data: bytes) -> int:
    """Ask, however long the answer takes; four instances work on three hundred calls."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    status = (await reader.readline()).split()[1]
    writer.close()
    return int(status)


async def _in_flight(gateway: GatewayProcess, *, at_least: int) -> None:
    async with asyncio.timeout(20):
        while True:
            (row,) = (await asyncio.to_thread(gateway.fleet))["servers"]
            if row["in_flight_calls"] >= at_least:
                return
            await asyncio.sleep(0.01)
