"""A model that fails on one server, on all of them, or faster than the others can work."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.chaos.fakes import NarrowTriton, gateway_before, narrow
from tests.chaos.fleet import version_row
from tests.chaos.load import Load, echo
from tests.gateways import GatewayProcess

CONSECUTIVE = 5
BOOM = (grpc.StatusCode.INTERNAL, "boom")
FULL = (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
NO_BREAKER = {"consecutive_failures": 10**6, "min_requests": 10**6}
MODELS = ("echo", "other")
KINDS = [echo(model) for model in MODELS]

Fakes = list[NarrowTriton]


@contextlib.asynccontextmanager
async def three(folder: Path, **sections: Any) -> AsyncIterator[tuple[GatewayProcess, Fakes]]:
    """Run three servers with the models `echo` and `other`, and a gateway."""
    fakes = [narrow(name, *MODELS) for name in ("a", "b", "c")]
    async with gateway_before(fakes, folder, **sections) as gateway:
        for fake in fakes:
            fake.models["other"].delay_s = fake.models["echo"].delay_s = 0.05
        yield gateway, fakes


def broken(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """The breakers that are not closed."""
    rows: list[dict[str, Any]] = gateway.fleet()["breakers"]
    return rows


def asked(fakes: Fakes, model: str) -> Counter[str]:
    return Counter({fake.server_id: fake.asked[model] for fake in fakes})


@pytest.mark.parametrize(
    ("open_min_s", "slow_start_s", "broken_s", "probes"),
    [
        # Open for half of to all of 1 s, then 2, 4 ...: at most so many probes meanwhile.
        pytest.param(1.0, 1.0, 2.0, 2, id="short"),
        pytest.param(5.0, 5.0, 30.0, 4, id="long", marks=pytest.mark.accept),
    ],
)
async def test_a_model_broken_on_one_server_is_ejected_there_alone(
    folder: Path, open_min_s: float, slow_start_s: float, broken_s: float, probes: int
) -> None:
    sections = {"breaker": {"open_min_s": open_min_s}, "balancing": {"slow_start_s": slow_start_s}}
    async with three(folder, **sections) as (gateway, fakes):
        async with Load(gateway.api_port, KINDS) as load:
            await load.sent(100)
            fakes[0].models["echo"].error = BOOM
            broken_at_s = load.now_s
            await load.until(lambda: broken(gateway) != [], within_s=15.0)
            ejected_s = load.now_s
            was = asked(fakes, "other")
            await asyncio.sleep(broken_s)
            others = asked(fakes, "other") - was
            fakes[0].models["echo"].error = None
            await load.until(lambda: broken(gateway) == [], within_s=4 * broken_s)
            await asyncio.sleep(slow_start_s)
            back = asked(fakes, "echo")
            await asyncio.sleep(1.0)
            gained = asked(fakes, "echo") - back
        failed = load.failures("echo")
        assert load.failures("other") == []
        assert [a for a in load.failures() if a.status != 500] == []
        at_once = max(len(load.in_flight(a.sent_s, a.sent_s, "echo")) for a in failed)
        early = [a for a in failed if a.answered_s <= ejected_s]
        assert len(early) <= CONSECUTIVE + at_once, (early, broken_at_s)
        assert 1 <= len(failed) - len(early) <= probes, failed
        assert others["a"] > 0.6 * others.total() / 3, others
        assert gained["a"] > 0.6 * gained.total() / 3, gained


async def test_a_server_that_fails_fast_gets_no_more_than_its_share(folder: Path) -> None:
    async with three(folder, breaker=NO_BREAKER) as (gateway, fakes):
        for model, failure in (("echo", FULL), ("other", BOOM)):
            fakes[0].models[model].error = failure
            fakes[0].models[model].delay_s = 0.001
        async with Load(gateway.api_port, KINDS) as load:
            await asyncio.sleep(1.0)
            was, since_s = {m: asked(fakes, m) for m in MODELS}, load.now_s
            await asyncio.sleep(1.5)
            tried = {m: asked(fakes, m) - was[m] for m in MODELS}
            sent = {m: len(load.of(m, since_s=since_s)) for m in MODELS}
        assert all(0 < tried[m]["a"] <= sent[m] / 3 for m in MODELS), (tried, sent)
        assert load.failures("echo") == []  # what a full server refuses is tried elsewhere


async def test_a_version_broken_everywhere_is_bad_and_ejects_nobody(folder: Path) -> None:
    async with three(folder) as (gateway, fakes):
        async with Load(gateway.api_port, KINDS) as load:
            await load.sent(100)
            for fake in fakes:
                fake.models["echo"].error = BOOM

            def is_bad() -> bool:
                return bool(version_row(gateway, "echo")["bad"]) and not broken(gateway)

            await load.until(is_bad, within_s=3.0)
            was = asked(fakes, "echo")
            await asyncio.sleep(1.0)
            assert is_bad()
            assert not version_row(gateway, "other")["bad"]
            tried = asked(fakes, "echo") - was
            assert min(tried[fake.server_id] for fake in fakes) > 0.1 * tried.total(), tried
            for fake in fakes:
                fake.models["echo"].error = None
            mended_s = load.now_s
            await asyncio.sleep(0.5)
        assert load.failures("other") == []
        assert [a for a in load.failures() if a.sent_s > mended_s] == []
