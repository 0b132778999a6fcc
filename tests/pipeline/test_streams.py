"""What becomes of streams: before the first event, between events, at the end, and cut short."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.codec.types import InferReply
from gateway.faults import Fault, Kind
from routing.types import Blame
from tests.pipeline.scripted import (
    BROKEN,
    DRAINING,
    FAILED,
    FATAL,
    NOT_READY,
    QUEUE_FULL,
    SPEC,
    UNREACHABLE,
)
from tests.pipeline.streaming import (
    DECOUPLED,
    GARBLED,
    Ends,
    Event,
    Hangs,
    Pause,
    StreamWorld,
    everything,
)

HOUR_S = 3600.0


def numbers(events: list[bytes | Fault]) -> list[Any]:
    return [json.loads(e)["OUT"] if isinstance(e, bytes) else e.message for e in events]


def blamed(world: StreamWorld) -> float:
    """The phantom work of failures on the first server, once nothing runs there any more."""
    for stream in world.opened:
        if stream.abandoned:
            stream.end()
    lease = world.busy("a")[0]
    lease.release()
    return lease.candidate.work(world.clock())


async def until_asked(world: StreamWorld) -> None:
    while not (world.opened and world.opened[0].asked):
        await asyncio.sleep(0)


async def fault_of(asking: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        await asking
    return caught.value


# --- streams that end well


@pytest.mark.parametrize("script", [(), (1,), (1, 2, 3)])
async def test_every_answer_is_an_event(script: tuple[Event, ...]) -> None:
    world = StreamWorld(script)
    events = await world.generate_stream()
    assert numbers(await everything(events)) == list(script)
    assert world.idle
    assert world.exchange.events == len(script)
    assert world.exchange.server == "a"
    assert world.exchange.outcome == "ok"
    assert not world.opened[0].abandoned


@pytest.mark.parametrize("world", [StreamWorld((1,)), StreamWorld(spec=SPEC)])
async def test_headers_to_pass_on_go_with_the_call(world: StreamWorld) -> None:
    await everything(await world.generate_stream())
    (call,) = world.transport.infer_calls
    assert call.metadata == (("traceparent", "t"),)


async def test_nothing_is_read_before_it_is_wanted() -> None:
    world = StreamWorld((1, 2, 3))
    events = await world.generate_stream()
    assert world.opened[0].asked == 1
    await events.next()
    assert world.opened[0].asked == 1
    await events.next()
    assert world.opened[0].asked == 2
    events.close()


async def test_the_time_to_the_first_event_is_what_a_server_is_judged_by() -> None:
    world = StreamWorld((Pause(2.0), 1, Pause(30.0), 2, Pause(30.0), 3))
    await everything(await world.generate_stream())
    assert world.exchange.first_event_s == world.exchange.started_s + 2.0
    lease = world.busy("a")[0]
    assert lease.candidate.latency_s(world.clock()) == pytest.approx(2.0)
    lease.release()


async def test_a_model_that_answers_once_is_asked_by_a_unary_call() -> None:
    world = StreamWorld(spec=SPEC)
    assert numbers(await everything(await world.generate_stream())) == [1]
    assert json.loads(await world.generate())["OUT"] == 1
    assert world.servers_asked == ["a", "a"]
    assert world.opened == []
    assert world.idle


# --- errors before the first event


@pytest.mark.parametrize("fault", [NOT_READY, QUEUE_FULL, DRAINING, UNREACHABLE])
@pytest.mark.parametrize("in_band", [True, False])
async def test_what_has_not_run_is_asked_of_another_server(fault: Fault, in_band: bool) -> None:
    world = StreamWorld((fault if in_band else Ends(fault),), (1, 2))
    assert numbers(await everything(await world.generate_stream())) == [1, 2]
    assert world.asked == ["a", "b"]
    assert world.exchange.attempts == 2


async def test_a_stream_that_may_have_run_is_not_run_again() -> None:
    world = StreamWorld((Ends(BROKEN),), (1,))
    assert (await fault_of(world.generate_stream())).kind is Kind.BROKEN
    assert world.asked == ["a"]
    assert world.idle


@pytest.mark.parametrize("ask", ["generate", "generate_stream"])
async def test_an_error_of_the_model_in_place_of_the_first_event_is_the_answer(ask: str) -> None:
    world = StreamWorld((FAILED, 1))
    assert await fault_of(getattr(world, ask)()) is FAILED
    assert world.asked == ["a"]
    assert world.opened[0].abandoned
    assert world.held() == (1, 1, 0)  # until the cancellation has arrived
    world.opened[0].end()
    assert world.idle
    assert blamed(world) >= 1


async def test_a_first_answer_that_cannot_be_written_is_an_error_too() -> None:
    world = StreamWorld((GARBLED,))
    assert (await fault_of(world.generate_stream())).kind is Kind.BROKEN
    assert world.opened[0].abandoned


# --- errors behind the first event


async def test_an_error_of_the_model_is_an_event_and_the_stream_goes_on() -> None:
    world = StreamWorld((1, FAILED, 3))
    assert numbers(await everything(await world.generate_stream())) == [1, FAILED.message, 3]
    assert world.exchange.fault is FAILED
    assert world.exchange.outcome == "failed"
    assert world.asked == ["a"]
    assert blamed(world) >= 1
    assert world.idle


async def test_an_answer_that_cannot_be_written_is_an_event_too() -> None:
    world = StreamWorld((1, GARBLED, 3))
    first, error, last = numbers(await everything(await world.generate_stream()))
    assert (first, last) == (1, 3)
    assert "does not match size of output" in error
    assert world.exchange.outcome == "broken"


async def test_of_several_errors_the_first_one_counts() -> None:
    world = StreamWorld((1, FATAL, FAILED))
    await everything(await world.generate_stream())
    assert world.exchange.fault is FATAL


async def test_streams_that_fail_behind_their_first_event_open_a_breaker() -> None:
    world = StreamWorld(*((1, FATAL) for _ in range(2)))
    await everything(await world.generate_stream())
    assert world.circuits("a") != {}
    await everything(await world.generate_stream())
    assert world.asked == ["a", "b"]


async def test_a_server_that_is_lost_cuts_the_stream_short_and_nothing_is_retried() -> None:
    world = StreamWorld((1, 2, Ends(BROKEN)))
    events = await world.generate_stream()
    assert numbers([await events.next(), await events.next()]) == [1, 2]
    assert await fault_of(events.next()) is BROKEN
    events.close()
    assert world.asked == ["a"]
    assert world.fleet.reports == [("broken", "a")]
    assert world.idle


async def test_streams_lost_together_are_one_failure_of_the_server() -> None:
    world = StreamWorld(*((1, Ends(BROKEN)) for _ in range(8)))
    running = [await world.generate_stream() for _ in range(8)]
    for events in running:
        await events.next()
    for events in running:
        assert await fault_of(events.next()) is BROKEN
    assert world.circuits("a") == world.circuits("b") == {}


# --- letting go


async def test_a_client_that_leaves_cancels_the_stream_and_blames_nobody() -> None:
    world = StreamWorld((1, 2, 3))
    events = await world.generate_stream()
    await events.next()
    events.close()
    events.close()
    assert world.opened[0].abandoned
    assert world.held() == (1, 1, 0)
    world.opened[0].end()
    assert world.idle
    assert blamed(world) == 0


@pytest.mark.parametrize("ask", ["generate", "generate_stream"])
async def test_a_client_that_leaves_before_the_first_event(ask: str) -> None:
    world = StreamWorld((Hangs(),))
    asking = asyncio.get_running_loop().create_task(getattr(world, ask)())
    await until_asked(world)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert world.opened[0].abandoned
    assert blamed(world) == 0
    assert world.idle


async def test_a_client_that_leaves_behind_an_error_does_not_hide_it() -> None:
    world = StreamWorld((1, FAILED, 3))
    events = await world.generate_stream()
    await events.next()
    await events.next()
    events.close()
    world.opened[0].end()
    assert blamed(world) >= 1


# --- time


async def test_the_deadline_is_for_the_first_event() -> None:
    world = StreamWorld((Pause(61.0), 1), (Pause(59.0), 1, Pause(59.0), 2, Pause(59.0), 3))
    assert (await fault_of(world.generate_stream())).kind is Kind.DEADLINE
    assert world.opened[0].abandoned
    assert numbers(await everything(await world.generate_stream())) == [1, 2, 3]


async def test_a_model_that_sends_nothing_for_too_long_is_cut_off_and_blamed() -> None:
    world = StreamWorld((1, Pause(60.0), 2))
    events = await world.generate_stream()
    await events.next()
    fault = await fault_of(events.next())
    assert (fault.kind, fault.blame) == (Kind.DEADLINE, Blame.SLOW)
    assert fault.message == "the model sent nothing for 60 s"
    assert world.opened[0].abandoned


async def test_a_stream_that_never_ends_is_cut_off() -> None:
    world = StreamWorld(tuple(event for n in range(99) for event in (n, Pause(50.0))))
    events = await world.generate_stream()
    assert (await fault_of(everything(events))).kind is Kind.DEADLINE
    assert world.clock() == world.exchange.started_s + HOUR_S
    assert world.opened[0].abandoned
    assert blamed(world) == 0


async def test_a_client_may_bound_all_of_a_stream() -> None:
    world = StreamWorld((1, Pause(4.0), 2, Pause(4.0), 3))
    events = await world.generate_stream(timeout_s=6.0)
    assert numbers([await events.next(), await events.next()]) == [1, 2]
    assert (await fault_of(events.next())).kind is Kind.DEADLINE
    assert world.clock() == world.exchange.started_s + 6.0
    assert world.opened[0].waits_s == [6.0, 6.0, 2.0]


async def test_a_client_that_took_too_long_to_read_gets_no_more() -> None:
    world = StreamWorld((1, 2))
    events = await world.generate_stream(timeout_s=6.0)
    await events.next()
    world.clock.now_s += 6.0
    assert (await fault_of(events.next())).kind is Kind.DEADLINE


# --- exactly one answer


async def test_generate_returns_the_one_answer() -> None:
    world = StreamWorld((Pause(50.0), 7))
    assert json.loads(await world.generate())["OUT"] == 7
    assert world.idle


@pytest.mark.parametrize("script", [(), (1, 2), (1, 2, 3)])
async def test_generate_wants_exactly_one_answer(script: tuple[Event, ...]) -> None:
    world = StreamWorld(script)
    fault = await fault_of(world.generate())
    assert fault.kind is Kind.INVALID
    assert fault.message.startswith("generate expects model to produce exactly 1 response")
    assert world.opened[0].ended or world.opened[0].abandoned
    assert blamed(world) == 0


async def test_generate_tells_an_error_behind_the_answer() -> None:
    world = StreamWorld((1, FAILED))
    assert await fault_of(world.generate()) is FAILED
    assert blamed(world) >= 1


async def test_generate_has_the_time_of_any_request() -> None:
    world = StreamWorld((1, Pause(61.0), 2))
    assert (await fault_of(world.generate())).kind is Kind.DEADLINE
    assert world.opened[0].waits_s == [60.0, 60.0]


# --- sequences

SEQUENCE = replace(DECOUPLED, sequence=True)
BEGIN = b'{"IN": [1], "sequence_id": 7, "sequence_start": true}'
GO_ON = b'{"IN": [1], "sequence_id": 7}'
END = b'{"IN": [1], "sequence_id": 7, "sequence_end": true}'


def open_sequences(world: StreamWorld) -> int:
    return sum(world.sequences.by_server().values())


@pytest.mark.parametrize("script", [(), (1, 2)])
async def test_the_streams_of_a_sequence_go_to_one_server(script: tuple[Event, ...]) -> None:
    world = StreamWorld(*[script] * 3, spec=SEQUENCE)
    for body, opened in ((BEGIN, 1), (GO_ON, 1), (END, 0)):
        world.busy(*{"a", "b"} - {world.asked[0] if world.asked else "x"})
        events = await everything(await world.generate_stream(body=body))
        assert numbers(events) == list(script)
        assert open_sequences(world) == opened
    assert len(set(world.asked)) == 1


@pytest.mark.parametrize("script", [(Ends(BROKEN),), (NOT_READY,), (1, Ends(BROKEN))])
async def test_a_stream_that_is_lost_loses_its_sequence(script: tuple[Event, ...]) -> None:
    world = StreamWorld((1,), script, spec=SEQUENCE)
    await everything(await world.generate_stream(body=BEGIN))

    async def go_on() -> None:
        await everything(await world.generate_stream(body=GO_ON))

    assert (await fault_of(go_on())).kind is Kind.LOST
    assert (await fault_of(go_on())).kind is Kind.LOST
    assert len(world.opened) == 2


async def test_a_client_that_leaves_a_stream_leaves_its_place_in_the_sequence() -> None:
    world = StreamWorld((1, 2), (1,), spec=SEQUENCE)
    events = await world.generate_stream(body=BEGIN)
    await events.next()
    events.close()
    world.opened[0].end()
    assert numbers(await everything(await world.generate_stream(body=GO_ON))) == [1]
    assert world.idle


async def test_a_tenants_own_id_is_in_every_answer() -> None:
    def answer(number: int) -> InferReply:
        return InferReply("m", "1", [], id=str(number), parameters={"sequence_id": 12345})

    world = StreamWorld((answer(1), answer(2)), spec=SEQUENCE)
    world.tenant = "somebody"
    events = await everything(await world.generate_stream(body=BEGIN))
    assert [json.loads(event)["sequence_id"] for event in events] == [7, 7]
    assert world.transport.infer_calls[0].parameters["sequence_id"] != 7


async def test_generate_of_a_model_that_answers_once_may_belong_to_a_sequence() -> None:
    world = StreamWorld(spec=replace(SPEC, sequence=True))
    await world.generate(body=BEGIN)
    assert open_sequences(world) == 1
    await world.generate(body=END)
    assert open_sequences(world) == 0
    assert (await fault_of(world.generate(body=GO_ON))).kind is Kind.INVALID
