"""Transcripts: what the servers do, and what becomes of the request and of what it held."""

import gzip
import json
import zlib
from dataclasses import replace

import pytest

from gateway.exchange import STAGES
from gateway.faults import Fault, Kind, Origin, Replay
from gateway.pipeline import Deadlines
from tests.pipeline.scripted import (
    BODY,
    BROKEN,
    FAILED,
    NOT_READY,
    QUEUE_FULL,
    SPEC,
    UNREACHABLE,
    Step,
    World,
    body_of,
)


@pytest.fixture
def world() -> World:
    return World()


# --- success


async def test_a_request_is_answered_by_one_server(world: World) -> None:
    world.will(Step(after_s=0.25))
    answer = await world.ask()
    assert json.loads(body_of(answer)) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [2], "data": [1, 2]}],
    }
    assert (answer.encoding, answer.header_length) == (None, None)
    assert world.transport.sent == [("a", 60.0)]
    seen = world.exchange
    assert (seen.model, seen.version, seen.server, seen.attempts) == ("m", "1", "a", 1)
    assert (seen.tried, seen.detached) == (set(), ())
    assert world.idle


async def test_the_chosen_version_is_always_named(world: World) -> None:
    await world.ask()
    await world.ask(version=1)
    assert [call.version for call in world.transport.infer_calls] == ["1", "1"]


async def test_only_an_answer_proves_that_a_server_lives(world: World) -> None:
    world.will(Step(after_s=1.0))
    await world.ask()
    assert world.pool.loads["a"].last_reply_s == world.clock()
    heard_s = world.clock()
    world.will(Step(after_s=1.0, fault=FAILED))
    await world.fault()
    assert world.pool.loads["a"].last_reply_s == heard_s


async def test_bodies_may_be_packed_both_ways(world: World) -> None:
    answer = await world.ask(
        gzip.compress(BODY), content_encoding="gzip", accept_encoding="deflate"
    )
    assert answer.encoding == "deflate"
    assert json.loads(zlib.decompress(body_of(answer)))["outputs"][0]["data"] == [1, 2]


async def test_a_body_that_unpacks_to_too_much_is_refused(world: World) -> None:
    bomb = gzip.compress(b" " * 10_001)
    assert (await world.fault(bomb, content_encoding="gzip")).kind is Kind.TOO_LARGE
    assert world.transport.sent == []


