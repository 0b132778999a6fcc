"""The requests of a sequence: where the first goes, that all others follow, and how it ends."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.codec.types import InferCall, InferReply
from gateway.faults import Blame, Fault, Kind, Origin
from gateway.ports import StoreDown
from gateway.stores.memory import MemoryStore
from routing.aliases import Alias, Arm
from routing.fleet import ModelVersion
from routing.sequences import Pin
from routing.steering import Block, Steering
from tests.pipeline.scripted import (
    BODY,
    BROKEN,
    DRAINING,
    FAILED,
    FATAL,
    IDLE_S,
    NOT_READY,
    QUEUE_FULL,
    SLOW,
    SPEC,
    UNREACHABLE,
    Clock,
    Step,
    World,
    body_of,
)

KEEP_S = IDLE_S + 30.0
STATEFUL = replace(SPEC, sequence=True)
TRITON_KNOWS_NOTHING = Fault(
    Kind.INVALID,
    "inference request for sequence 7 to model 'm' must specify the START flag on the first "
    "request of the sequence",
    origin=Origin.UPSTREAM,
    blame=Blame.NOBODY,
)
GONE = [UNREACHABLE, BROKEN, DRAINING, NOT_READY, FATAL, TRITON_KNOWS_NOTHING]


def step(own_id: int | str = 7, *, start: bool = False, end: bool = False) -> bytes:
    parameters: dict[str, Any] = {"sequence_id": own_id}
    if start:
        parameters["sequence_start"] = True
    if end:
        parameters["sequence_end"] = True
    return BODY[:-1] + b',"parameters":' + json.dumps(parameters).encode() + b"}"


START, END = step(start=True), step(end=True)


class Breakable(MemoryStore):
    """A store that can be down, and counts what it is asked."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, max_entries=1000)
        self.down = False
        self.asked: list[str] = []

    def check(self, what: str) -> None:
        if self.down:
            raise StoreDown("down")
        self.asked.append(what)

    async def claim(
        self, key: str, value: str, *, ttl_s: float, instead_of: str | None = None
    ) -> str:
        self.check("claim")
        return await super().claim(key, value, ttl_s=ttl_s, instead_of=instead_of)

    async def renew(self, key: str, *, ttl_s: float) -> str | None:
        self.check("renew")
        return await super().renew(key, ttl_s=ttl_s)

    async def forget(self, key: str, value: str) -> None:
        self.check("forget")
        await super().forget(key, value)


class Gateways:
    """Gateways that share a clock and a store, in front of servers of the same names."""

    def __init__(self, count: int = 2) -> None:
        clock = Clock()
        self.store = Breakable(clock)
        self.worlds = [
            World("abc", spec=STATEFUL, store=self.store, clock=clock) for _ in range(count)
        ]

    def __getitem__(self, at: int) -> World:
        return self.worlds[at]


@pytest.fixture
def world() -> World:
    return World("abc", spec=STATEFUL)


def version_of(world: World) -> str:
    return world.transport.infer_calls[-1].version


async def begun(world: World, body: bytes = START, **kwargs: Any) -> str:
    """Begin a sequence; return its server."""
    await world.ask(body, **kwargs)
    return world.servers_asked[-1]


def has_version(world: World, version: int, *servers: str) -> None:
    """Let some servers have another version ready as well."""
    now_s = world.clock()
    for name in servers:
        world.fleet.table.learn_spec(name, replace(STATEFUL, version=version), now_s=now_s)
        ready = {*world.fleet.snapshot.servers[name].models, ModelVersion("m", version)}
        world.fleet.table.observe_ready(name, ready, asked_s=now_s, now_s=now_s)
        world.fleet.table.learn_spec(name, replace(STATEFUL, version=version), now_s=now_s)


def only(world: World, version: int, *servers: str) -> None:
    """Let some servers have nothing but this version."""
    for name in servers:
        ready = [ModelVersion("m", version)]
        now_s = world.clock()
        world.fleet.table.observe_ready(name, ready, asked_s=now_s, now_s=now_s)


# --- the way of one sequence


async def test_all_requests_go_to_the_server_of_the_first_whatever_its_load(world: World) -> None:
    server = await begun(world)
    world.busy(*[server] * 5)
    for body in (step(), step(), END):
        await world.ask(body)
    assert world.servers_asked == [server] * 4


