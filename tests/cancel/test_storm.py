"""Thousands of clients that leave a real Triton: one that a cancelled call would kill.

The server must live through it, nothing may be left behind, and the gateway must not grow.
"""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients import Connection, ask, infer
from tests.conftest import Launch
from tests.gateways import GatewayProcess, configuration
from tests.processes import resident_bytes
from tests.real.repository import executions

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

AT_ONCE = 32
PAYLOAD_FLOATS = 150_000  # 600 KB
SLEEP_MS = 5
MIB = 1024 * 1024


def sleep_request(ms: int = SLEEP_MS, **headers: str) -> bytes:
    """Write a binary request to `sleep` with a payload that it ignores."""

    def described(name: str, datatype: str, size: int) -> dict[str, object]:
        parameters = {"binary_data_size": 4 * size}
        return {"name": name, "datatype": datatype, "shape": [size], "parameters": parameters}

    inputs = [described("MS", "INT32", 1), described("PAYLOAD", "FP32", PAYLOAD_FLOATS)]
    head = json.dumps({"inputs": inputs}).encode()
    body = head + ms.to_bytes(4, "little") + bytes(4 * PAYLOAD_FLOATS)
    return infer("sleep", body, Inference_Header_Content_Length=str(len(head)), **headers)


class Storm:
    """Clients that hang up at any moment of a call, and clients whose time is too short."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._random = random.Random(11)
        self._whole = sleep_request()
        self.statuses: Counter[int] = Counter()

    async def run(self, hang_ups: int, expiries: int) -> None:
        """Let so many clients hang up, and so many deadlines expire."""
        await asyncio.gather(
            *(self._hang_up(number) for number in range(hang_ups)),
            *(self._expire() for _ in range(expiries)),
        )

    async def _hang_up(self, number: int) -> None:
        async with self._limit:
            await self._wait_for_room()
            connection = await Connection.open(self._gateway.api_port)
            part = self._random.choice((1.0, 1.0, 1.0, 0.5))  # some leave during the body
            connection.send(self._whole[: int(len(self._whole) * part)])
            await connection.writer.drain()
            await asyncio.sleep(self._random.uniform(0, 0.02))
            (connection.reset if number % 2 else connection.close)()

    async def _expire(self) -> None:
        """Ask until a deadline has really expired; a full server says so and is asked again."""
        status = 0
        while status != 504:
            async with self._limit:
                await self._wait_for_room()
                timeout_ms = str(self._random.randint(1, 4))  # `sleep` needs 5 ms
                data = sleep_request(X_Request_Timeout_Ms=timeout_ms)
                status = (await ask(self._gateway.api_port, data)).status
                self.statuses[status] += 1

    async def _wait_for_room(self) -> None:
        # Four instances of 5 ms do 800 calls a second; more would only be refused.
        await asyncio.sleep(AT_ONCE * SLEEP_MS / 1000 / 4)


async def at_rest(gateway: GatewayProcess) -> None:
    """Wait until nothing is under way or detached any more."""
    async with asyncio.timeout(30):
        while True:
            (row,) = (await asyncio.to_thread(gateway.fleet))["servers"]
            if (row["in_flight_calls"], row["in_flight_rows"], row["detached_calls"]) == (0, 0, 0):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("count", "growth_bytes"),
    # A short storm is over before memory has settled; test_garbage covers what it would show.
    [(500, None), pytest.param(10_000, 2 * MIB, marks=pytest.mark.accept)],
    ids=["short", "long"],
)
async def test_a_storm_of_leaving_clients(
    launch_triton: Launch,
    fixture_models: Path,
    tmp_path: Path,
    count: int,
    growth_bytes: int | None,
) -> None:
    server_id = f"storm{count}"
    triton: LocalTriton = await asyncio.to_thread(launch_triton, server_id, ["sleep"])
    pid = triton.pid
    config = configuration({"a": triton.grpc_address}, logging={"requests": "none"})
    gateway = GatewayProcess(config, tmp_path)
    try:
        await asyncio.to_thread(gateway.start)
        storm = Storm(gateway)
        await storm.run(count // 2, count // 2)
        await at_rest(gateway)
        half_way_bytes = resident_bytes(gateway.pid)
        await storm.run(count // 2, count // 2)
        await at_rest(gateway)
        grown_bytes = resident_bytes(gateway.pid) - half_way_bytes

        assert triton.alive
        assert triton.pid == pid
        assert storm.statuses[504] == count
        assert set(storm.statuses) <= {200, 503, 504}
        done = executions(fixture_models, server_id)
        assert done["started"] == done["finished"]
        assert done["cancelled"] == 0
        assert growth_bytes is None or grown_bytes < growth_bytes
        reply = await ask(gateway.api_port, sleep_request())
        assert reply.status == 200
        assert not [event for event in gateway.events() if "exception" in event]
    finally:
        assert await asyncio.to_thread(gateway.stop) == 0
