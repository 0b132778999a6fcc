"""Sequences over three real servers and two gateways that share a Redis: every sum is right."""

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from tests.chaos.fleet import RealFleet
from tests.gateways import GatewayProcess
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

CLIENTS = 8
STEPS = 20
LOST = 409


class Gateways:
    """Gateway processes of one namespace, and a client of each."""

    def __init__(self, processes: list[GatewayProcess], redis: RedisServer, namespace: str) -> None:
        self.processes = processes
        self._redis = redis
        self._namespace = namespace
        self._http = aiohttp.ClientSession()

    async def close(self) -> None:
        await self._http.close()
        for process in self.processes:
            await asyncio.to_thread(process.stop)

    async def replace(self, at: int, folder: Path) -> None:
        """Stop a gateway and start another one of the same configuration."""
        old = self.processes[at]
        await asyncio.to_thread(old.stop)
        new = self.processes[at] = GatewayProcess(
            yaml.safe_load(old.config_path.read_text()), folder
        )
        await asyncio.to_thread(new.start)

    def ids(self) -> set[str]:
        """The keys of all that is kept of sequences."""
        found = self._redis.ask("KEYS", f"{{{self._namespace}}}:1:seq:*")
        assert isinstance(found, list)
        return set(found)

    def server_of(self, own_id: int) -> str:
        """Return where the gateways say a sequence is."""
        name = f"{{{self._namespace}}}:1:seq:anonymous:accumulator::n{own_id}"
        return str(self._redis.ask("GET", name)).split()[1]

    async def asked_directly(self, own_id: int, server: "LocalTriton") -> tuple[int, str]:
        """Send a step to a Triton; return what it says to one it does not know."""
        return await self._post(f"http://{server.http_address}", _step(own_id, 1))

    async def step(
        self, own_id: int | str, value: int, *, by: int = 0, start: bool = False, end: bool = False
    ) -> tuple[int, Any]:
        """Send one step; return the status, and the sum or the error."""
        return await self._post(self.processes[by].url, _step(own_id, value, start=start, end=end))

    async def _post(self, base: str, body: dict[str, Any]) -> tuple[int, Any]:
        url = f"{base}/v2/models/accumulator/infer"
        async with self._http.post(url, json=body) as answer:
            said = json.loads(await answer.read())
            if answer.status != 200:
                return answer.status, said["error"]
            return 200, said["outputs"][0]["data"][0]


def _step(
    own_id: int | str, value: int, *, start: bool = False, end: bool = False
) -> dict[str, Any]:
    entry = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    parameters = {"sequence_id": own_id, "sequence_start": start, "sequence_end": end}
    return {"parameters": parameters, "inputs": [entry]}


@contextlib.asynccontextmanager
async def gateways_of(
    fleet: RealFleet, redis: RedisServer, folder: Path, count: int = 2
) -> AsyncIterator[Gateways]:
    namespace = uuid.uuid4().hex
    shared = {"url": redis.url, "namespace": namespace, "timeout_s": 2.0}  # a busy machine
    processes = [
        GatewayProcess(fleet.config(redis=shared), folder / str(number)) for number in range(count)
    ]
    gateways = Gateways(processes, redis, namespace)
    try:
        for process in processes:
            await asyncio.to_thread(process.start)
        yield gateways
    finally:
        await gateways.close()


@dataclass
class Running:
    """One sequence, and the sum it has to have."""

    own_id: int | str
    total: int = 0

    async def go(self, gateways: Gateways, *, start: bool = False, end: bool = False) -> int:
        """Make one step through a random gateway; return its status. A sum must be right."""
        value = random.randint(-1000, 1000)
        by = random.randrange(len(gateways.processes))
        status, said = await gateways.step(self.own_id, value, by=by, start=start, end=end)
        if status == 200:
            self.total = value if start else self.total + value
            assert said == self.total
        return status


async def run_through(gateways: Gateways, ids: Iterable[int | str]) -> int:
    """Run sequences one after the other; return how many steps were right."""
    right = 0
    for own_id in ids:
        sequence = Running(own_id)
        for number in range(STEPS):
            status = await sequence.go(gateways, start=number == 0, end=number == STEPS - 1)
            assert status == 200
            right += 1
    return right


