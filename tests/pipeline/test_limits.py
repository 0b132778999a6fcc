"""Rate limits in the life of a request: what is charged, refunded, and held for how long."""

import asyncio

import pytest

from gateway.codec.types import InferCall, InputTensor
from gateway.exchange import Exchange
from gateway.faults import Kind
from gateway.limits.gate import cost_of
from routing.limits import Cost, Dimension, Source
from tests.limits.building import at_a_time, rate
from tests.pipeline.scripted import FAILED, QUEUE_FULL, Step, World

BIG = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[3],"data":[1,2,3]}]}'


def order(exchange: Exchange) -> list[str]:
    stages: list[str] = exchange.order  # type: ignore[attr-defined]
    return stages


async def test_a_request_under_no_limit_does_not_pass_the_stage() -> None:
    world = World(limits=[rate(1, 1, models=("other",))])
    for _ in range(3):
        await world.ask()
    assert "admit" not in order(world.exchange)
    assert world.exchange.limits == ()
    assert world.limiter.sources["shared"] == 0


async def test_a_refusal_names_the_limit_and_how_long_to_wait() -> None:
    world = World(limits=[rate(0.5, 2, "slow")])
    await world.ask()
    await world.ask()
    fault = await world.fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.LIMITED, 2)
    assert fault.message == "limit 'slow' of 30 requests a minute is reached; try again in 2 s"
    assert order(world.exchange)[-1] == "admit"
    assert len(world.transport.sent) == 2
    world.clock.now_s += 2
    await world.ask()
    assert world.limiter.decisions == {("slow", "allowed"): 3, ("slow", "denied"): 1}


async def test_the_second_limit_refuses_and_the_first_is_not_charged() -> None:
    first, second = rate(0.001, 2, "first"), rate(0.001, 1, "second")
    world = World(limits=[first, second])
    await world.ask()
    for _ in range(3):
        assert "'second'" in (await world.fault()).message
    await world.quotas.forget([second.key("anonymous", "m")])
    await world.limiter.reset([second.key("anonymous", "m")])
    await world.ask()
    assert world.limiter.decisions["first", "allowed"] == 2


@pytest.mark.parametrize(
    ("dimension", "most", "what"),
    [
        (Dimension.ROWS, 1, None),  # a model without batches has one row
        (Dimension.INPUT_BYTES, 11, "12"),
        (Dimension.ELEMENTS, 2, "3"),
    ],
)
async def test_what_can_never_fit_is_told_at_once(
    dimension: Dimension, most: int, what: str | None
) -> None:
    world = World(limits=[rate(100, most, dimension=dimension)])
    if what is None:
        await world.ask(BIG)
        return
    fault = await world.fault(BIG)
    assert fault.kind is Kind.INVALID
    assert f"limit 'rate' lets at most {most} " in fault.message
    assert f"this request has {what}; split it" in fault.message
    await world.ask()  # [1, 2]


def test_batches_count_their_rows() -> None:
    call = InferCall("m", "1", [InputTensor("a", "FP32", (4, 2), bytes(32))] * 2)
    assert cost_of(call, batches=True) == Cost(rows=4, input_bytes=64, elements=16)
    assert cost_of(call, batches=False).rows == 1


async def test_what_is_only_observed_refuses_nothing() -> None:
    world = World(
        limits=[
            rate(0.001, 1, "tried", enforce=False),
            rate(1, 1, "small", dimension=Dimension.ELEMENTS, enforce=False),
            at_a_time(0, enforce=False),
        ]
    )
    for _ in range(3):
        await world.ask()
    assert world.limiter.decisions == {
        ("tried", "allowed"): 1,
        ("tried", "observed"): 2,
        ("small", "observed"): 3,
        ("places", "observed"): 3,
    }
    assert world.exchange.limits == ()
    assert world.limiter.places == 0


async def test_a_request_nobody_could_take_is_refunded() -> None:
    world = World(["a"], limits=[rate(0.001, 1)])
    world.fleet.unreachable("a", "gone")
    for _ in range(3):
        fault = await world.fault()
        assert fault.kind is Kind.NOT_READY
        await settled()
    world.fleet.table.server_up("a", server_id="a", triton_version="2.51.0", now_s=world.clock())
    await world.ask()
    assert (await world.fault()).kind is Kind.LIMITED


async def test_a_request_that_failed_on_a_server_is_not() -> None:
    world = World(["a"], limits=[rate(0.001, 1)])
    world.will(Step(fault=QUEUE_FULL))
    assert (await world.fault()).kind is Kind.OVERLOADED
    await settled()
    assert (await world.fault()).kind is Kind.LIMITED


@pytest.mark.parametrize("step", [Step(), Step(fault=QUEUE_FULL), Step(fault=FAILED)])
async def test_a_place_is_free_when_its_request_has_ended(step: Step) -> None:
    world = World(["a"], limits=[at_a_time(1)])
    for _ in range(3):
        world.will(step)
        if step.fault is None:
            await world.ask()
        else:
            assert (await world.fault()).kind is step.fault.kind
        await settled()
        assert world.limiter.places == 0


@pytest.mark.parametrize("runs_on", [True, False])
async def test_a_place_is_held_until_the_call_has_really_ended(runs_on: bool) -> None:
    world = World(["a"], runs_on=runs_on, limits=[at_a_time(1)])
    call = await world.hang_up()
    assert world.limiter.places == 1
    fault = await world.fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.LIMITED, 1)
    assert fault.message == "limit 'places' of 1 requests at a time is reached; try again in 1 s"
    call.end()
    await settled()
    assert world.limiter.places == 0
    await world.ask()


async def test_each_tenant_has_its_own_place() -> None:
    world = World(["a"], limits=[at_a_time(1)])
    call = await world.hang_up()
    world.tenant = "other"
    await world.ask()
    call.end()


async def test_the_exchange_has_what_was_said() -> None:
    world = World(limits=[rate(1, 3), at_a_time(2)])
    await world.ask()
    first, second = world.exchange.limits
    assert (first.used, second.used) == (1_000_000, 1)
    assert world.exchange.limited_by is Source.SHARED


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
