"""Which failures are tried on another server, how often, and at whose expense."""

from dataclasses import replace

import pytest

from gateway.faults import Fault, Kind
from routing.types import ModelSpec
from tests.pipeline.scripted import (
    BROKEN,
    DRAINING,
    FAILED,
    NOT_READY,
    QUEUE_FULL,
    SPEC,
    START_BODY,
    UNREACHABLE,
    Step,
    World,
)

ABCD = ("a", "b", "c", "d")


@pytest.fixture
def world() -> World:
    return World(ABCD)


def failing(*faults: Fault) -> list[Step]:
    return [Step(fault=fault) for fault in faults]


# --- what may have run


async def test_a_broken_connection_is_tried_once_on_another_server(world: World) -> None:
    world.will(*failing(BROKEN), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert (world.exchange.attempts, world.exchange.tried) == (2, {"a"})
    assert world.exchange.server == "b"
    assert world.fleet.reports == [("broken", "a")]  # to be looked at: it may be there
    assert world.fleet.snapshot.servers["a"].up
    assert world.idle


async def test_what_may_have_run_twice_is_not_sent_a_third_time(world: World) -> None:
    world.will(*failing(BROKEN, BROKEN))
    assert await world.fault() is BROKEN
    assert world.servers_asked == ["a", "b"]
    assert world.idle


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, sequence=True)], ids=["request", "model"])
async def test_the_beginning_of_a_sequence_is_not_sent_again(spec: ModelSpec) -> None:
    world = World(ABCD, spec=spec)
    world.will(*failing(BROKEN))
    assert await world.fault(START_BODY) is BROKEN
    assert len(world.servers_asked) == 1


async def test_a_model_with_side_effects_never_runs_twice() -> None:
    world = World(ABCD, not_idempotent=["m"])
    world.will(*failing(BROKEN))
    assert await world.fault() is BROKEN
    assert world.servers_asked == ["a"]
    assert world.idle


async def test_a_model_with_side_effects_is_tried_again_where_it_has_not_run() -> None:
    world = World(ABCD, not_idempotent=["m"])
    world.will(*failing(NOT_READY, QUEUE_FULL), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b", "c"]


@pytest.mark.parametrize(
    "faults", [(BROKEN, NOT_READY), (NOT_READY, BROKEN), (BROKEN, UNREACHABLE)]
)
async def test_three_attempts_of_which_one_may_have_run(
    world: World, faults: tuple[Fault, ...]
) -> None:
    world.will(*failing(*faults), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b", "c"]
    assert world.exchange.attempts == 3
    assert world.exchange.retried == tuple(fault.kind for fault in faults)
    assert world.idle


async def test_a_broken_connection_without_another_server_is_told() -> None:
    world = World(("a",))
    world.will(*failing(BROKEN))
    assert await world.fault() is BROKEN
    assert world.servers_asked == ["a"]
    assert world.exchange.retried == ()


async def test_a_retry_without_another_server_costs_nothing() -> None:
    world = World(("a",), free_retries_per_s=0.0)
    world.will(*failing(*[BROKEN] * 11))  # eleven requests earn one token
    for _ in range(11):
        assert await world.fault() is BROKEN
    assert world.retries.budget("m").withdraw(world.clock())


async def test_a_client_that_has_left_is_not_tried_for_again(world: World) -> None:
    call = await world.hang_up()
    call.end()
    assert world.servers_asked == ["a"]
    assert world.idle


# --- the budget


async def test_without_a_budget_nothing_that_may_have_run_is_sent_again() -> None:
    world = World(ABCD, free_retries_per_s=0.0)
    world.will(*failing(BROKEN))
    assert await world.fault() is BROKEN
    assert world.servers_asked == ["a"]


async def test_requests_earn_the_budget() -> None:
    world = World(ABCD, free_retries_per_s=0.0)
    for _ in range(10):
        await world.ask()
    world.transport.sent.clear()
    world.will(*failing(BROKEN), Step(), *failing(BROKEN))
    await world.ask()  # the eleventh request: one token
    assert await world.fault() is BROKEN  # and then none is left
    assert len(world.transport.sent) == 3


async def test_each_model_has_a_budget_of_its_own(world: World) -> None:
    retries = world.pipeline._retries
    assert retries.budget("m") is retries.budget("m")
    assert retries.budget("m") is not retries.budget("n")


async def test_what_has_not_run_costs_nothing() -> None:
    world = World(ABCD, free_retries_per_s=0.0)
    for _ in range(20):
        world.will(*failing(QUEUE_FULL), Step())
        await world.ask()
    assert len(world.transport.sent) == 40


async def test_a_fleet_that_breaks_every_connection_is_not_hit_twice_as_hard(
    world: World,
) -> None:
    world.transport.usual = dict.fromkeys(ABCD, Step(fault=BROKEN))
    for _ in range(300):
        assert await world.fault() is BROKEN
    attempts = len(world.transport.sent)
    assert 310 <= attempts <= 300 * 1.1 + 10  # ten of a model's retries are free


# --- draining


async def test_a_server_that_is_going_down_is_left_at_once_and_without_penalty(
    world: World,
) -> None:
    world.will(*failing(DRAINING), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert world.fleet.reports == [("exiting", "a", "Server exiting")]
    for _ in range(5):
        await world.ask()
    assert "a" not in world.servers_asked[1:]
    assert world.circuits("a") == {}
    world.fleet.table.server_up("a", server_id="a", triton_version="2.51.0", now_s=world.clock())
    (lease,) = world.busy("a")
    assert lease.candidate.latency_s(world.clock()) is None
    assert lease.candidate.work(world.clock()) == 1.0


async def test_when_all_are_going_down_the_caller_is_told_to_come_back() -> None:
    world = World(("a", "b"))
    world.will(*failing(DRAINING, DRAINING))
    fault = await world.fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.DRAINING, 1)
    assert world.servers_asked == ["a", "b"]


# --- full queues


async def test_a_full_queue_is_tried_elsewhere_and_then_told_as_overload() -> None:
    world = World(("a", "b", "c"))
    world.transport.usual = dict.fromkeys("abc", Step(fault=QUEUE_FULL))
    fault = await world.fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.OVERLOADED, 1)
    assert world.servers_asked == ["a", "b", "c"]
    assert world.idle


async def test_full_queues_eject_nobody() -> None:
    world = World(("a", "b", "c"))
    world.transport.usual = dict.fromkeys("abc", Step(fault=QUEUE_FULL))
    for _ in range(100):
        await world.fault()
    assert world.pool.breakers() == {}
    assert world.pool.bad_versions() == []


# --- never


async def test_what_the_model_answers_is_never_asked_twice(world: World) -> None:
    wrong = Fault.invalid("unexpected input")
    for fault in (FAILED, wrong):
        world.will(*failing(fault))
        assert await world.fault() is fault
    assert len(world.transport.sent) == 2
