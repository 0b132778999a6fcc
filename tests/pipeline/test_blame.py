"""Whom a failed request speaks against: who is ejected, when, and who never is."""

import asyncio
import random
from collections import Counter

import grpc
import pytest

from gateway.faults import Fault, Kind
from gateway.upstream.errors import to_fault
from routing.fleet import ModelVersion
from routing.health.breaker import Circuit
from tests.pipeline.scripted import BROKEN, FAILED, FATAL, SLOW, Step, World

Code = grpc.StatusCode


@pytest.fixture
def world() -> World:
    return World(("a", "b", "c"), random=random.Random(5).random)


async def errors(world: World, count: int, *, each_s: float = 0.0) -> int:
    """Send requests one after the other; return how many fail."""
    failed = 0
    for _ in range(count):
        world.clock.now_s += each_s
        try:
            await world.ask()
        except Fault:
            failed += 1
    return failed


# --- a model that fails on one server


async def test_a_model_that_fails_on_one_of_three_costs_five_errors_and_then_only_probes(
    world: World,
) -> None:
    world.transport.usual["a"] = Step(fault=FAILED)
    in_100_s = await errors(world, 5000, each_s=0.02)
    assert 5 <= in_100_s <= 5 + 5  # open for 2.5 to 5 s, 5 to 10, 10 to 20, 20 to 40, 40 to 80
    assert world.circuits("a")["m/1"].circuit is Circuit.OPEN
    asked = Counter(world.servers_asked[-1000:])
    assert asked["a"] <= 1
    assert min(asked["b"], asked["c"]) > 400  # the others share the work


async def test_what_is_under_way_when_a_server_is_ejected_fails_and_nothing_later(
    world: World,
) -> None:
    at_once, failed = 12, []
    world.transport.usual = dict.fromkeys("abc", Step(hangs=True))
    for _ in range(20):
        world.transport.calls.clear()
        asking = [asyncio.get_running_loop().create_task(world.ask()) for _ in range(at_once)]
        while sum(call.begun.is_set() for call in world.transport.calls) < at_once:
            await asyncio.sleep(0)
        for call in world.transport.calls:
            call.finish(FAILED if call.server == "a" else None)
        done = await asyncio.gather(*asking, return_exceptions=True)
        failed.append(sum(isinstance(one, Fault) for one in done))
        world.clock.now_s += 0.1
    assert 5 <= sum(failed) <= 5 + at_once
    assert failed[-10:] == [0] * 10
    assert set(world.circuits("a")) == {"m/1"}
    assert world.idle


async def test_a_repaired_model_is_used_again(world: World) -> None:
    world.transport.usual["a"] = Step(fault=FATAL)
    assert await errors(world, 100, each_s=0.01) == 1
    del world.transport.usual["a"]
    assert await errors(world, 100, each_s=0.1) == 0
    assert world.circuits("a") == {}
    assert Counter(world.servers_asked[-30:])["a"] >= 5


async def test_a_version_that_fails_everywhere_ejects_nobody(world: World) -> None:
    world.transport.usual = dict.fromkeys("abc", Step(fault=FAILED))
    assert await errors(world, 60) == 60
    assert world.pool.bad_versions() == [ModelVersion("m", 1)]
    assert world.pool.breakers() == {}
    world.transport.usual.clear()
    assert await errors(world, 100, each_s=0.5) == 0
    assert world.pool.bad_versions() == []


async def test_requests_that_are_wrong_eject_nobody(world: World) -> None:
    wrong = to_fault(Code.INVALID_ARGUMENT, "unexpected shape for input 'IN'")
    world.transport.usual = dict.fromkeys("abc", Step(fault=wrong))
    assert await errors(world, 100) == 100
    assert world.pool.breakers() == {}


# --- what will not pass by itself


@pytest.mark.parametrize(
    "text",
    [
        "Failed to process the request(s) for model instance 'm_0', message: Stub process 'm_0' is"
        " not healthy.",
        "The stub process has exited unexpectedly.",
        "CUDA error: device-side assert triggered",
        "failed to run: cudaErrorIllegalAddress: an illegal memory access was encountered",
        "onnx runtime error 6: CUDNN_STATUS_EXECUTION_FAILED",
        "uncorrectable ECC error encountered",
    ],
)
async def test_a_dead_process_or_gpu_is_ejected_at_once(world: World, text: str) -> None:
    world.transport.usual["a"] = Step(fault=to_fault(Code.INTERNAL, text))
    assert await errors(world, 200, each_s=0.01) == 1
    assert set(world.circuits("a")) == {"m/1"}


# --- connections


async def test_a_server_that_breaks_its_connections_is_ejected_for_all_it_has(
    world: World,
) -> None:
    world.transport.usual["a"] = Step(fault=BROKEN)
    assert await errors(world, 5000, each_s=0.02) == 0  # each was tried elsewhere
    assert set(world.circuits("a")) == {"server"}
    assert Counter(world.servers_asked)["a"] <= 5 + 5


# --- time


EXPIRES = pytest.mark.parametrize(
    "step", [Step(after_s=9999.0), Step(fault=SLOW)], ids=["gateway", "grpc"]
)
"""Whether the gateway or the gRPC library notices first."""


async def expire(world: World, asked_s: float | None) -> None:
    """Let the deadline of a request pass."""
    assert (await world.fault(timeout_s=asked_s)).kind is Kind.DEADLINE
    call = world.transport.calls[-1]
    if not call.ended:
        call.end()


@EXPIRES
async def test_deadlines_that_callers_choose_eject_nobody(world: World, step: Step) -> None:
    world.transport.usual = dict.fromkeys("abc", step)
    for _ in range(200):
        await expire(world, asked_s=0.001)
    assert world.pool.breakers() == {}
    assert world.pool.bad_versions() == []
    (lease,) = world.busy("a")
    assert lease.candidate.latency_s(world.clock()) is None


@EXPIRES
@pytest.mark.parametrize("asked_s", [None, 1000.0])  # more than the gateway allows
async def test_deadlines_of_the_gateway_count_half(step: Step, asked_s: float | None) -> None:
    world = World(("a", "b"), default_s=0.001, max_s=0.001)
    world.busy(*100 * "b")  # so that `a` is asked
    world.transport.usual["a"] = step
    while not world.circuits("a"):
        await expire(world, asked_s)
        assert len(world.transport.sent) <= 41
    assert set(world.circuits("a")) == {"m/1"}
    assert set(world.servers_asked) == {"a"}
    assert len(world.transport.sent) >= 40  # as much as 20 requests


async def test_what_was_too_late_before_it_was_sent_says_nothing_of_a_server(world: World) -> None:
    """Above all it is no answer, which would prove that the server lives and is fast."""
    for asked_s in [1.0, None] * 50:
        fault = await world.fault(timeout_s=asked_s, receiving_s=asked_s or 60.0)
        assert fault.kind is Kind.DEADLINE
    assert world.transport.sent == []
    for lease in world.busy("a", "b", "c"):
        assert lease.candidate.latency_s(world.clock()) is None
        assert lease.load.last_reply_s == float("-inf")


async def test_what_could_not_be_sent_says_nothing_of_a_server(world: World) -> None:
    world.will(*[Fault.invalid("not UTF-8")] * 50)
    assert await errors(world, 50) == 50
    assert world.pool.breakers() == {}
    assert {load.last_reply_s for load in world.pool.loads.values()} == {float("-inf")}
