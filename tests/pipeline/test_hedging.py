"""A slow request is asked a second time elsewhere: the first answer counts, the loser is let go."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.exchange import Hedge
from gateway.faults import Fault, Kind
from gateway.hedging import HedgePolicy
from gateway.pipeline import AnsweredInfer
from routing.budget import RetryBudget
from tests.pipeline.scripted import (
    BODY,
    BROKEN,
    FAILED,
    NOT_READY,
    SEQUENCE_BODY,
    SPEC,
    START_BODY,
    UNREACHABLE,
    ScriptedCall,
    Step,
    World,
)

HANGS = Step(hangs=True)
ABC = ("a", "b", "c")
Ask = Callable[[], Awaitable[AnsweredInfer]]


def hedging(after_s: float = 0.0, max_share: float = 1.0) -> dict[str, HedgePolicy]:
    return {"m": HedgePolicy(after_s, RetryBudget(ratio=max_share, min_per_s=0.0))}


def hedged_world(*servers: str, **settings: object) -> World:
    chosen = {"runs_on": False, "hedges": hedging(), **settings}
    return World(servers or ABC, **chosen)  # type: ignore[arg-type]


class Asking:
    """A request that is under way."""

    def __init__(self, world: World, body: bytes = BODY) -> None:
        self._world = world
        self.task = asyncio.get_running_loop().create_task(world.ask(body))

    async def calls(self, *servers: str) -> list[ScriptedCall]:
        """Wait until these servers have been asked, in this order, and nobody else."""
        calls = self._world.transport.calls
        async with asyncio.timeout(5):
            while sum(call.begun.is_set() for call in calls) < len(servers):
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert [call.server for call in calls] == list(servers)
        return calls


@pytest.fixture
def world() -> World:
    return hedged_world()


# --- who answers


async def test_an_answer_in_time_asks_nobody_else() -> None:
    world = hedged_world(hedges=hedging(after_s=60.0))
    await world.ask()
    assert world.servers_asked == ["a"]
    assert world.exchange.attempts == 1
    assert world.exchange.hedges == ()
    assert world.idle


async def test_the_second_server_answers_for_the_slow_first_one(world: World) -> None:
    world.will(HANGS, Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert (world.exchange.server, world.exchange.attempts) == ("b", 2)
    assert (world.exchange.hedges, world.exchange.retried) == ((Hedge.WON,), ())
    await asyncio.sleep(0)
    first, _ = world.transport.calls
    assert first.abandoned
    assert not world.exchange.detached
    assert world.held("a") == (1, 1, 0)  # until the cancellation has arrived
    assert world.held("b") == (0, 0, 0)
    first.end()
    assert world.idle
    assert world.pool.loads["a"].last_reply_s == float("-inf")
    assert world.pool.breakers() == {}


async def test_the_first_server_may_still_be_the_first_to_answer(world: World) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    first, second = await asking.calls("a", "b")
    first.finish()
    await asking.task
    assert (world.exchange.server, world.exchange.attempts) == ("a", 2)
    assert world.exchange.hedges == (Hedge.LOST,)
    await asyncio.sleep(0)
    assert second.abandoned
    second.end()
    assert world.idle
    assert world.pool.loads["a"].last_reply_s == world.clock()
    assert world.pool.loads["b"].last_reply_s == float("-inf")


async def test_nobody_is_asked_a_third_time(world: World) -> None:
    world.will(HANGS, HANGS, HANGS)
    asking = Asking(world)
    first, _ = await asking.calls("a", "b")
    first.finish()
    await asking.task


# --- failures


async def test_a_first_failure_in_time_is_tried_again_as_always() -> None:
    world = hedged_world(hedges=hedging(after_s=60.0))
    world.will(Step(fault=NOT_READY), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert world.fleet.reports == [("not ready", "a", "m/1", NOT_READY.message)]


@pytest.mark.parametrize(("failing", "answering"), [(0, 1), (1, 0)])
async def test_when_one_of_the_two_fails_the_other_one_s_answer_counts(
    world: World, failing: int, answering: int
) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    calls = await asking.calls("a", "b")
    calls[failing].finish(UNREACHABLE)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.task.done()
    calls[answering].finish()
    await asking.task
    assert world.fleet.reports == [("unreachable", "ab"[failing], str(UNREACHABLE.detail))]
    assert world.exchange.server == "ab"[answering]
    assert world.exchange.hedges == ((Hedge.LOST, Hedge.WON)[answering],)
    assert world.idle


async def test_of_two_answers_at_once_the_first_servers_counts(world: World) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    for call in reversed(await asking.calls("a", "b")):
        call.finish()
    await asking.task
    assert (world.exchange.server, world.exchange.hedges) == ("a", (Hedge.LOST,))
    assert world.idle


async def test_when_both_fail_the_last_failure_is_told(world: World) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    first, second = await asking.calls("a", "b")
    first.finish(BROKEN)
    for _ in range(5):
        await asyncio.sleep(0)
    second.finish(FAILED)
    with pytest.raises(Fault) as caught:
        await asking.task
    assert caught.value is FAILED
    assert world.servers_asked == ["a", "b"]
    assert world.exchange.hedges == (Hedge.UNANSWERED,)
    assert world.idle


async def test_when_both_have_not_run_a_third_server_is_tried(world: World) -> None:
    world.will(HANGS, HANGS, Step())
    asking = Asking(world)
    for call in await asking.calls("a", "b"):
        call.finish(NOT_READY)
    await asking.task
    assert world.servers_asked == ["a", "b", "c"]
    assert {report[1] for report in world.fleet.reports} == {"a", "b"}
    assert world.exchange.attempts == 3
    assert world.exchange.hedges[0] is Hedge.UNANSWERED
    assert world.exchange.retried == (Kind.NOT_READY,)


async def test_what_may_have_run_twice_is_not_sent_a_third_time(world: World) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    for call in await asking.calls("a", "b"):
        call.finish(BROKEN)
    with pytest.raises(Fault) as caught:
        await asking.task
    assert caught.value is BROKEN
    assert world.servers_asked == ["a", "b"]
    assert world.idle


# --- when nobody is asked a second time


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({"runs_on": True}, BODY),  # the loser could not be cancelled
        ({"hedges": {}}, BODY),
        ({"hedges": {"other": HedgePolicy(0.0, RetryBudget(ratio=1.0, min_per_s=9.0))}}, BODY),
        ({"hedges": hedging(max_share=0.02)}, BODY),  # the budget has to be earned first
        ({"spec": replace(SPEC, sequence=True)}, START_BODY),
        ({}, SEQUENCE_BODY),
    ],
    ids=["unsafe", "off", "another model", "budget", "sequence model", "sequence"],
)
async def test_only_one_server_is_asked(settings: dict[str, object], body: bytes) -> None:
    world = hedged_world(**settings)
    world.will(HANGS)
    asking = Asking(world, body)
    while not world.transport.calls:
        await asyncio.sleep(0)
    (first,) = world.transport.calls
    first.finish()
    await asking.task
    assert world.idle


async def test_without_another_server_the_first_one_is_waited_for() -> None:
    world = hedged_world("a")
    world.will(HANGS)
    asking = Asking(world)
    (first,) = await asking.calls("a")
    first.finish()
    await asking.task
    assert world.exchange.attempts == 1
    assert world.exchange.hedges == (Hedge.NO_SERVER,)


async def test_finding_no_other_server_costs_nothing() -> None:
    hedge = hedging(max_share=0.25)
    world = hedged_world("a", hedges=hedge)
    for _ in range(8):
        world.will(HANGS)
        asking = Asking(world)
        world.transport.calls.clear()
        (first,) = await asking.calls("a")
        first.finish()
        await asking.task
    assert sum(hedge["m"].budget.withdraw(world.clock()) for _ in range(9)) == 2


async def test_a_second_request_beyond_the_share_is_noted() -> None:
    world = hedged_world(hedges=hedging(max_share=0.02))
    world.will(HANGS)
    asking = Asking(world)
    (first,) = await asking.calls("a")
    first.finish()
    await asking.task
    assert world.exchange.hedges == (Hedge.NO_BUDGET,)


async def test_the_second_server_is_one_where_calls_can_be_cancelled_too(world: World) -> None:
    world.transport.uncancellable = {"b"}
    world.will(HANGS, Step())
    await world.ask()
    assert world.servers_asked == ["a", "c"]
    await asyncio.sleep(0)
    world.transport.calls[0].end()
    assert world.idle


async def test_a_call_that_could_not_be_cancelled_is_not_raced(world: World) -> None:
    world.transport.uncancellable = {"a"}
    world.will(HANGS)
    asking = Asking(world)
    (first,) = await asking.calls("a")
    first.finish()
    await asking.task


async def test_a_retry_may_use_a_server_that_hedging_may_not() -> None:
    world = hedged_world("a", "b", hedges=hedging())
    world.transport.uncancellable = {"b"}
    world.will(HANGS, Step())
    asking = Asking(world)
    (first,) = await asking.calls("a")
    first.finish(NOT_READY)
    await asking.task
    assert world.servers_asked == ["a", "b"]


async def test_second_requests_stay_within_their_share() -> None:
    world = hedged_world(hedges=hedging(max_share=0.02))
    world.transport.usual = dict.fromkeys(ABC, HANGS)
    for _ in range(500):
        world.transport.calls.clear()
        asking = Asking(world)
        while not world.transport.calls or not world.transport.calls[0].begun.is_set():
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        for call in world.transport.calls:
            call.finish()
        await asking.task
    assert 8 <= len(world.transport.sent) - 500 <= 10
    assert world.idle


# --- callers that leave


@pytest.mark.parametrize("servers", ["a", "ab"])
async def test_a_caller_that_leaves_lets_go_of_all_calls(servers: str) -> None:
    world = hedged_world(hedges=hedging(after_s=0.0 if len(servers) > 1 else 60.0))
    world.will(HANGS, HANGS)
    asking = Asking(world)
    calls = await asking.calls(*servers)
    asking.task.cancel()
    await asyncio.wait([asking.task])
    await asyncio.sleep(0)
    assert asking.task.cancelled()
    assert all(call.abandoned for call in calls)
    assert world.exchange.hedges == ((Hedge.UNANSWERED,) if len(servers) > 1 else ())
    for call in calls:
        call.end()
    assert world.idle
    assert len(world.transport.sent) == len(servers)
    assert world.pool.breakers() == {}


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_may_leave_at_any_moment(world: World, turns: int) -> None:
    world.will(HANGS, HANGS)
    asking = Asking(world)
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.task.cancel()
    await asyncio.wait([asking.task])
    for _ in range(3):
        await asyncio.sleep(0)
    for call in world.transport.calls:
        if call.abandoned:
            call.end()
    assert world.idle