async def test_sequences_begin_on_different_servers_within_the_bound(world: World) -> None:
    for own_id in range(1, 31):
        await world.ask(step(own_id, start=True))
    counts = world.sequences.by_server()
    assert sum(counts.values()) == 30
    assert max(counts.values()) <= 13  # 1.25 * 30 / 3, rounded up
    assert len(counts) == 3


async def test_a_number_and_the_same_digits_as_text_are_two_sequences(world: World) -> None:
    await world.ask(step(5, start=True))
    assert (await world.fault(step("5"))).kind is Kind.INVALID
    await world.ask(step("5", start=True))
    assert sum(world.sequences.by_server().values()) == 2


async def test_equal_ids_of_two_models_have_nothing_to_do_with_each_other(world: World) -> None:
    await begun(world)
    now_s = world.clock()
    other = replace(STATEFUL, model="n")
    world.fleet.table.learn_spec("a", other, now_s=now_s)
    ready = [ModelVersion("m", 1), ModelVersion("n", 1)]
    world.fleet.table.observe_ready("a", ready, asked_s=now_s, now_s=now_s)
    assert (await world.fault(step(), model="n")).kind is Kind.INVALID


async def test_an_unknown_sequence_is_refused_in_tritons_words(world: World) -> None:
    fault = await world.fault(step())
    assert fault.kind is Kind.INVALID
    assert fault.message == TRITON_KNOWS_NOTHING.message
    assert world.servers_asked == []


async def test_after_its_end_a_sequence_is_unknown(world: World) -> None:
    await begun(world)
    await world.ask(END)
    assert world.sequences.by_server() == {}
    assert (await world.fault(step())).kind is Kind.INVALID


async def test_a_sequence_of_one_request_leaves_nothing_behind(world: World) -> None:
    await world.ask(step(start=True, end=True))
    assert world.sequences.by_server() == {}
    assert isinstance(world.store, MemoryStore)
    assert world.store.entries == 0


async def test_a_silent_sequence_is_forgotten_after_its_models_time_and_the_margin(
    world: World,
) -> None:
    server = await begun(world)
    world.clock.now_s += KEEP_S - 0.1
    await world.ask(step())
    assert world.servers_asked[-1] == server
    world.clock.now_s += KEEP_S + 0.1
    assert (await world.fault(step())).kind is Kind.INVALID
    assert world.sequences.by_server() == {}


async def test_a_request_longer_than_that_does_not_end_the_sequence() -> None:
    gateways = Gateways()
    gateways[0].will(Step(after_s=2 * KEEP_S))
    await begun(gateways[0], timeout_s=500.0)
    await asyncio.sleep(0)  # the renewal of its pin
    await gateways[1].ask(step())
    assert gateways[1].servers_asked == gateways[0].servers_asked


async def test_a_model_without_a_sequence_batcher_begins_with_the_first_request() -> None:
    world = World("abc")
    for _ in range(3):
        await world.ask(step())
    assert len(set(world.servers_asked)) == 1
    await world.ask(BODY)
    assert world.exchange.pin is None


@pytest.mark.parametrize("none", [0, ""])
async def test_no_id_is_no_sequence(world: World, none: int | str) -> None:
    await world.ask(step(none))
    assert world.exchange.pin is None


async def test_a_model_that_states_no_idle_time_gets_the_configured_one() -> None:
    world = World("abc", spec=replace(SPEC, version=9))
    server = await begun(world)
    world.clock.now_s += 89.0
    await world.ask(step())
    assert world.servers_asked == [server, server]


async def test_beyond_the_limit_no_sequence_begins() -> None:
    world = World("abc", spec=STATEFUL, max_open=2)
    for own_id in (1, 2):
        await world.ask(step(own_id, start=True))
    fault = await world.fault(step(3, start=True))
    assert (fault.kind, fault.retry_after_s) == (Kind.OVERLOADED, 1)
    await world.ask(step(1, end=True))
    await world.ask(step(3, start=True))


async def test_without_a_server_no_sequence_begins(world: World) -> None:
    world.pool.steer(Steering(frozenset("abc")))
    fault = await world.fault(START)
    assert (fault.kind, fault.retry_after_s) == (Kind.NOT_READY, 1)
    assert world.sequences.by_server() == {}


