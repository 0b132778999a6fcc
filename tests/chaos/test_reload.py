"""Real servers under load while the configuration is changed: well, and badly."""

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from tests.chaos.fleet import RealFleet
from tests.chaos.load import WHOAMI, Load, exchange, sleep
from tests.clients import Connection
from tests.gateways import GatewayProcess
from tests.processes import open_files
from tests.reloading import put

KEPT = WHOAMI.data.replace(b"Connection: close\r\n", b"")
BAD = {
    "a server twice": "servers:\n- {name: a, grpc: 'x:1'}\n- {name: a, grpc: 'y:1'}\n",
    "an unknown key": "servers: [{name: a, grpc: 'x:1'}]\nloging: {}\n",
    "a wrong type": "servers: [{name: a, grpc: 'x:1'}]\ndeadlines: {default_s: soon}\n",
    "a number for text": "servers: [{name: a, grpc: 'x:1', zone: 7}]\n",
    "an unknown pool": "servers: [{name: a, grpc: 'x:1'}]\nmodels: {whoami: {pool: gpu}}\n",
    "nobody there": "servers: [{name: z, grpc: '127.0.0.1:1'}]\n",
}


def reload(gateway: GatewayProcess, config: Mapping[str, Any] | str) -> dict[str, Any] | None:
    """Put a configuration in the file and have it taken up; return None if it is refused."""
    put(gateway.config_path, config)
    url = f"http://127.0.0.1:{gateway.ops_port}/config/reload"
    try:
        with urllib.request.urlopen(url, data=b"", timeout=30) as answer:
            done: dict[str, Any] = json.loads(answer.read())
            return done
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 422:
            raise
        return None


def counters(gateway: GatewayProcess) -> dict[str, float]:
    """Return every sample that must never go back."""
    lines = gateway.ops("/metrics").decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("triton_gateway_"))
    return {
        name: float(value)
        for name, _, value in pairs
        if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))
    }


