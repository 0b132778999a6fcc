"""Worker processes replaced, killed and reconfigured under load, before real servers."""

import asyncio
import os
import signal
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.fleet import RealFleet
from tests.chaos.load import WHOAMI, Load
from tests.chaos.test_reload import Callers, counters, reload
from tests.gateways import GatewayProcess
from tests.operators import operate
from tests.processes import open_files

TWO = {"workers": 2, "reload": {"watch": False}}


def workers(fleet: RealFleet, folder: Path) -> GatewayProcess:
    """A gateway of two workers before the three servers."""
    return GatewayProcess({**fleet.config(), **TWO}, folder)


async def scraped(gateway: GatewayProcess, until: asyncio.Event) -> list[dict[str, float]]:
    """Scrape again and again; return every page's counters."""
    pages = []
    while not until.is_set():
        pages.append(await asyncio.to_thread(counters, gateway))
        await asyncio.sleep(0.1)
    return pages


def answered(gateway: GatewayProcess) -> float:
    """Return how many inference requests the host says it has answered, with any outcome."""
    name = "triton_gateway_requests_total"
    return sum(v for k, v in counters(gateway).items() if k.startswith(name) and '"infer"' in k)


@pytest.mark.parametrize(
    ("restarts", "rate_per_s"),
    [
        pytest.param(2, 150.0, id="short"),
        pytest.param(10, 500.0, id="long", marks=pytest.mark.accept),
    ],
)
async def test_rolling_restarts_under_load_lose_no_request(
    fleet: RealFleet, folder: Path, restarts: int, rate_per_s: float
) -> None:
    """Half of the callers open a connection for each request; counters never go back."""
    gateway = workers(fleet, folder)
    await asyncio.to_thread(gateway.start)
    over = asyncio.Event()
    try:
        async with (
            Callers(gateway.api_port, rate_per_s=rate_per_s) as callers,
            asyncio.TaskGroup() as group,
        ):
            scraping = group.create_task(scraped(gateway, over))
            await callers.answered(50)
            files = open_files(gateway.pid)
            for _ in range(restarts):
                done = await operate("restart", ops_port=gateway.ops_port)
                assert (done.code, done.err) == (0, "")
            await callers.answered(50)
            over.set()
        pages = scraping.result()
        print(f"{restarts} restarts: {callers.statuses}, {len(pages)} pages")
        assert callers.statuses.keys() == {200}
        assert len(pages) > restarts
        for before, after in pairwise(pages):
            assert {name for name, value in before.items() if after.get(name, -1) < value} == set()
        async with asyncio.timeout(5):
            while await asyncio.to_thread(answered, gateway) != callers.statuses.total():
                await asyncio.sleep(0.1)
        assert open_files(gateway.pid) <= files + 5
    finally:
        over.set()
        await asyncio.to_thread(gateway.stop)


async def test_a_killed_worker_costs_only_its_open_requests(fleet: RealFleet, folder: Path) -> None:
    gateway = workers(fleet, folder)
    await asyncio.to_thread(gateway.start)
    try:
        async with Load(gateway.api_port, [WHOAMI], rate_per_s=150) as load:
            await load.sent(50)
            view: Mapping[str, Any] = await asyncio.to_thread(gateway.fleet)
            os.kill(view["workers"][0]["pid"], signal.SIGKILL)
            killed_s = load.now_s
            await load.sent(600)
        open_then = load.in_flight(killed_s - 0.02, killed_s + 0.02)
        assert {a.status for a in load.failures()} <= {0}
        assert {id(a) for a in load.failures()} <= {id(a) for a in open_then}, load.failures()
        slowest_s = max(a.answered_s - a.sent_s for a in load.of(since_s=killed_s))
        print(f"{len(load.failures())} failed; the slowest answer after it took {slowest_s:.2f} s")
    finally:
        await asyncio.to_thread(gateway.stop)


async def test_a_reload_reaches_every_worker_without_losing_a_request(
    fleet: RealFleet, folder: Path
) -> None:
    gateway = workers(fleet, folder)
    two = {**fleet.config("a", "b"), **TWO}
    await asyncio.to_thread(gateway.start)
    try:
        async with Callers(gateway.api_port, rate_per_s=150) as callers:
            await callers.answered(100)
            assert await asyncio.to_thread(reload, gateway, two) is not None
            await callers.answered(32)  # those that were under way
            callers.servers.clear()
            await callers.answered(100)
            assert callers.servers.keys() == {"a", "b"}
            assert await asyncio.to_thread(reload, gateway, {**fleet.config(), **TWO}) is not None
            async with asyncio.timeout(20):
                while callers.servers["c"] < 10:
                    await asyncio.sleep(0.05)
        assert callers.statuses.keys() == {200}
    finally:
        await asyncio.to_thread(gateway.stop)