async def test_the_admit_stage_is_where_the_server_is_found(world: World) -> None:
    await world.ask(START)
    assert world.exchange.order[2:5] == ["decode", "admit", "pick"]


# --- ids on the servers


async def test_a_tenants_ids_differ_on_the_server_and_not_in_the_answer(world: World) -> None:
    wire_ids = []

    def answers(call: InferCall) -> InferReply:
        wire_ids.append(call.parameters["sequence_id"])
        shown = {"sequence_id": wire_ids[-1], "sequence_start": False}
        return InferReply(call.model, call.version, [], parameters=shown)

    world.transport.answer = answers
    for tenant in ("anonymous", "acme", "other"):
        world.tenant = tenant
        answer = json.loads(body_of(await world.ask(START)))
        assert answer["parameters"] == {"sequence_id": 7, "sequence_start": False}
    assert wire_ids[0] == 7
    assert len(set(wire_ids)) == 3


async def test_one_tenant_cannot_go_on_with_anothers_sequence(world: World) -> None:
    await begun(world)
    world.tenant = "acme"
    assert (await world.fault(step())).kind is Kind.INVALID


async def test_errors_of_the_server_name_the_callers_id(world: World) -> None:
    world.tenant = "acme"
    await begun(world)
    wire = world.transport.infer_calls[-1].parameters["sequence_id"]
    world.will(Step(fault=Fault(Kind.FAILED, f"sequence {wire} failed", origin=Origin.UPSTREAM)))
    assert (await world.fault(step())).message == "sequence 7 failed"


# --- versions


async def test_a_sequence_stays_on_its_version_when_the_default_one_moves(world: World) -> None:
    await begun(world)
    has_version(world, 2, *"abc")
    await world.ask(step())
    assert (version_of(world), world.exchange.version) == ("1", "1")
    await world.ask(step(8, start=True))
    assert version_of(world) == "2"


async def test_begun_anew_it_goes_to_the_new_default_version(world: World) -> None:
    await begun(world)
    has_version(world, 2, *"abc")
    await world.ask(START)
    await world.ask(step())
    assert version_of(world) == "2"


async def test_one_id_on_two_versions_is_two_sequences(world: World) -> None:
    has_version(world, 2, *"abc")
    for version in (1, 2):
        await world.ask(START, version=version)
    for version in (1, 2, 1):
        await world.ask(step(), version=version)
        assert version_of(world) == str(version)


@pytest.mark.parametrize(("first", "then"), [(None, 1), (1, None)])
async def test_the_version_may_be_named_or_not(
    world: World, first: int | None, then: int | None
) -> None:
    server = await begun(world, version=first)
    for _ in range(3):
        await world.ask(step(), version=then)
    await world.ask(END, version=then)
    assert world.servers_asked == [server] * 5
    assert (await world.fault(step(), version=first)).kind is Kind.INVALID


@pytest.mark.parametrize(("first", "then"), [(None, 1), (1, None)])
async def test_begun_anew_with_or_without_the_version_it_is_one_sequence(
    world: World, first: int | None, then: int | None
) -> None:
    server = await begun(world, version=first)
    assert await begun(world, version=then) == server
    assert sum(world.sequences.by_server().values()) == 1
    await world.ask(END, version=first)
    assert world.sequences.by_server() == {}


async def test_through_an_alias_it_stays_on_the_arm_it_began_on() -> None:
    points = iter([0.1, 0.9, 0.9, 0.1])
    arms = (Arm("m", 1, 0.5), Arm("m", 2, 0.5))
    world = World("abc", spec=STATEFUL, aliases=[Alias("chat", arms)], random=lambda: next(points))
    has_version(world, 2, *"abc")
    server = await begun(world, model="chat")
    for body in (step(), step(), END):
        await world.ask(body, model="chat")
        assert version_of(world) == "1"
    assert world.servers_asked == [server] * 4


async def test_a_sequence_whose_version_is_gone_is_lost(world: World) -> None:
    await begun(world)
    has_version(world, 2, *"abc")
    only(world, 2, *"abc")
    assert (await world.fault(step())).kind is Kind.LOST


# --- lost


def is_lost(fault: Fault) -> bool:
    assert "begin it again" in fault.message
    return fault.kind is Kind.LOST and fault.retry_after_s is None


