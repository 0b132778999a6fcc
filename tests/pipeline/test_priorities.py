"""Priority classes in the life of a request: how one is asked for, and what the server is told."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.exchange import Exchange, Overreach
from gateway.faults import Fault, Kind
from gateway.limits.gate import RateLimits
from routing.classes import CLASSES, CRITICAL, SHEDDABLE, STANDARD
from routing.limits import Applied, RuleBook
from routing.priorities import Grant, Objection, Priorities
from routing.queueing import Queueing
from routing.types import ModelSpec
from tests.pipeline.scripted import BODY, SPEC, UNREACHABLE, Step, World
from tests.pipeline.streaming import DECOUPLED, StreamWorld, everything

HEADER = "Triton-Gateway-Class"
THREE = Queueing("dynamic_batching", levels=3)
FREE = Priorities()
STRICT = Priorities(
    tenants={"boss": Grant(CRITICAL), "batch": Grant(SHEDDABLE, STANDARD)}, configured=True
)


def asking(**parameters: Any) -> bytes:
    text = ",".join(f'"{name}":{value}' for name, value in parameters.items())
    return BODY[:-1] + b',"parameters":{%b}}' % text.encode()


def world(priorities: Priorities = STRICT, tenant: str = "anonymous", **fields: Any) -> World:
    made = World(priorities=priorities, **{"queueing": THREE, **fields})
    made.tenant = tenant
    return made


async def sent(world: World, body: bytes = BODY, name: str | None = None) -> dict[str, Any]:
    """The parameters that reach the server."""
    await world.ask(body, **({HEADER: name} if name else {}))
    return dict(world.transport.infer_calls[-1].parameters)


async def test_nothing_configured_and_nothing_asked_for_changes_nothing() -> None:
    untouched = world(FREE)
    assert await sent(untouched, asking(x=1)) == {"x": 1}
    assert await sent(untouched, asking(priority=0)) == {"priority": 0}
    assert (untouched.exchange.classed, untouched.exchange.priority_class) == (False, STANDARD)


async def test_where_nothing_is_configured_a_request_may_ask() -> None:
    free = world(FREE)
    assert await sent(free, asking(priority=1)) == {"priority": 1}
    assert (free.exchange.classed, free.exchange.priority_class) == (True, CRITICAL)
    assert await sent(free, name="sheddable") == {"priority": 3}
    assert free.exchange.priority_class is SHEDDABLE
    assert free.exchange.overreach is None


@pytest.mark.parametrize(
    ("tenant", "cls", "level"),
    [("boss", CRITICAL, 1), ("batch", SHEDDABLE, 3), ("anonymous", STANDARD, 2)],
)
@pytest.mark.parametrize("body", [BODY, asking(priority=0)])
async def test_a_tenant_has_its_class(tenant: str, cls: Any, level: int, body: bytes) -> None:
    strict = world(tenant=tenant)
    assert await sent(strict, body) == {"priority": level}
    assert strict.exchange.priority_class is cls
    assert strict.exchange.classed


async def test_who_asks_for_more_than_it_may_have_gets_what_it_may_have() -> None:
    strict = world(tenant="batch")
    assert await sent(strict, asking(priority=1)) == {"priority": 2}
    assert strict.exchange.overreach == Overreach(Objection.LOWERED, "priority 1", enforced=True)
    assert await sent(strict, name="critical") == {"priority": 2}
    assert strict.exchange.priority_class is STANDARD
    assert await sent(strict, name="standard") == {"priority": 2}
    assert strict.exchange.overreach is None


async def test_observed_it_gets_it_and_is_noted() -> None:
    observed = world(replace(STRICT, enforce=False), "batch")
    assert await sent(observed, asking(priority=1)) == {"priority": 1}
    assert observed.exchange.overreach == Overreach(Objection.LOWERED, "priority 1", enforced=False)
    assert await sent(observed, asking(priority=4)) == {"priority": 4}
    assert await sent(observed, name="vital") == {"priority": 3}
    assert observed.exchange.overreach == Overreach(
        Objection.UNKNOWN_CLASS, "class vital", enforced=False
    )


@pytest.mark.parametrize("priorities", [FREE, STRICT])
async def test_a_priority_that_the_model_does_not_have_is_refused(priorities: Priorities) -> None:
    strict = world(priorities)
    fault = await strict.fault(asking(priority=4))
    assert fault.kind is Kind.INVALID
    assert fault.message == (
        "Unable to parse 'parameters.priority': expected an integer from 0 to 3, the priority"
        " levels of the model"
    )
    assert strict.exchange.overreach is not None
    assert strict.servers_asked == []


@pytest.mark.parametrize("queueing", [None, Queueing(), Queueing("dynamic_batching")])
async def test_a_model_without_levels_is_told_what_the_caller_told(
    queueing: Queueing | None,
) -> None:
    strict = world(queueing=queueing)
    assert await sent(strict) == {}
    assert await sent(strict, asking(priority=7)) == {"priority": 7}
    assert await sent(strict, name="sheddable") == {}
    assert strict.exchange.priority_class is SHEDDABLE


@pytest.mark.parametrize("priorities", [FREE, STRICT])
async def test_a_class_that_is_none_is_refused(priorities: Priorities) -> None:
    strict = world(priorities)
    fault = await strict.fault(BODY, **{HEADER: "high" * 100})
    assert fault.kind is Kind.INVALID
    assert fault.message == (
        "Triton-Gateway-Class names no priority class; there are critical, standard, sheddable"
    )
    assert strict.exchange.overreach is not None
    assert len(strict.exchange.overreach.asked) <= 70


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(BODY, 5), (asking(timeout=0), 5), (asking(timeout=3), 3), (asking(timeout=9), 5)],
)
async def test_the_shorter_time_in_the_queue_counts(asked: bytes, expected: int) -> None:
    classes = tuple(replace(cls, queue_timeout_us=5) for cls in CLASSES)
    timed = world(replace(STRICT, classes=classes, usual=classes[1], tenants={}), queueing=None)
    assert await sent(timed, asked) == {"timeout": expected}


async def test_the_class_is_known_before_a_request_is_admitted() -> None:
    seen = []

    class Watching(RateLimits):
        def applied(self, exchange: Exchange) -> Sequence[Applied]:
            seen.append(exchange.priority_class)
            return ()

    strict = world(tenant="boss")
    strict.pipeline._limits = Watching(RuleBook(()), strict.limiter, strict.switches)
    await strict.ask()
    assert seen == [CRITICAL]


async def test_a_second_attempt_is_told_the_same() -> None:
    strict = world(tenant="boss")
    strict.will(Step(fault=UNREACHABLE), Step())
    await strict.ask()
    told = [call.parameters for call in strict.transport.infer_calls]
    assert told == [{"priority": 1}, {"priority": 1}]


@pytest.mark.parametrize("spec", [DECOUPLED, SPEC])
async def test_generate_has_classes_too(spec: ModelSpec) -> None:
    streams = StreamWorld((1,), (1,), spec=spec, priorities=STRICT, queueing=THREE)
    streams.tenant = "batch"
    await everything(await streams.generate_stream())
    await streams.generate(body=b'{"IN": [1], "priority": 1, "x": 2}')
    told = [call.parameters for call in streams.transport.infer_calls]
    assert told == [{"priority": 3}, {"priority": 2, "x": 2}]
    assert streams.exchange.priority_class is STANDARD
    streams.headers[HEADER] = "vital"
    with pytest.raises(Fault, match="names no priority class"):
        await streams.generate_stream()


def test_an_exchange_nobody_has_classed_is_a_usual_one() -> None:
    exchange = Exchange("r", "c", "infer", lambda: 0.0, 0.0)
    assert (exchange.priority_class, exchange.classed) == (STANDARD, False)
