"""A server that restarts: how long until the gateway serves again, and uses it again."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.chaos.fakes import gateway_before, narrow
from tests.chaos.fleet import RealFleet, server_rows
from tests.chaos.load import WHOAMI, Load, echo, exchange
from tests.gateways import GatewayProcess

BACK_WITHIN_S = 2.0

SHORT = pytest.param([0.5], id="short")
LONG = pytest.param([0.5] * 14 + [5.0] * 4 + [60.0] * 2, id="long", marks=pytest.mark.accept)


async def stay_away(fleet: RealFleet, seconds: float) -> None:
    """Kill the server; bring it back after so long. Returns when it is ready."""
    os.kill(fleet["a"].pid, signal.SIGKILL)
    await asyncio.sleep(seconds)
    await fleet.restart("a")


@pytest.mark.parametrize("downtimes_s", [LONG])
async def test_an_idle_gateway_serves_soon_after_its_server_is_back(
    fleet: RealFleet, folder: Path, downtimes_s: list[float]
) -> None:
    loop = asyncio.get_running_loop()
    gateway = GatewayProcess(fleet.config("a"), folder)
    took_s = []
    try:
        await asyncio.to_thread(gateway.start)
        for downtime_s in downtimes_s:
            assert (await exchange(gateway.api_port, WHOAMI.data))[0] == 200
            await stay_away(fleet, downtime_s)
            ready_s = loop.time()
            while (await exchange(gateway.api_port, WHOAMI.data))[0] != 200:
                assert loop.time() - ready_s < BACK_WITHIN_S, took_s
                await asyncio.sleep(0.02)
            took_s.append(loop.time() - ready_s)
    finally:
        await asyncio.to_thread(gateway.stop)
    print("idle:", [f"{s:.2f}" for s in sorted(took_s)])
    assert max(took_s) < BACK_WITHIN_S


@pytest.mark.parametrize("downtimes_s", [SHORT, LONG])
async def test_a_busy_gateway_serves_soon_after_its_server_is_back(
    fleet: RealFleet, folder: Path, downtimes_s: list[float]
) -> None:
    gateway = GatewayProcess(fleet.config("a"), folder)
    took_s = []
    try:
        await asyncio.to_thread(gateway.start)
        for downtime_s in downtimes_s:
            async with Load(gateway.api_port, [WHOAMI], rate_per_s=100) as load:
                await load.sent(50)
                killed_s = load.now_s
                await stay_away(fleet, downtime_s)
                ready_s = load.now_s
                gone_s = killed_s + downtime_s

                def is_back(load: Load = load, gone_s: float = gone_s) -> bool:
                    return any(not a.failed for a in load.of(since_s=gone_s))

                await load.until(is_back, within_s=BACK_WITHIN_S)
                took_s.append(load.now_s - ready_s)
                back_s = load.now_s
                await load.sent(20)
            assert {a.status for a in load.failures()} <= {502, 503}
            assert [a for a in load.failures() if a.sent_s > back_s] == []
    finally:
        await asyncio.to_thread(gateway.stop)
    print("busy:", [f"{s:.2f}" for s in sorted(took_s)])
    assert max(took_s) < BACK_WITHIN_S


async def test_a_restarted_server_is_not_blamed_for_what_was_before(folder: Path) -> None:
    a, b = narrow("a"), narrow("b")
    # Everything that was lost is tried again; how much of it may be is not what this is about.
    async with gateway_before([a, b], folder, retries={"budget": 1.0}) as gateway:
        a.models["echo"].delay_s = b.models["echo"].delay_s = 0.2
        async with Load(gateway.api_port, [echo()]) as load:
            await load.sent(200)
            await a.kill()  # with about twenty calls on it: more failures than a breaker forgives
            await load.until(lambda: not server_rows(gateway)["a"]["up"], within_s=3.0)
            await a.start()
            await load.until(lambda: server_rows(gateway)["a"]["up"], within_s=10.0)
            assert gateway.fleet()["breakers"] == []
            before = a.asked["echo"]
            await load.until(lambda: a.asked["echo"] > before + 5, within_s=10.0)
        assert load.failures() == []