async def test_binary_outputs_come_with_the_length_of_the_json(world: World) -> None:
    body = BODY[:-1] + b',"parameters":{"binary_data_output":true}}'
    answer = await world.ask(body)
    assert answer.header_length == len(body_of(answer)) - 8
    head, tail = answer.parts
    assert json.loads(head)["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert tail == b"\1\0\0\0\2\0\0\0"


# --- refused before anything is sent


async def test_an_unknown_model_is_told_before_the_body_is_looked_at(world: World) -> None:
    fault = await world.fault(b"no JSON at all", model="nope", header_lengths=["x"])
    assert (fault.kind, fault.origin) == (Kind.NOT_FOUND, Origin.CLIENT)
    assert fault.message == "Request for unknown model: 'nope' is not found"
    assert world.transport.sent == []
    assert (world.exchange.model, world.exchange.version) == ("", "")


async def test_an_unknown_version_is_told_like_an_unknown_model(world: World) -> None:
    fault = await world.fault(b"", version=9)
    assert fault.kind is Kind.NOT_FOUND
    assert fault.message == "Request for unknown model: 'm' version 9 is not found"
    assert world.exchange.model == ""


async def test_a_decoupled_model_is_unsupported_whatever_the_body() -> None:
    world = World(spec=replace(SPEC, decoupled=True))
    fault = await world.fault(b"no JSON at all")
    assert fault.kind is Kind.UNSUPPORTED
    assert fault.message == (
        "HTTP end point doesn't support models with decoupled transaction policy"
    )
    assert world.transport.sent == []


async def test_a_malformed_body_is_never_sent(world: World) -> None:
    fault = await world.fault(b'{"inputs":[{"name":"IN","datatype":"INT32","shape":"2"}]}')
    assert (fault.kind, fault.origin) == (Kind.INVALID, Origin.CLIENT)
    assert world.transport.sent == []
    assert world.idle


async def test_nothing_ready_is_told_with_a_time_to_come_back(world: World) -> None:
    for name in ("a", "b"):
        world.fleet.table.server_down(name, "gone", now_s=world.clock())
    fault = await world.fault()
    assert (fault.kind, fault.origin, fault.retry_after_s) == (Kind.NOT_READY, Origin.GATEWAY, 1)
    assert world.transport.sent == []


async def test_what_cannot_be_written_for_a_server_gives_its_place_back(world: World) -> None:
    world.will(Fault.invalid("not UTF-8"))
    assert (await world.fault()).message == "not UTF-8"
    assert world.idle


# --- one more attempt


async def test_not_ready_is_tried_on_the_other_server(world: World) -> None:
    world.will(Step(fault=NOT_READY), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert world.fleet.reports == [("not ready", "a", "m/1", NOT_READY.message)]
    assert (world.exchange.attempts, world.exchange.tried) == (2, {"a"})
    assert world.exchange.server == "b"
    assert world.idle
    await world.ask()  # and what was reported is not asked again
    assert world.servers_asked == ["a", "b", "b"]


async def test_an_unreachable_server_is_reported_and_the_other_one_tried(world: World) -> None:
    world.will(Step(fault=UNREACHABLE), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert world.fleet.reports == [("unreachable", "a", str(UNREACHABLE.detail))]
    assert world.idle


async def test_a_full_queue_is_tried_elsewhere_and_held_against_nobody(world: World) -> None:
    world.will(Step(fault=QUEUE_FULL), Step())
    await world.ask()
    assert world.servers_asked == ["a", "b"]
    assert world.fleet.reports == []


@pytest.mark.parametrize("last", [FAILED, BROKEN, UNREACHABLE, NOT_READY, QUEUE_FULL])
async def test_after_three_attempts_the_last_failure_is_what_the_caller_reads(last: Fault) -> None:
    world = World(("a", "b", "c", "d"))
    world.will(Step(fault=NOT_READY), Step(fault=QUEUE_FULL), Step(fault=last))
    assert await world.fault() is last
    assert world.servers_asked == ["a", "b", "c"]
    assert world.exchange.attempts == 3
    assert world.idle


async def test_a_failure_of_the_model_ends_it_whatever_came_before() -> None:
    world = World(("a", "b", "c"))
    world.will(Step(fault=NOT_READY), Step(fault=FAILED))
    assert await world.fault() is FAILED
    assert world.servers_asked == ["a", "b"]
    assert world.idle


async def test_without_another_server_the_first_failure_is_what_the_caller_reads() -> None:
    world = World(("a",))
    world.will(Step(fault=UNREACHABLE))
    assert await world.fault() is UNREACHABLE
    assert world.servers_asked == ["a"]
    assert world.idle


async def test_what_the_model_failed_at_is_not_sent_again(world: World) -> None:
    world.will(Step(fault=FAILED))
    assert await world.fault() is FAILED
    assert world.servers_asked == ["a"]
    assert world.fleet.reports == []
    assert world.idle


async def test_a_refusal_of_the_gateway_itself_is_not_held_against_the_server(
    world: World,
) -> None:
    own = Fault(Kind.UNREACHABLE, "own", origin=Origin.GATEWAY, replay=Replay.NEVER)
    world.will(Step(fault=own))
    assert await world.fault() is own
    assert world.fleet.reports == []


# --- deadlines


async def test_the_attempts_share_one_deadline(world: World) -> None:
    world.will(Step(after_s=4.0, fault=NOT_READY), Step(after_s=1.0))
    await world.ask(timeout_s=10.0)
    assert world.transport.sent == [("a", 10.0), ("b", 6.0)]


async def test_what_receiving_took_counts(world: World) -> None:
    world.will(Step(after_s=7.0))
    fault = await world.fault(timeout_s=10.0, receiving_s=4.0)
    assert fault.kind is Kind.DEADLINE
    assert world.transport.sent == [("a", 6.0)]


async def test_a_deadline_that_has_passed_before_sending_sends_nothing(world: World) -> None:
    fault = await world.fault(timeout_s=1.0, receiving_s=1.0)
    assert (fault.kind, fault.origin) == (Kind.DEADLINE, Origin.GATEWAY)
    assert world.transport.sent == []
    assert world.idle


async def test_a_failure_at_the_deadline_is_not_tried_again(world: World) -> None:
    world.will(Step(after_s=10.0, fault=NOT_READY, late=True))
    assert await world.fault(timeout_s=10.0) is NOT_READY
    assert world.servers_asked == ["a"]
    assert world.idle


async def test_a_call_that_runs_on_keeps_its_place_until_it_ends() -> None:
    world = World(runs_on=True)
    world.will(Step(after_s=99.0))
    fault = await world.fault(timeout_s=2.0)
    assert (fault.kind, fault.replay) == (Kind.DEADLINE, Replay.NEVER)
    (call,) = world.transport.calls
    assert call.abandoned
    assert world.exchange.detached
    assert world.held("a") == (1, 1, 1)
    call.end()
    assert world.idle


async def test_a_call_that_is_cancelled_upstream_is_not_detached() -> None:
    world = World(runs_on=False)
    world.will(Step(after_s=99.0))
    assert (await world.fault(timeout_s=2.0)).kind is Kind.DEADLINE
    (call,) = world.transport.calls
    assert call.abandoned
    assert not world.exchange.detached
    assert world.held("a") == (1, 1, 0)  # until the cancellation has arrived
    call.end()
    assert world.idle


@pytest.mark.parametrize(
    ("model", "asked_s", "allowed_s"),
    [
        ("m", None, 60.0),
        ("m", 5.0, 5.0),
        ("m", 100.0, 100.0),  # a client may ask for more than the default
        ("m", 1000.0, 600.0),
        ("slow", None, 300.0),
        ("slow", 400.0, 300.0),
        ("slow", 1.0, 1.0),
        ("slower", None, 600.0),
    ],
)
def test_the_time_a_request_has(model: str, asked_s: float | None, allowed_s: float) -> None:
    deadlines = Deadlines(
        default_s=60.0,
        max_s=600.0,
        by_model={"slow": 300.0, "slower": 900.0},
        stream_idle_s=60.0,
        stream_max_s=3600.0,
    )
    assert deadlines.allow(model, asked_s) == allowed_s


# --- clients that leave


async def test_a_client_that_leaves_detaches_its_call() -> None:
    world = World(runs_on=True)
    call = await world.hang_up()
    assert call.abandoned
    assert world.exchange.detached
    assert world.held("a") == (1, 1, 1)
    call.end()
    assert world.idle


async def test_a_client_that_leaves_cancels_its_call_where_that_is_safe() -> None:
    world = World(runs_on=False)
    call = await world.hang_up()
    assert call.abandoned
    assert not world.exchange.detached
    assert world.held("a") == (1, 1, 0)
    call.end()
    assert world.idle


async def test_servers_full_of_detached_calls_are_overloaded() -> None:
    world = World(("a",), runs_on=True)
    calls = [await world.hang_up() for _ in range(2)]
    fault = await world.fault()
    assert (fault.kind, fault.origin, fault.retry_after_s) == (Kind.OVERLOADED, Origin.GATEWAY, 1)
    assert len(world.transport.sent) == 2
    calls[0].end()
    await world.ask()
    calls[1].end()
    assert world.idle


async def test_a_full_server_leaves_the_work_to_the_others() -> None:
    world = World(runs_on=True)
    for _ in range(4):
        await world.hang_up()
    assert sorted(world.servers_asked) == ["a", "a", "b", "b"]
    world.transport.calls[1].end()
    await world.ask()
    assert world.servers_asked[-1] == world.servers_asked[1]


# --- rows


@pytest.mark.parametrize(("max_batch_size", "rows"), [(8, 2), (0, 1)])
async def test_a_batch_weighs_as_much_as_its_rows(max_batch_size: int, rows: int) -> None:
    world = World(spec=replace(SPEC, max_batch_size=max_batch_size))
    await world.hang_up()
    assert world.held("a") == (1, rows, 1)


# --- stages


async def test_the_order_of_the_stages(world: World) -> None:
    await world.ask()
    assert world.exchange.order == ["receive", "resolve", "decode", "pick", "send", "reply"]
    assert [s for s in STAGES if s in world.exchange.order] == world.exchange.order
    world.will(Step(fault=NOT_READY), Step())
    await world.ask()
    assert world.exchange.order == [
        "receive", "resolve", "decode", "pick", "send", "pick", "send", "reply",
    ]  # fmt: skip


async def test_the_time_of_every_stage_is_booked(world: World) -> None:
    world.will(Step(after_s=2.0, fault=NOT_READY), Step(after_s=3.0))
    await world.ask(receiving_s=0.5)
    exchange = world.exchange
    exchange.enter("settle")
    world.clock.now_s += 0.25
    exchange.end()
    passed = ("receive", "resolve", "decode", "pick", "send", "reply", "settle")
    assert tuple(exchange.spent_s) == passed
    assert exchange.spent_s["receive"] == 0.5
    assert exchange.spent_s["send"] == 5.0  # both attempts
    assert exchange.spent_s["settle"] == 0.25
    assert sum(exchange.spent_s.values()) == exchange.duration_s == 5.75
    assert exchange.own_time_s == 0.25
    assert exchange.outcome == "ok"