@pytest.mark.parametrize("gone", GONE)
async def test_with_its_server_a_sequence_is_lost_until_it_begins_again(gone: Fault) -> None:
    gateways = Gateways()
    world = gateways[0]
    server = await begun(world)
    world.will(Step(fault=gone))
    assert is_lost(await world.fault(step()))
    assert world.servers_asked == [server] * 2  # not sent anywhere else
    assert world.exchange.attempts == 1
    for other in gateways.worlds:  # although the server may be there again
        assert is_lost(await other.fault(step()))
    await world.ask(START)
    await gateways[1].ask(step())
    assert gateways[1].servers_asked == world.servers_asked[-1:]
    assert world.idle


async def test_a_server_that_is_out_is_not_asked(world: World) -> None:
    server = await begun(world)
    world.fleet.table.server_down(server, "gone", now_s=world.clock())
    assert is_lost(await world.fault(step()))
    assert world.servers_asked == [server]
    await world.ask(START)
    assert world.servers_asked[1] != server


async def test_only_the_sequences_of_the_lost_server_are_lost(world: World) -> None:
    where = {own_id: await begun(world, step(own_id, start=True)) for own_id in range(1, 31)}
    world.fleet.table.server_down("b", "gone", now_s=world.clock())
    for own_id, server in where.items():
        if server == "b":
            assert is_lost(await world.fault(step(own_id)))
        else:
            await world.ask(step(own_id))
    assert set(where.values()) == set("abc")


@pytest.mark.parametrize("fault", [FAILED, QUEUE_FULL, SLOW])
async def test_other_failures_leave_it_where_it_is(world: World, fault: Fault) -> None:
    server = await begun(world)
    world.will(Step(fault=fault))
    assert await world.fault(step()) is fault
    await world.ask(step())
    assert world.servers_asked == [server] * 3


@pytest.mark.parametrize("fault", [UNREACHABLE, BROKEN, QUEUE_FULL])
async def test_a_beginning_that_fails_tells_why_and_leaves_nothing(
    world: World, fault: Fault
) -> None:
    world.will(Step(fault=fault))
    assert await world.fault(START) is fault
    assert len(world.servers_asked) == 1
    assert world.sequences.by_server() == {}
    assert (await world.fault(step())).kind is Kind.INVALID


async def test_a_caller_that_leaves_leaves_its_sequence_as_it_is(world: World) -> None:
    server = await begun(world)
    world.will(Step(hangs=True))
    asking = asyncio.get_running_loop().create_task(world.ask(step()))
    while len(world.transport.calls) < 2:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    world.transport.calls[-1].end()
    await world.ask(step())
    assert world.servers_asked == [server] * 3
    world.clock.now_s += KEEP_S + 0.1
    assert world.sequences.by_server() == {}


# --- taken out by hand


async def test_a_cordoned_server_goes_on_with_its_sequences_and_begins_none(world: World) -> None:
    server = await begun(world)
    world.pool.steer(Steering(frozenset({server})))
    await world.ask(step())
    assert world.servers_asked == [server] * 2
    for own_id in range(10, 30):
        assert await begun(world, step(own_id, start=True)) != server
    assert await begun(world) != server  # begun anew


async def test_a_blocked_model_goes_on_nowhere(world: World) -> None:
    server = await begun(world)
    world.pool.steer(Steering(blocks=frozenset({Block("m", server=server)})))
    assert is_lost(await world.fault(step()))


# --- several gateways


async def test_gateways_agree_on_the_server() -> None:
    gateways = Gateways(3)
    for own_id in range(1, 11):
        await gateways[own_id % 3].ask(step(own_id, start=True))
        servers = set()
        for world in gateways.worlds:
            await world.ask(step(own_id))
            servers.add(world.servers_asked[-1])
        assert len(servers) == 1


async def test_a_sequence_begun_anew_elsewhere_is_followed_at_once() -> None:
    one, two = Gateways().worlds
    server = await begun(one)
    two.pool.steer(Steering(frozenset({server})))
    new = await begun(two)
    assert new != server
    await one.ask(step())
    assert one.servers_asked == [server, new]


