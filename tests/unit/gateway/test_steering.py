"""Operators' commands: in force at once, kept, told, and refused with the names there are."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.names import UnknownName
from gateway.steering import KEPT_ENTRIES, SteeringDesk
from routing.errors import NoReadyEndpoint
from routing.steering import Block, Steering
from tests.unit.gateway.fleets import TableFleet
from tests.unit.gateway.switching import switchboard

READY = [*((name, "m", 1) for name in "abc"), ("a", "m", 2), ("b", "only-b", 1)]


class Store:
    """Keeps what is written, unless it is told to fail or to hang."""

    def __init__(self, state: Mapping[str, Any] | None = None, *, keeps: bool = True) -> None:
        self.state: Mapping[str, Any] = state or {}
        self.keeps = keeps
        self.error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.writes = 0

    def read(self) -> Mapping[str, Any]:
        return self.state

    def write(self, state: Mapping[str, Any]) -> None:
        self.gate.wait(10)
        self.writes += 1
        if self.error is not None:
            raise self.error
        self.state = state


class Desk:
    """A desk over a real table and pool, with everything it logged."""

    def __init__(self, store: Store | None = None) -> None:
        self.fleet = TableFleet(READY)
        self.store = store or Store()
        self.logged: list[tuple[str, dict[str, Any]]] = []
        self.desk = SteeringDesk(
            self.fleet.view,
            self.store,
            switchboard(),
            log=lambda event, **fields: self.logged.append((event, fields)),
            now=lambda: "now",
        )
        self.desk.restore()

    @property
    def steering(self) -> Steering:
        return self.fleet.pool.steering


def kept(cordoned: list[str], *blocks: Block, audit: int = 0) -> Store:
    fields = [{"model": b.model, "version": b.version, "server": b.server} for b in blocks]
    entries = [{"at": "then", "command": "x", "by": str(number)} for number in range(audit)]
    return Store({"cordoned": cordoned, "blocks": fields, "audit": entries})


async def test_a_cordoned_server_gets_nothing_new_at_once() -> None:
    desk = Desk()
    first = desk.fleet.pick("m")
    assert first.server == "a"
    await desk.desk.cordon("a", by="ann")
    assert desk.fleet.pick("m").server == "b"
    assert desk.fleet.pool.loads["a"].calls == 1  # what is there may end
    await desk.desk.uncordon("a", by="ann")
    first.release()
    assert desk.fleet.pick("m").server == "a"


async def test_it_is_in_force_before_it_is_on_disk() -> None:
    desk = Desk()
    desk.store.gate.clear()
    command = asyncio.create_task(desk.desk.cordon("a", by="ann"))
    await asyncio.sleep(0)
    assert desk.fleet.pick("m").server == "b"
    desk.store.gate.set()
    assert (await command)["kept"]


async def test_of_commands_given_together_all_are_kept() -> None:
    desk = Desk()
    desk.store.gate.clear()
    commands = [desk.desk.cordon(name, by="ann") for name in "abc"]
    waiting = asyncio.gather(*commands)
    await asyncio.sleep(0)
    desk.store.gate.set()
    await waiting
    assert desk.store.state["cordoned"] == ["a", "b", "c"]
    assert [entry["server"] for entry in desk.store.state["audit"]] == ["a", "b", "c"]


async def test_every_command_is_logged_and_in_the_audit() -> None:
    desk = Desk()
    await desk.desk.cordon("a", by="ann")
    await desk.desk.block(Block("m", 1, "b"), by="bob")
    await desk.desk.reset_breakers("a", "m", None, by="cid")
    assert desk.logged == [
        ("steering", {"command": "cordon", "by": "ann", "server": "a", "changed": True}),
        (
            "steering",
            {
                "command": "block",
                "by": "bob",
                "model": "m",
                "version": 1,
                "server": "b",
                "changed": True,
            },
        ),
        (
            "steering",
            {"command": "reset breakers", "by": "cid", "server": "a", "model": "m", "closed": []},
        ),
    ]
    audit = desk.desk.view()["audit"]
    assert audit == [{"at": "now", **fields} for _, fields in desk.logged]
    assert desk.store.state["audit"] == audit


async def test_a_command_that_changes_nothing_says_so_and_is_written_again() -> None:
    desk = Desk()
    assert (await desk.desk.cordon("a", by="ann"))["changed"] is True
    assert (await desk.desk.cordon("a", by="ann"))["changed"] is False
    assert desk.store.writes == 2


async def test_the_audit_keeps_the_last_entries_over_restarts() -> None:
    desk = Desk(kept([], audit=KEPT_ENTRIES))
    await desk.desk.cordon("a", by="ann")
    audit = desk.desk.view()["audit"]
    assert (len(audit), audit[0]["by"], audit[-1]["by"]) == (KEPT_ENTRIES, "1", "ann")


def test_what_was_kept_is_in_force_again_and_told() -> None:
    desk = Desk(kept(["a"], Block("m", 2), Block("only-b", None, "b")))
    assert desk.steering == Steering(
        frozenset({"a"}), frozenset({Block("m", 2), Block("only-b", None, "b")})
    )
    assert desk.logged == [
        (
            "steering restored",
            {
                "cordoned": ["a"],
                "blocks": [
                    {"model": "m", "version": 2, "server": None},
                    {"model": "only-b", "version": None, "server": "b"},
                ],
            },
        )
    ]


def test_nothing_kept_is_nothing_to_tell() -> None:
    assert Desk().logged == []
    assert Desk(kept([], audit=3)).logged == []


async def test_servers_that_are_no_longer_configured_stay_and_are_told_once() -> None:
    desk = Desk(kept(["a", "gone"], Block("m", None, "away")))
    events = [event for event in desk.logged if event[0] != "steering restored"]
    assert events == [("steering names servers that are not there", {"servers": ["away", "gone"]})]
    await desk.desk.cordon("b", by="ann")
    assert desk.store.state["cordoned"] == ["a", "b", "gone"]
    assert len(desk.logged) == 3


async def test_a_server_that_is_no_longer_configured_can_be_uncordoned() -> None:
    desk = Desk(kept(["gone"]))
    await desk.desk.uncordon("gone", by="ann")
    assert desk.steering.cordoned == frozenset()


async def test_a_store_that_fails_leaves_the_command_in_force() -> None:
    desk = Desk()
    desk.store.error = OSError("disk full")
    done = await desk.desk.cordon("c", by="ann")
    assert done["kept"] is False
    assert done["warnings"] == [
        "in force, but forgotten at a restart: it cannot be kept (disk full)"
    ]
    assert desk.steering.cordoned == {"c"}


async def test_without_a_file_what_is_in_force_will_be_forgotten() -> None:
    desk = Desk(Store(keeps=False))
    warning = "forgotten at a restart: steering.state_file is not set"
    assert (await desk.desk.cordon("c", by="ann"))["warnings"] == [warning]
    assert (await desk.desk.uncordon("c", by="ann"))["warnings"] == []
    assert (await desk.desk.reset_breakers(None, None, None, by="ann"))["warnings"] == []
    assert desk.desk.view()["survives_restart"] is False


async def test_what_loses_its_last_server_is_warned_of() -> None:
    desk = Desk()
    assert (await desk.desk.cordon("a", by="ann"))["warnings"] == [
        "no server is left for m 2: requests are refused with 503"
    ]
    assert (await desk.desk.block(Block("m", 1), by="ann"))["warnings"] == [
        "no server is left for m 1 (the default version): requests are refused with 503"
    ]
    assert (await desk.desk.block(Block("m"), by="ann"))["warnings"] == []  # told already


@pytest.mark.parametrize(
    ("block", "left"),
    [
        (Block("m", 1, "a"), ["b", "c"]),
        (Block("m", 1), []),
        (Block("m", None, "b"), ["a", "c"]),
        (Block("m"), []),
        (Block("m", 2), ["a", "b", "c"]),
    ],
)
async def test_a_block_covers_what_it_names(block: Block, left: list[str]) -> None:
    desk = Desk()
    await desk.desk.block(block, by="ann")
    fleet = desk.fleet
    route = fleet.snapshot.resolve("m", 1, fleet.now_s)
    choices = fleet.pool.choices(route, fleet.now_s)
    assert [candidate.name for candidate in choices.everyone()] == left
    if not left:
        with pytest.raises(NoReadyEndpoint):
            fleet.pool.pick(route, now_s=fleet.now_s)
    await desk.desk.unblock(block, by="ann")
    assert len(fleet.pool.choices(route, fleet.now_s).everyone()) == 3


async def test_a_version_may_be_blocked_before_it_comes() -> None:
    desk = Desk()
    done = await desk.desk.block(Block("m", 3), by="ann")
    assert done["warnings"] == ["no server has version 3 now; known are 1, 2"]
    desk.fleet.has(("c", "m", 3))
    route = desk.fleet.snapshot.resolve("m", 3, desk.fleet.now_s)
    assert desk.fleet.pool.choices(route, desk.fleet.now_s).everyone() == ()


async def test_resetting_tells_what_was_closed() -> None:
    desk = Desk()
    desk.fleet.fail("m", "b")
    assert desk.fleet.pool.breakers().keys() == {"m/1"}
    assert (await desk.desk.reset_breakers("a", None, None, by="ann"))["closed"] == []
    assert (await desk.desk.reset_breakers("b", "m", 1, by="ann"))["closed"] == ["m/1 on b"]
    assert desk.fleet.pool.breakers() == {}


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        ("cordon", ("x",), "there is no server 'x'; there are a, b, c"),
        ("uncordon", ("x",), "there is no server 'x'; there are a, b, c"),
        ("block", (Block("x"),), "there is no model 'x'; there are m, only-b"),
        ("block", (Block("m", 1, "x"),), "there is no server 'x'; there are a, b, c"),
        ("unblock", (Block("m", 2),), "there is no block 'm version 2'; there is m on a"),
        ("reset_breakers", ("x", None, None), "there is no server 'x'; there are a, b, c"),
        ("reset_breakers", (None, "x", None), "there is no model 'x'; there are m, only-b"),
        ("reset_breakers", (None, "m", 9), "the model 'm' has no version 9; it has 1, 2"),
        ("disable", ("x", 60.0, ""), "there is no feature 'x'; there are admission, auth, limits"),
        ("enable", ("x",), "there is no feature 'x'; there are admission, auth, limits"),
    ],
)
async def test_an_unknown_name_is_refused_with_the_known_ones(
    command: str, arguments: tuple[Any, ...], text: str
) -> None:
    desk = Desk(kept([], Block("m", None, "a")))
    before = desk.steering
    with pytest.raises(UnknownName) as caught:
        await getattr(desk.desk, command)(*arguments, by="ann")
    assert str(caught.value) == text
    assert desk.steering == before
    assert desk.desk.view()["audit"] == []
    assert desk.store.writes == 0


def test_of_many_names_the_close_ones_are_listed() -> None:
    known = [f"gpu-{number:03}" for number in range(300)] + ["resnet"]
    said = str(UnknownName.among("model", "resnett", known))
    assert said.startswith("there is no model 'resnett'; there are resnet, ")
    assert said.endswith(" and 281 more")
    assert str(UnknownName.among("model", "m", [])) == "there is no model 'm', nor any other"