class Callers:
    """Many callers, each with one request at a time; every other one keeps its connection.

    Together they send at most `rate_per_s`, and less where the machine is slower than that.
    """

    def __init__(self, port: int, *, rate_per_s: float, number: int = 32) -> None:
        self._port = port
        self._interval_s = number / rate_per_s
        self._number = number
        self._stopping = False
        self._running: list[asyncio.Task[None]] = []
        self.statuses: Counter[int] = Counter()
        self.servers: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._running = [
            asyncio.create_task((self._keep if number % 2 else self._open)())
            for number in range(self._number)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._running)

    async def answered(self, count: int) -> None:
        """Wait until so many more requests were answered."""
        wanted = self.statuses.total() + count
        while self.statuses.total() < wanted:
            assert not any(task.done() for task in self._running)
            await asyncio.sleep(0.02)

    async def _open(self) -> None:
        async for _ in self._turns():
            self._note(*await exchange(self._port, WHOAMI.data))

    async def _keep(self) -> None:
        connection = await Connection.open(self._port)
        try:
            async for _ in self._turns():
                reply = await connection.ask(KEPT)
                self._note(reply.status, reply.body)
                if reply.headers.get("connection") == "close":
                    connection.close()
                    connection = await Connection.open(self._port)
        finally:
            connection.close()

    async def _turns(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            next_s = loop.time() + self._interval_s
            yield
            await asyncio.sleep(next_s - loop.time())

    def _note(self, status: int, body: bytes) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.servers[json.loads(body)["outputs"][0]["data"][0]] += 1


def of_others(gateway: GatewayProcess, names: set[str]) -> set[str]:
    """Return the counters of servers that the gateway no longer has: they go with them."""
    there = {f'server="{row["name"]}"' for row in gateway.fleet()["servers"]}
    return {name for name in names if 'server="' in name and not any(s in name for s in there)}


@pytest.mark.parametrize(
    ("rounds", "rate_per_s"),
    [
        pytest.param(1, 150.0, id="short"),
        pytest.param(4, 500.0, id="long", marks=pytest.mark.accept),
    ],
)
async def test_five_reloads_under_load_lose_no_request(
    fleet: RealFleet, folder: Path, rounds: int, rate_per_s: float
) -> None:
    """Two of the five are refused; half of the callers open a connection for each request."""
    manual = {"reload": {"watch": False}}
    whole, two = fleet.config(**manual), fleet.config("a", "b", **manual)
    peak = fleet.config("b", "c", **manual, balancing={"policy": "peak_ewma"})
    gateway = GatewayProcess(whole, folder)
    await asyncio.to_thread(gateway.start)
    loop = asyncio.get_running_loop()
    try:
        async with Callers(gateway.api_port, rate_per_s=rate_per_s) as callers:
            await callers.answered(50)
            before = await asyncio.to_thread(counters, gateway)
            files, began_s = open_files(gateway.pid), loop.time()
            for number in range(rounds):
                bad = (list(BAD.values()) * 2)[2 * number :]
                for config, good in (
                    (two, True), (bad[0], False), (peak, True), (bad[1], False), (whole, True),
                ):  # fmt: skip
                    done = await asyncio.to_thread(reload, gateway, config)
                    assert (done is not None) is good
                    await callers.answered(int(rate_per_s / 2))
                    after = await asyncio.to_thread(counters, gateway)
                    back = {n for n, value in before.items() if after.get(n, -1) < value}
                    assert back - of_others(gateway, back) == set()
                    before = after
            callers.servers.clear()
            await callers.answered(int(rate_per_s))
            assert set(callers.servers) == {"a", "b", "c"}
            took_s = loop.time() - began_s
        assert set(callers.statuses) == {200}
        view = gateway.fleet()["config"]
        assert (view["draining"], view["last_error"], view["needs_restart"]) == ([], None, [])
        assert open_files(gateway.pid) < files
    finally:
        assert await asyncio.to_thread(gateway.stop) == 0
    count = callers.statuses.total()
    print(f"{count} requests, {count / took_s:.0f} a second, {5 * rounds} reloads, no error")


async def test_bad_files_under_load_are_refused_without_harm(
    fleet: RealFleet, folder: Path
) -> None:
    gateway = GatewayProcess(fleet.config("a", "b", reload={"watch": False}), folder)
    await asyncio.to_thread(gateway.start)
    try:
        before = gateway.fleet()["config"]["hash"]
        async with Load(gateway.api_port, [WHOAMI]) as load:
            await load.sent(20)
            for fault, text in BAD.items():
                assert await asyncio.to_thread(reload, gateway, text) is None, fault
                await load.sent(20)
            view = await asyncio.to_thread(gateway.fleet)
            assert view["config"]["hash"] == before
            await load.even("ab")
        assert load.failures() == []
    finally:
        await asyncio.to_thread(gateway.stop)


async def test_a_slow_request_ends_on_the_server_that_was_removed(
    fleet: RealFleet, folder: Path
) -> None:
    gateway = GatewayProcess(fleet.config("a", reload={"watch": False}), folder)
    await asyncio.to_thread(gateway.start)
    try:
        done = fleet.executions()["a"]["finished"]
        slow = asyncio.create_task(exchange(gateway.api_port, sleep(1500).data))
        while not gateway.fleet()["servers"][0]["in_flight_calls"]:
            await asyncio.sleep(0.02)
        assert await asyncio.to_thread(reload, gateway, fleet.config("b"))
        (old,) = gateway.fleet()["config"]["draining"]
        assert (old["requests"], old["calls"]) == (1, 1)
        status, body = await exchange(gateway.api_port, WHOAMI.data)
        assert (status, json.loads(body)["outputs"][0]["data"][0]) == (200, "b")
        assert (await slow)[0] == 200
        assert fleet.executions()["a"]["finished"] == done + 1
    finally:
        await asyncio.to_thread(gateway.stop)
