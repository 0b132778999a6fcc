"""Real Tritons that are killed, stopped, frozen, and change their models under load."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.fleet import NAMES, RealFleet, version_row
from tests.chaos.load import EVEN_SHARE, WHOAMI, Load, sleep
from tests.gateways import GatewayProcess

NOTICE_S = 0.05
"""How long the gateway may take to see that connections were reset."""

SHORT = pytest.param(1.0, id="short")
LONG = pytest.param(5.0, id="long", marks=pytest.mark.accept)
BOTH = pytest.mark.parametrize("slow_start_s", [SHORT, LONG])


@contextlib.asynccontextmanager
async def running(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway in which `sleep` must not run twice and `whoami` may."""
    config = fleet.config(
        balancing={"slow_start_s": slow_start_s}, models={"sleep": {"idempotent": False}}
    )
    gateway = GatewayProcess(config, folder)
    try:
        await asyncio.to_thread(gateway.start)
        yield gateway
    finally:
        stopped = await asyncio.to_thread(gateway.stop)
    assert stopped == 0
    assert not [event for event in gateway.events() if "exception" in event]


def runs(fleet: RealFleet) -> int:
    return sum(counted["started"] for counted in fleet.executions().values())


@BOTH
async def test_a_killed_server_costs_at_most_what_must_not_run_twice(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> None:
    before = runs(fleet)
    async with running(fleet, folder, slow_start_s) as gateway:
        async with Load(gateway.api_port, [WHOAMI, sleep(10)]) as load:
            await load.sent(50)
            killed_s = load.now_s
            os.kill(fleet["a"].pid, signal.SIGKILL)
            while fleet["a"].alive:
                await asyncio.sleep(0.001)
            gone_s = load.now_s + NOTICE_S
            await asyncio.sleep(slow_start_s)
            await fleet.restart("a")
            await load.even(NAMES)
        assert load.failures("whoami") == []
        in_flight = load.in_flight(killed_s, gone_s, "sleep")
        assert [a for a in load.failures("sleep") if a not in in_flight] == []
        assert len(load.failures("sleep")) <= len(in_flight)
    assert runs(fleet) - before <= len(load.of("sleep"))


@pytest.mark.parametrize(
    ("slow_start_s", "ms"),
    [
        pytest.param(1.0, 800, id="short"),
        pytest.param(5.0, 2000, id="long", marks=pytest.mark.accept),
    ],
)
async def test_a_server_that_is_told_to_stop_finishes_what_it_has(
    fleet: RealFleet, folder: Path, slow_start_s: float, ms: int
) -> None:
    before = runs(fleet)
    async with running(fleet, folder, slow_start_s) as gateway:
        async with (
            Load(gateway.api_port, [WHOAMI]) as load,
            Load(gateway.api_port, [sleep(ms)], rate_per_s=4) as slow,
        ):
            await load.sent(200)
            fleet["a"]._running().send_signal(signal.SIGTERM)
            while fleet["a"].alive:
                await asyncio.sleep(0.01)
            await fleet.restart("a")
            await load.even(NAMES)
        assert load.failures() == []
        assert slow.failures() == []
    assert runs(fleet) - before == len(slow.asked)


@pytest.mark.parametrize(
    ("slow_start_s", "frozen_s"),
    [
        pytest.param(1.0, 3.0, id="short"),
        pytest.param(5.0, 20.0, id="long", marks=pytest.mark.accept),
    ],
)
async def test_a_frozen_server_delays_a_few_and_fails_nobody(
    fleet: RealFleet, folder: Path, slow_start_s: float, frozen_s: float
) -> None:
    before = runs(fleet)
    async with running(fleet, folder, slow_start_s) as gateway:
        async with Load(gateway.api_port, [WHOAMI, sleep(10)]) as load:
            await load.sent(50)
            fleet["a"].pause()
            frozen_at_s = load.now_s
            await asyncio.sleep(frozen_s)
            fleet["a"].resume()
            await load.even(NAMES)
        assert load.failures() == []
        held_up = [
            a for a in load.of(since_s=frozen_at_s) if a.answered_s - a.sent_s > frozen_s / 2
        ]
        assert len(held_up) < 30, Counter(a.kind for a in held_up)
    assert runs(fleet) - before == len(load.of("sleep"))


@BOTH
async def test_an_unloaded_model_is_asked_for_elsewhere_and_the_others_stay(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> None:
    before = runs(fleet)
    async with running(fleet, folder, slow_start_s) as gateway:
        async with Load(gateway.api_port, [WHOAMI, sleep(10)]) as load:
            await load.sent(50)
            begun = fleet.executions()
            await fleet.unload("a", "whoami")
            await load.until(
                lambda: "a" not in version_row(gateway, "whoami", 10)["servers"], within_s=2.5
            )
            unloaded_s = load.now_s
            await asyncio.sleep(2 * slow_start_s)
            assert "a" not in load.answered_by(unloaded_s)
            await fleet.load("a", "whoami")
            await load.even(NAMES)
            had = {
                name: (count - begun[name])["started"] for name, count in fleet.executions().items()
            }
        assert load.failures() == []
    assert had["a"] > EVEN_SHARE * sum(had.values()) / len(NAMES), had
    assert runs(fleet) - before == len(load.of("sleep"))


@BOTH
async def test_a_new_version_is_the_default_once_most_have_it(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> None:
    await asyncio.gather(*(fleet.load(name, "whoami", (1,)) for name in NAMES))
    async with running(fleet, folder, slow_start_s) as gateway:
        async with Load(gateway.api_port, [WHOAMI]) as load:
            await load.sent(50)
            await fleet.load("a", "whoami", (1, 2))
            await load.until(
                lambda: version_row(gateway, "whoami", 2)["servers"] == ["a"], within_s=5.0
            )
            await load.sent(100)
            only_a_s = load.now_s
            for name in ("b", "c"):
                await fleet.load(name, "whoami", (1, 2))
            await load.until(
                lambda: len(version_row(gateway, "whoami", 2)["servers"]) == 3, within_s=5.0
            )
            since_s = load.now_s
            await load.even(NAMES)
        assert load.failures() == []
        assert {a.who[1] for a in load.of(until_s=only_a_s)} == {1}
        assert {a.who[1] for a in load.of(since_s=since_s)} == {2}
