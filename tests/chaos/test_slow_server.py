"""One of three servers works three times slower than the others."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.fakes import NarrowTriton, gateway_before, narrow
from tests.chaos.load import Load, echo

WORK_S = 0.02
SLOWDOWN = 3.0
SLOTS = 4
PATIENCE = 5
"""Longer work in as many more slots is the same load, and a busy machine's delays matter less."""
NAMES = ("a", "b", "c")
SPLITS = (0.03, 1 / 14, 1 / 7, 0.2, 1 / 3)
"""Static shares for the slow server: little, half of what its speed allows, that, more.

A hundredth or less would not show in the 99th percentile: the server would not be used.
"""


def servers(patience: int) -> list[NarrowTriton]:
    fakes = [narrow(name, slots=SLOTS * patience) for name in NAMES]
    for fake in fakes:
        fake.models["echo"].delay_s = WORK_S * patience
    fakes[0].models["echo"].delay_s = SLOWDOWN * WORK_S * patience
    return fakes


async def serve(
    folder: Path, seconds: float, config: dict[str, Any], *, patience: int = 1
) -> tuple[float, float]:
    """Serve for a while; return the slow server's share and the 99th percentile in seconds."""
    fakes = servers(patience)
    async with gateway_before(fakes, folder, **config) as gateway:
        async with Load(gateway.api_port, [echo()]) as load:
            await asyncio.sleep(seconds)
        assert load.failures() == []
    took_s = sorted(a.answered_s - a.sent_s for a in load.asked)
    share = fakes[0].asked["echo"] / len(load.asked)
    return share, took_s[math.ceil(0.99 * len(took_s)) - 1]


async def test_a_slow_server_gets_less(folder: Path) -> None:
    share, _ = await serve(folder, 2.5, {}, patience=PATIENCE)
    assert 0 < share < 0.75 / 3


@pytest.mark.accept
async def test_a_slow_server_hardly_shows_in_the_slowest_answers(folder: Path) -> None:
    split = {part: await measured(folder / f"{part:.2f}", static(part)) for part in SPLITS}
    ours = {
        policy: await measured(folder / policy, {"balancing": {"policy": policy}})
        for policy in ("least_request", "peak_ewma")
    }
    print("share of the slow server and p99 in s:", ours, "static:", split)
    best_s = min(p99_s for _, p99_s in split.values())
    assert max(p99_s for _, p99_s in ours.values()) <= 1.5 * best_s


def static(part: float) -> dict[str, Any]:
    """Turns with fixed shares: `part` for the slow server, the rest in halves."""
    capacity = {"a": part, "b": (1 - part) / 2, "c": (1 - part) / 2}
    return {"models": {"echo": {"policy": "round_robin", "capacity": capacity}}}


async def measured(folder: Path, config: dict[str, Any]) -> tuple[float, float]:
    """Return the middle of three runs by their p99: the machine has other things to do, too."""
    runs = [await serve(folder / str(turn), 10.0, config) for turn in range(3)]
    return sorted(runs, key=lambda run: run[1])[1]