@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=pytest.mark.accept)], ids=["short", "long"]
)
async def test_every_running_sum_is_right(
    fleet: RealFleet, redis_server: RedisServer, folder: Path, count: int
) -> None:
    """Eight clients; each step of a sequence through either of two gateways."""
    ids = range(1, count + 1)
    async with gateways_of(fleet, redis_server, folder) as gateways:
        right = await asyncio.gather(
            *(run_through(gateways, ids[at::CLIENTS]) for at in range(CLIENTS))
        )
        assert sum(right) == count * STEPS
        assert gateways.ids() == set()


async def test_with_a_killed_server_exactly_its_sequences_are_lost(
    fleet: RealFleet, redis_server: RedisServer, folder: Path
) -> None:
    sequences = [Running(own_id) for own_id in range(1, 41)]
    async with gateways_of(fleet, redis_server, folder) as gateways:
        await asyncio.gather(*(one.go(gateways, start=True) for one in sequences))
        await asyncio.gather(*(one.go(gateways) for one in sequences))
        where = {one.own_id: gateways.server_of(int(one.own_id)) for one in sequences}
        assert set(where.values()) == {"a", "b", "c"}
        fleet["b"].kill()
        for _ in range(2):
            statuses = await asyncio.gather(*(one.go(gateways) for one in sequences))
            for one, status in zip(sequences, statuses, strict=True):
                assert status == (LOST if where[one.own_id] == "b" else 200)
        lost = [one for one in sequences if where[one.own_id] == "b"]
        await fleet.restart("b")
        assert {await one.go(gateways) for one in lost} == {LOST}  # its memory is gone
        assert {await one.go(gateways, start=True) for one in lost} == {200}
        assert {await one.go(gateways, end=True) for one in sequences} == {200}


async def test_sequences_outlast_a_restart_of_the_gateway(
    fleet: RealFleet, redis_server: RedisServer, folder: Path
) -> None:
    sequences = [Running(own_id) for own_id in range(1, 13)]
    async with gateways_of(fleet, redis_server, folder, count=1) as gateways:
        assert {await one.go(gateways, start=True) for one in sequences} == {200}
        await gateways.replace(0, folder / "new")
        assert {await one.go(gateways) for one in sequences} == {200}
        assert {await one.go(gateways, end=True) for one in sequences} == {200}


async def test_a_reloaded_model_and_a_silent_sequence_are_told(
    fleet: RealFleet, redis_server: RedisServer, folder: Path
) -> None:
    reloaded, silent = Running(7), Running("seven")
    async with gateways_of(fleet, redis_server, folder) as gateways:
        assert await reloaded.go(gateways, start=True) == 200
        assert await gateways.step(8, 1) == await gateways.asked_directly(8, fleet["c"])
        server = gateways.server_of(7)
        await fleet.unload(server, "accumulator")
        await fleet.load(server, "accumulator")
        assert await reloaded.go(gateways) == LOST
        assert await silent.go(gateways, start=True) == 200
        await asyncio.sleep(7.0)  # the model's idle time is 5 s
        status, said = await gateways.step("seven", 1)
        assert status == LOST
        assert "sequence seven of model 'accumulator' is lost" in said


async def test_a_cordoned_server_ends_its_sequences_and_begins_none(
    fleet: RealFleet, redis_server: RedisServer, folder: Path
) -> None:
    sequences = [Running(own_id) for own_id in range(1, 13)]
    async with gateways_of(fleet, redis_server, folder) as gateways:
        assert {await one.go(gateways, start=True) for one in sequences} == {200}
        for process in gateways.processes:
            post = f"http://127.0.0.1:{process.ops_port}/servers/a/cordon"
            async with gateways._http.post(post) as answer:
                assert answer.status == 200
        assert {await one.go(gateways) for one in sequences} == {200}
        later = [Running(own_id) for own_id in range(100, 112)]
        assert {await one.go(gateways, start=True) for one in later} == {200}
        assert "a" not in {gateways.server_of(int(one.own_id)) for one in later}
        assert {await one.go(gateways, end=True) for one in [*sequences, *later]} == {200}
        assert gateways.ids() == set()
