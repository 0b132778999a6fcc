"""One tenant floods a model of a real Triton with what matters least; another one hardly notices.

`levels` works for MS milliseconds in each of sixteen instances, and has three levels of priority.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients import Connection, infer
from tests.conftest import Launch
from tests.gateways import GatewayProcess, configuration
from tests.tenants import KEYS, hashed

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

LEVELS = 16
FLOOD_MS = (120, 200)
WORK_MS = 200
CARRIED_PER_S = LEVELS / 0.16
ROUNDS = 3


def work(ms: int, tenant: str) -> bytes:
    tensor = {"name": "MS", "datatype": "INT32", "shape": [1, 1], "data": [ms]}
    return infer("levels", json.dumps({"inputs": [tensor]}).encode(), X_API_Key=KEYS[tenant])


def admitting(triton: "LocalTriton") -> dict[str, Any]:
    """What `a` asks for matters least, what `b` asks for most."""
    return configuration(
        {"a": triton.grpc_address},
        admission={"mode": "enforce"},
        auth={"mode": "enforce"},
        tenants={
            "a": {"priority_class": "sheddable", "keys": [hashed("a")]},
            "b": {"priority_class": "critical", "keys": [hashed("b")]},
        },
        logging={"requests": "none"},
    )


@dataclass
class Caller:
    """Requests at a fixed rate, each over a connection that is free, and what came of them."""

    port: int
    tenant: str
    per_s: float
    ms: tuple[int, int]
    took_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    retry_after: set[str] = field(default_factory=set)
    _free: list[Connection] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * self.per_s)):
                await asyncio.sleep(begun_s + number / self.per_s - time.monotonic())
                group.create_task(self._ask())
        for connection in self._free:
            connection.close()

    async def _ask(self) -> None:
        connection = self._free.pop() if self._free else await Connection.open(self.port)
        begun_s = time.monotonic()
        data = work(random.randint(*self.ms), self.tenant)
        reply = await connection.ask(data)
        self._free.append(connection)
        self.statuses[reply.status] += 1
        if reply.status == 200:
            self.took_s.append(time.monotonic() - begun_s)
        else:
            self.retry_after.add(reply.headers["retry-after"])

    def quantile(self, share: float) -> float:
        return sorted(self.took_s)[int(share * len(self.took_s))]


def flooding(port: int, times: float) -> Caller:
    """A tenant that asks for so many times what the server carries."""
    return Caller(port, "a", times * CARRIED_PER_S, FLOOD_MS)


def important(port: int) -> Caller:
    return Caller(port, "b", 20, (WORK_MS, WORK_MS))


def decisions(gateway: GatewayProcess) -> dict[str, float]:
    """What admission has done so far, by class and outcome."""
    page = gateway.ops("/metrics").decode()
    found = re.findall(r"^triton_gateway_admission_decisions_total{(.+)} (\S+)$", page, re.M)
    return {labels: float(count) for labels, count in found}


async def test_a_flood_is_held_back_and_what_matters_is_not(
    launch_triton: Launch, tmp_path: Path
) -> None:
    triton = launch_triton("c", ["levels"])
    with GatewayProcess(admitting(triton), tmp_path) as gateway:
        flood, beside = flooding(gateway.api_port, 4), important(gateway.api_port)
        async with asyncio.TaskGroup() as group:
            group.create_task(flood.run(3.5))
            await asyncio.sleep(1)
            group.create_task(beside.run(2))
            await asyncio.sleep(1)
            view = (await asyncio.to_thread(gateway.fleet))["admission"]
        later = gateway.fleet()["admission"]
    assert beside.statuses == {200: 40}, "never refused"
    assert flood.statuses[200] > CARRIED_PER_S, "and the flood still gets served"
    assert flood.statuses[503] > CARRIED_PER_S
    assert flood.retry_after == {"1", "2", "3"}
    assert beside.quantile(0.5) < flood.quantile(0.5)
    assert view["mode"] == "enforce"
    assert view["queued"]["levels"]["sheddable"] > 50
    (limit,) = view["limits"]
    assert (limit["server"], limit["model"]) == ("a", "levels")
    assert LEVELS <= limit["limit_rows"] <= 3 * LEVELS
    assert 0 < limit["in_flight_rows"] <= limit["limit_rows"] + 1
    assert set(later["queued"]["levels"].values()) == {0}
    assert later["limits"][0]["limit_rows"] < 2 * LEVELS, "it began with more than is good"


@pytest.mark.accept
async def test_ten_times_what_it_carries_hardly_slows_what_matters(
    launch_triton: Launch, tmp_path: Path
) -> None:
    """The best p99 of some rounds, unloaded and beside the flood: a busy machine spoils others."""
    triton = launch_triton("c", ["levels"])
    unloaded, flooded = [], []
    with GatewayProcess(admitting(triton), tmp_path) as gateway:
        port = gateway.api_port
        for _ in range(ROUNDS):
            alone, flood, beside = important(port), flooding(port, 10), important(port)
            await alone.run(8)
            async with asyncio.TaskGroup() as group:
                group.create_task(flood.run(16))
                await asyncio.sleep(3)
                group.create_task(beside.run(12))
            unloaded.append(alone.quantile(0.99))
            flooded.append(beside.quantile(0.99))
            print(
                f"p50 {alone.quantile(0.5):.3f} -> {beside.quantile(0.5):.3f} s,"
                f" p99 {unloaded[-1]:.3f} -> {flooded[-1]:.3f} s, flood {dict(flood.statuses)},"
                f" {gateway.fleet()['admission']['limits']}"
            )
            print(decisions(gateway))
            assert set(beside.statuses) == {200}
            assert flood.statuses[200] > 0.5 * 16 * CARRIED_PER_S
    print(f"ratio {min(flooded) / min(unloaded):.2f}")
    assert min(flooded) < 1.5 * min(unloaded)
