"""What counts of a request, and where its rows have run, whatever becomes of it."""

import asyncio
from typing import Any

import pytest

from gateway.faults import Fault
from gateway.hedging import HedgePolicy
from gateway.usage.counting import UsageCounts, Used
from routing.budget import RetryBudget
from routing.types import ModelSpec, ModelVersion, TensorSpec
from routing.usage import Amounts
from tests.pipeline.scripted import (
    BROKEN,
    FAILED,
    NOT_READY,
    QUEUE_FULL,
    Step,
    World,
)

BATCHING = ModelSpec(
    "m",
    1,
    inputs=(TensorSpec("IN", "INT32", (1,)),),
    outputs=(TensorSpec("OUT", "INT32", (1,)),),
    max_batch_size=8,
)
THREE_ROWS = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[3,1],"data":[1,2,3]}],"id":"x"}'
KEY = ModelVersion("m", 1)


class Counted:
    """A world whose requests have three rows, and the counts of it."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(spec=BATCHING, **settings)
        self.world.tenant = "acme"
        self.counts = UsageCounts()

    async def ask(self, body: bytes = THREE_ROWS, **more: Any) -> Used | None:
        """Ask, settle, and return what was used."""
        try:
            await self.world.ask(body, **more)
        except Fault as fault:
            self.world.exchange.fault = fault
        return self.settled()

    def settled(self) -> Used | None:
        self.counts.observe(self.world.exchange)
        return self.counts.take()


def rows(used: Used | None) -> dict[str, dict[str, int]]:
    """Return where rows have run, by server; all are of one version."""
    assert used is not None
    assert {key for _, key in used.rows} <= {KEY}
    return {server: by_tenant for (server, _), by_tenant in used.rows.items()}


async def test_an_answer_counts_where_it_came_from() -> None:
    counted = Counted()
    used = await counted.ask()
    assert used is not None
    assert used.amounts == {("acme", "m"): Amounts(requests=1, rows=3)}
    assert rows(used) == {"a": {"acme": 3}}
    assert counted.counts.take() is None


async def test_a_retried_request_counts_once_and_where_it_was_answered() -> None:
    counted = Counted()
    counted.world.will(NOT_READY)
    used = await counted.ask()
    assert used is not None
    assert used.amounts == {("acme", "m"): Amounts(requests=1, rows=3)}
    assert rows(used) == {"b": {"acme": 3}}


@pytest.mark.parametrize(
    ("fault", "run"), [(FAILED, {"a": {"acme": 3}}), (QUEUE_FULL, {}), (BROKEN, {})]
)
async def test_of_what_fails_only_what_the_model_has_run_has_run(
    fault: Fault, run: dict[str, dict[str, int]]
) -> None:
    counted = Counted(servers=("a",))
    counted.world.will(Step(fault=fault))
    used = await counted.ask()
    assert used is not None
    assert used.amounts == {("acme", "m"): Amounts(requests=1, errors=1, rows=3)}
    assert rows(used) == run


async def test_what_was_never_sent_has_no_rows() -> None:
    counted = Counted()
    used = await counted.ask(body=b"{")
    assert used is not None
    assert used.amounts == {("acme", "m"): Amounts(requests=1, errors=1)}
    assert rows(used) == {}


async def test_unknown_models_are_nobodys() -> None:
    assert await Counted().ask(model="unknown") is None


async def test_only_routes_that_run_a_model_count() -> None:
    counted = Counted()
    await counted.world.ask(THREE_ROWS)
    counted.world.exchange.route = "model_ready"
    assert counted.settled() is None


async def test_a_call_left_running_has_run_when_it_ends() -> None:
    counted = Counted()
    call = await counted.world.hang_up()
    counted.world.exchange.fault = Fault.deadline_passed()
    used = counted.settled()
    assert used is not None
    assert used.amounts == {("acme", "m"): Amounts(requests=1, errors=1, rows=2)}
    assert rows(used) == {}
    assert counted.counts.take() is None
    call.end()
    used = counted.counts.take()
    assert used is not None
    assert used.amounts == {}
    assert rows(used) == {"a": {"acme": 2}}
    assert counted.counts.take() is None


async def test_a_cancelled_call_has_run_as_far_as_is_known() -> None:
    counted = Counted(runs_on=False)
    await counted.world.hang_up()
    counted.world.exchange.fault = Fault.deadline_passed()
    assert rows(counted.settled()) == {"a": {"acme": 2}}


async def test_of_a_hedged_request_the_answer_counts_and_what_runs_on_elsewhere() -> None:
    hedges = {"m": HedgePolicy(0.0, RetryBudget(ratio=1.0, min_per_s=0.0))}
    counted = Counted(runs_on=False, hedges=hedges)
    world = counted.world
    world.will(Step(hangs=True), Step(hangs=True))
    asking = asyncio.get_running_loop().create_task(world.ask(THREE_ROWS))
    async with asyncio.timeout(5):
        while len(world.transport.calls) < 2:
            await asyncio.sleep(0)
        first, second = world.transport.calls
        first._runs_on = True  # it has turned out to be an old server
        second.finish()
        await asking
        while not first.abandoned:
            await asyncio.sleep(0)
    assert rows(counted.settled()) == {second.server: {"acme": 3}}
    first.end()
    assert rows(counted.counts.take()) == {first.server: {"acme": 3}}
