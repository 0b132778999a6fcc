"""Requests that find no room on any server: their turns, refusals, callers that leave."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.admission import LOOK_INTERVAL_S, AdmissionSettings
from gateway.exchange import Admitted, Exchange, Hedge
from gateway.faults import Fault, Kind
from gateway.hedging import HedgePolicy
from routing.admission.limits import Shape, Waits
from routing.admission.queue import EVERY, QueueSettings
from routing.budget import RetryBudget
from routing.classes import CRITICAL, SHEDDABLE, STANDARD, PriorityClass
from routing.fleet import ModelVersion
from routing.steering import Steering
from tests.limits.building import rate
from tests.pipeline.scripted import (
    NOT_READY,
    QUEUE_FULL,
    SPEC,
    START_BODY,
    UNREACHABLE,
    Step,
    World,
)
from tests.pipeline.streaming import StreamWorld, everything

HANGS = Step(hangs=True)


def settings(
    *, enforce: bool = True, most: int = 20, a_tenant: int = 20, max_bytes: int = 1000
) -> AdmissionSettings:
    return AdmissionSettings(
        enforce=enforce,
        queue=QueueSettings(most, a_tenant),
        max_bytes=max_bytes,
        max_wait_s=10.0,
    )


def world(*servers: str, concurrency: int = 1, **named: Any) -> World:
    admission = named.pop("admission", None) or settings()
    made = World(servers or ("a",), concurrency=concurrency, admission=admission, **named)
    made.transport.usual = dict.fromkeys(made.pool.loads, HANGS)
    return made


class Asking:
    """A request under way. `exchange` is there once it has begun."""

    exchange: Exchange

    def __init__(self, world: World, **asked: Any) -> None:
        self.task = asyncio.get_running_loop().create_task(world.ask(**asked))

    @property
    def admission(self) -> Admitted | None:
        return self.exchange.admission

    async def fault(self) -> Fault:
        with pytest.raises(Fault) as caught:
            await self.task
        return caught.value

    async def leaves(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def asking(
    world: World, *wanted: PriorityClass, tenant: str = "t", **asked: Any
) -> list[Asking]:
    """Let requests of these classes begin, one after the other."""
    world.tenant = tenant
    begun = []
    for kind in wanted:
        world.kind = kind
        request = Asking(world, **asked)
        await settled()
        request.exchange = world.exchange
        begun.append(request)
    return begun


async def finish(world: World, number: int) -> None:
    world.transport.calls[number].finish()
    await settled()


def waiting(world: World) -> dict[str, int]:
    assert world.admission is not None
    return {kind: n for kind, n in world.admission.queued().get("m", {}).items() if n}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(LOOK_INTERVAL_S)


# --- room


async def test_what_finds_room_passes_at_once() -> None:
    some = world("a", "b")
    some.transport.usual = {}
    tasks = len(asyncio.all_tasks())
    await some.ask()
    assert some.exchange.admission is Admitted.PASSED
    assert some.exchange.queued_s == 0
    assert some.exchange.order == ["receive", "resolve", "decode", "pick", "send", "reply"]
    assert len(asyncio.all_tasks()) == tasks
    assert waiting(some) == {}


async def test_the_server_with_room_is_found_whatever_the_policy_drew() -> None:
    some = world("a", "b", "c", concurrency=2)
    held = some.busy("a", "a", "b", "b")
    (one,) = await asking(some, STANDARD)
    assert some.servers_asked == ["c"]
    assert one.admission is Admitted.PASSED
    for lease in held:
        lease.release()


async def test_the_others_wait_and_each_place_given_back_is_the_turn_of_one() -> None:
    some = world(concurrency=2)
    requests = await asking(some, *[STANDARD] * 5)
    assert len(some.transport.calls) == 2
    assert waiting(some) == {"standard": 3}
    some.clock.now_s += 1.5
    await finish(some, 0)
    assert len(some.transport.calls) == 3
    assert waiting(some) == {"standard": 2}
    third = requests[2]
    assert third.admission is Admitted.QUEUED
    assert third.exchange.queued_s == 1.5
    assert third.exchange.order[3:] == ["pick", "admit", "send"]  # type: ignore[attr-defined]
    for number in range(1, 5):
        await finish(some, number)
    await asyncio.gather(*(each.task for each in requests))
    assert some.idle
    assert third.exchange.own_time_s == 0, "waiting for a server is not the gateway's own time"
    assert some.pool.model("m").on_room == ()


async def test_the_important_go_first_and_nobody_overtakes_within_a_class() -> None:
    some = world()
    requests = await asking(some, STANDARD, SHEDDABLE, STANDARD, CRITICAL, CRITICAL)
    order = [0, 3, 4, 2, 1]
    for number, request in enumerate(order):
        assert [each.task.done() for each in requests].count(True) == number
        await finish(some, number)
        assert requests[request].task.done()
    assert some.idle


async def test_lower_classes_leave_room_for_the_others() -> None:
    some = world(concurrency=10, admission=settings(most=200, a_tenant=200))
    await asking(some, *[SHEDDABLE] * 12)
    assert len(some.transport.calls) == 7
    await asking(some, *[STANDARD] * 12)
    assert len(some.transport.calls) == 9
    await asking(some, *[CRITICAL] * 12)
    assert len(some.transport.calls) == 10
    assert waiting(some) == {"sheddable": 5, "standard": 10, "critical": 11}
    for number in range(36):
        await finish(some, number)
    assert some.idle
    assert waiting(some) == {}


async def test_a_class_gets_its_place_although_its_requests_give_up_in_turn() -> None:
    """Seven of ten places are all that a sheddable request may find; eight are always taken."""
    some = world(concurrency=10)
    await asking(some, *[CRITICAL] * 8)
    served = 0
    for number in range(3 * EVERY):
        (one,) = await asking(some, SHEDDABLE)
        await asking(some, CRITICAL)
        await finish(some, number)
        if one.admission is Admitted.QUEUED:
            served += 1
            continue
        await one.leaves()
        assert waiting(some) == {}
    assert served == 2
    for number in range(3 * EVERY, len(some.transport.calls)):
        await finish(some, number)


async def test_a_new_request_does_not_overtake_those_of_its_class() -> None:
    some = world("a")
    requests = await asking(some, STANDARD, STANDARD)
    some.transport.calls[0].finish()
    requests += await asking(some, STANDARD)
    assert len(some.transport.calls) == 2
    assert waiting(some) == {"standard": 1}
    await finish(some, 1)
    assert requests[1].task.done()
    await finish(some, 2)
    assert some.idle


async def test_room_that_nobody_tells_of_is_found() -> None:
    some = world("a", concurrency=1)
    requests = await asking(some, STANDARD, STANDARD)
    some.pool.model("m").limits.fix(2)  # as when a limit grows, or another worker is done
    await until(lambda: len(some.transport.calls) == 2)
    for number in range(2):
        await finish(some, number)
    await asyncio.gather(*(each.task for each in requests))


async def test_limits_are_found_out_from_what_servers_tell() -> None:
    some = World(("a",), admission=settings())
    some.transport.usual = {"a": HANGS}
    some.pool.observe_waits("a", {"m": Waits(Shape(instances=2))}, some.clock())
    requests = await asking(some, *[STANDARD] * 6)
    assert len(some.transport.calls) == 4
    some.clock.now_s += 2
    some.pool.observe_waits("a", {"m": Waits(Shape(instances=2), 10, 0.0, 0.02)}, some.clock())
    await until(lambda: len(some.transport.calls) == 5)
    some.transport.calls[0].finish(QUEUE_FULL)
    assert (await requests[0].fault()).kind is Kind.OVERLOADED
    assert some.pool.model("m").limits.rows[0] == pytest.approx(5 * 0.7)
    for number in range(1, 6):
        await finish(some, number)


# --- refusals


async def test_a_full_queue_refuses_with_503_and_a_time_to_come_back() -> None:
    some = world(admission=settings(most=2))
    requests = await asking(some, *[CRITICAL] * 4)
    fault = await requests[3].fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.OVERLOADED, 1)
    assert fault.message == "too many requests of class 'critical' wait for the model"
    assert requests[3].admission is Admitted.REFUSED
    for number in range(3):
        await finish(some, number)
    assert some.idle


async def test_the_less_important_make_way() -> None:
    some = world(admission=settings(most=4))
    requests = await asking(some, *[SHEDDABLE] * 4, *[CRITICAL] * 2)
    assert (await requests[3].fault()).kind is Kind.OVERLOADED
    assert requests[3].admission is Admitted.EVICTED
    assert waiting(some) == {"sheddable": 2, "critical": 2}
    for number in range(5):
        await finish(some, number)
    assert some.idle


async def test_a_refused_request_gets_its_tokens_back() -> None:
    rule = rate(0.001, 5)
    some = world(admission=settings(most=1), limits=[rule])
    await asking(some, *[CRITICAL] * 2, tenant="anonymous")
    for _ in range(9):
        (refused,) = await asking(some, CRITICAL, tenant="anonymous")
        assert (await refused.fault()).kind is Kind.OVERLOADED
        await settled()
    for number in range(2):
        await finish(some, number)


async def test_who_waits_for_too_long_is_refused() -> None:
    some = world()
    requests = await asking(some, STANDARD, STANDARD)
    some.clock.now_s += 10.1
    fault = await requests[1].fault()
    assert (fault.kind, fault.retry_after_s) == (Kind.OVERLOADED, 1)
    assert fault.message == "no server had room for the request within 10 s"
    assert requests[1].admission is Admitted.EXPIRED
    await finish(some, 0)


async def test_a_deadline_that_cannot_be_met_any_more_ends_the_wait() -> None:
    some = world()
    some.pool.observe_waits("a", {"m": Waits(Shape(), 10, 0.0, 2.0)}, some.clock())
    _, urgent = await asking(some, STANDARD, STANDARD, timeout_s=5.0)
    some.clock.now_s += 2.9
    await asyncio.sleep(3 * LOOK_INTERVAL_S)
    assert not urgent.task.done()
    some.clock.now_s += 0.2  # 1.9 s are left, and it takes 2
    assert (await urgent.fault()).kind is Kind.DEADLINE
    assert urgent.admission is Admitted.EXPIRED
    assert len(some.transport.calls) == 1
    await finish(some, 0)


async def test_a_late_request_never_runs_even_if_there_is_room_at_that_moment() -> None:
    some = world()
    requests = await asking(some, STANDARD, STANDARD)
    some.clock.now_s += 10.1
    await finish(some, 0)
    assert (await requests[1].fault()).kind is Kind.OVERLOADED
    assert len(some.transport.calls) == 1


async def test_a_server_that_goes_is_told_to_those_who_wait() -> None:
    some = world()
    requests = await asking(some, STANDARD, STANDARD)
    some.fleet.table.server_down("a", "gone", now_s=some.clock())
    fault = await requests[1].fault()
    assert fault.kind is Kind.NOT_READY
    await finish(some, 0)


async def test_those_who_wait_go_to_a_server_that_joins_in() -> None:
    some = world("a", "b")
    some.pool.steer(Steering(frozenset({"b"})))
    requests = await asking(some, STANDARD, STANDARD)
    assert some.servers_asked == ["a"]
    some.pool.steer(Steering())
    await until(lambda: some.servers_asked == ["a", "b"])
    for number in range(2):
        await finish(some, number)
    await asyncio.gather(*(each.task for each in requests))


# --- callers that leave


async def test_who_leaves_gives_up_its_turn() -> None:
    some = world()
    requests = await asking(some, STANDARD, STANDARD, STANDARD)
    await requests[1].leaves()
    assert requests[1].admission is Admitted.LEFT
    assert waiting(some) == {"standard": 1}
    await finish(some, 0)
    assert len(some.transport.calls) == 2
    await finish(some, 1)
    assert requests[2].task.done()
    assert some.idle


async def test_who_leaves_when_its_turn_has_just_come_gives_the_place_back() -> None:
    some = world("a")
    held = some.busy("a")
    some.kind = STANDARD
    first = asyncio.get_running_loop().create_task(some.ask())
    await settled()
    second = asyncio.get_running_loop().create_task(some.ask())
    await settled()
    assert waiting(some) == {"standard": 2}
    held[0].release()  # the place is given to the first, which does not know it yet
    assert waiting(some) == {"standard": 1}
    first.cancel()
    await settled()
    assert first.cancelled()
    assert len(some.transport.calls) == 1, "the second has it"
    await finish(some, 0)
    assert second.done()
    assert some.idle
    assert some.pool.leases == 0


# --- further attempts, hedges, sequences, streams


async def test_a_further_attempt_does_not_wait_again() -> None:
    some = world("a", "b")
    held = some.busy("b")
    requests = await asking(some, STANDARD)
    requests += await asking(some, STANDARD)
    assert some.servers_asked == ["a"]
    assert waiting(some) == {"standard": 1}
    some.transport.calls[0].finish(NOT_READY)
    await settled()
    assert some.servers_asked[:2] == ["a", "b"], "although b has no room"
    held[0].release()
    for number in range(1, 3):
        await until(lambda n=number: len(some.transport.calls) > n)  # type: ignore[misc]
        await finish(some, number)
    await asyncio.gather(*(each.task for each in requests))


async def test_a_further_attempt_prefers_a_server_with_room() -> None:
    some = world("a", "b", "c", concurrency=2)
    held = some.busy("b", "b", "c")
    await asking(some, STANDARD)
    assert some.servers_asked == ["a"]
    some.transport.calls[0].finish(UNREACHABLE)
    await settled()
    assert some.servers_asked == ["a", "c"]
    await finish(some, 1)
    for lease in held:
        lease.release()


@pytest.mark.parametrize(
    ("kind", "hedge"), [(CRITICAL, Hedge.UNANSWERED), (SHEDDABLE, Hedge.NO_ROOM)]
)
async def test_a_second_server_is_asked_only_if_it_has_room(
    kind: PriorityClass, hedge: Hedge
) -> None:
    hedges = {"m": HedgePolicy(0.0, RetryBudget(ratio=1.0, min_per_s=0.0))}
    some = world("a", "b", concurrency=4, runs_on=False, hedges=hedges)
    held = some.busy("b", "b", "b")  # three of four: more than a sheddable request may fill
    (one,) = await asking(some, kind)
    await until(lambda: some.exchange.hedges == (hedge,))
    await one.leaves()
    for lease in held:
        lease.release()


async def test_no_second_server_is_asked_while_others_wait() -> None:
    hedges = {"m": HedgePolicy(0.05, RetryBudget(ratio=1.0, min_per_s=0.0))}
    some = world("a", "b", runs_on=False, hedges=hedges)
    held = some.busy("b")
    first, second = await asking(some, CRITICAL, CRITICAL)
    assert waiting(some) == {"critical": 1}
    await until(lambda: first.exchange.hedges == (Hedge.NO_ROOM,))
    held[0].release()
    await settled()
    assert some.servers_asked == ["a", "b"]
    for request in (first, second):
        await request.leaves()


async def test_sequences_count_and_never_wait() -> None:
    some = world(spec=replace(SPEC, sequence=True))
    requests = await asking(some, STANDARD, body=START_BODY)
    requests += await asking(some, STANDARD, body=START_BODY.replace(b"7", b"8"))
    assert len(some.transport.calls) == 2
    assert [each.admission for each in requests] == [None, None]
    (other,) = await asking(some, STANDARD)
    assert waiting(some) == {"standard": 1}
    for number in range(2):
        await finish(some, number)
    await finish(some, 2)
    await other.task
    assert some.idle


async def test_a_stream_keeps_its_place_until_it_is_over() -> None:
    some = StreamWorld((1, 2), (3,), servers=("a",), concurrency=1, admission=settings())
    events = await some.generate_stream()
    assert some.exchange.admission is Admitted.PASSED
    second = asyncio.get_running_loop().create_task(some.generate_stream())
    await settled()
    assert waiting(some) == {"standard": 1}
    assert len(await everything(events)) == 2
    await settled()
    later = await second
    assert some.exchange.admission is Admitted.QUEUED
    await everything(later)
    assert some.idle


# --- only observed


async def test_observing_sends_everything_and_tells_what_would_have_waited() -> None:
    some = world("a", "b", admission=settings(enforce=False, most=2), concurrency=1)
    requests = await asking(some, *[CRITICAL] * 6)
    assert len(some.transport.calls) == 6
    assert [each.admission for each in requests] == [
        Admitted.PASSED,
        Admitted.PASSED,
        Admitted.WOULD_QUEUE,
        Admitted.WOULD_QUEUE,
        Admitted.WOULD_REFUSE,
        Admitted.WOULD_REFUSE,
    ]
    for number in range(6):
        await finish(some, number)
    assert some.idle


async def test_observing_sees_room_elsewhere() -> None:
    some = world("a", "b", "c", admission=settings(enforce=False), concurrency=1)
    held = some.busy("a", "b")
    some.pool.model("m").sample(2, 0.1, some.clock())
    (one,) = await asking(some, STANDARD)
    assert one.admission is Admitted.PASSED
    await finish(some, 0)
    for lease in held:
        lease.release()


async def test_without_a_limit_nothing_waits() -> None:
    some = World(("a",), admission=settings())
    some.transport.usual = {"a": HANGS}
    assert some.pool.model("m").limits.rows[0] == math.inf
    requests = await asking(some, *[SHEDDABLE] * 50)
    assert len(some.transport.calls) == 50
    for each in requests:
        await each.leaves()


async def test_versions_wait_side_by_side() -> None:
    some = World(("a", "b"), concurrency=1, admission=settings())
    some.transport.usual = {"a": HANGS, "b": HANGS}
    table, now_s = some.fleet.table, some.clock()
    for server, number in (("a", 1), ("b", 2)):
        table.observe_ready(server, [ModelVersion("m", number)], asked_s=now_s, now_s=now_s)
        table.learn_spec(server, replace(SPEC, version=number), now_s=now_s)
    await asking(some, STANDARD, STANDARD, version=1)
    requests = await asking(some, STANDARD, STANDARD, version=2)
    assert some.servers_asked == ["a", "b"]
    assert waiting(some) == {"standard": 2}
    await finish(some, 1)
    assert some.servers_asked == ["a", "b", "b"]
    assert requests[0].task.done()
    for number in (0, 2, 3):
        await finish(some, number)
    assert some.idle


async def test_switched_off_it_observes_and_nobody_waits_any_longer() -> None:
    some = world()
    requests = await asking(some, *[STANDARD] * 4)
    assert waiting(some) == {"standard": 3}
    some.switches.until_s = {"admission": some.clock.now_s + 60}
    await until(lambda: len(some.transport.calls) == 4)
    (late,) = await asking(some, STANDARD)
    assert late.admission is Admitted.WOULD_QUEUE
    some.clock.now_s += 61
    (after,) = await asking(some, STANDARD)
    assert waiting(some) == {"standard": 1}
    for number in range(6):
        await finish(some, number)
    await asyncio.gather(*(each.task for each in (*requests, late, after)))