async def test_sequences_outlast_a_gateway() -> None:
    gateways = Gateways(1)
    server = await begun(gateways[0])
    after = World("abc", spec=STATEFUL, store=gateways.store, clock=gateways[0].clock)
    after.busy(server)
    await after.ask(step())
    assert after.servers_asked == [server]


async def test_two_that_begin_one_sequence_at_once_agree() -> None:
    one, two = Gateways().worlds
    one.busy("a")
    await asyncio.gather(one.ask(START), two.ask(START))
    await one.ask(step())
    await two.ask(step())
    assert one.servers_asked[-1] == two.servers_asked[-1]


async def test_what_is_lost_while_it_begins_anew_does_not_spoil_the_beginning() -> None:
    gateways = Gateways(1)
    await begun(gateways[0])
    (key,) = gateways.store._kept
    old = gateways.store._kept[key]

    class Losing(Breakable):
        """Loses the old sequence between what the beginning reads and what it writes."""

        async def claim(self, *args: Any, **kwargs: Any) -> str:
            if old.value == gateways.store._kept[key].value:
                old.value = Pin.of_text(old.value).lost().text()
            return await super().claim(*args, **kwargs)

    losing = Losing(gateways[0].clock)
    losing._kept = gateways.store._kept
    world = World("abc", spec=STATEFUL, store=losing, clock=gateways[0].clock)
    await world.ask(START)
    await world.ask(step())
    assert len(set(world.servers_asked)) == 1


# --- the store


async def test_each_request_asks_the_store_once() -> None:
    """Another gateway may have begun the sequence anew since the last one."""
    gateways = Gateways(1)
    await begun(gateways[0])
    gateways.store.asked.clear()
    await gateways[0].ask(step())
    assert gateways.store.asked == ["renew"]


async def test_without_the_store_known_sequences_go_on_and_new_ones_begin() -> None:
    one, two = (gateways := Gateways()).worlds
    server = await begun(one)
    gateways.store.down = True
    await one.ask(step())
    await one.ask(step(8, start=True))
    await one.ask(step(8))
    for own_id in (7, 8):
        fault = await two.fault(step(own_id))
        assert (fault.kind, fault.retry_after_s) == (Kind.NOT_READY, 1)
    assert one.servers_asked[:2] == [server] * 2
    assert two.servers_asked == []


async def test_what_began_without_the_store_is_made_known_when_it_is_back() -> None:
    one, two = (gateways := Gateways()).worlds
    gateways.store.down = True
    server = await begun(one)
    gateways.store.down = False
    await one.ask(step())
    await two.ask(step())
    assert two.servers_asked == [server]


async def test_a_store_that_lost_its_memory_is_told_again() -> None:
    one, two = (gateways := Gateways()).worlds
    server = await begun(one)
    gateways.store._kept.clear()
    await one.ask(step())
    await two.ask(step())
    assert one.servers_asked == [server] * 2
    assert two.servers_asked == [server]


async def test_of_two_beginnings_the_later_one_counts_when_the_store_is_back() -> None:
    one, two = (gateways := Gateways()).worlds
    old = await begun(one)
    gateways.store.down = True
    two.pool.steer(Steering(frozenset({old})))
    new = await begun(two)
    gateways.store.down = False
    await two.ask(step())
    await one.ask(step())
    assert one.servers_asked == [old, new]


async def test_a_late_pin_of_an_earlier_beginning_does_not_win() -> None:
    one, two = (gateways := Gateways()).worlds
    gateways.store.down = True
    old = await begun(one)  # never told the store
    gateways.store.down = False
    two.pool.steer(Steering(frozenset({old})))
    new = await begun(two)
    await one.ask(step())
    assert one.servers_asked == [old, new]


async def test_what_is_lost_without_the_store_stays_lost_when_it_is_back() -> None:
    one, two = (gateways := Gateways()).worlds
    await begun(one)
    gateways.store.down = True
    one.will(Step(fault=BROKEN))
    assert is_lost(await one.fault(step()))
    gateways.store.down = False
    assert is_lost(await one.fault(step()))
    assert is_lost(await two.fault(step()))


async def test_an_end_without_the_store_ends_it_here() -> None:
    gateways = Gateways(1)
    await begun(gateways[0])
    gateways.store.down = True
    await gateways[0].ask(END)
    assert gateways[0].sequences.by_server() == {}
