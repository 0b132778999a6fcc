"""Commands to load and unload: where, how many at a time, in which order, and what is kept."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.control import ControlParts, ControlSettings, ModelDesk
from gateway.faults import Fault, Kind, Origin
from gateway.names import UnknownName
from gateway.operations import KEPT_ENTRIES, NoPlacement, Order, Outcome
from gateway.replay import WITH_FILES, KeptLoads
from gateway.stores.state_file import LOADS, StateFile
from routing.types import Server
from tests.unit.gateway.fleets import TableFleet

ABC = [(server, "m", 1) for server in "abc"]
PLACEMENT = {"m": ("a", "b"), "placed": ("[ab]",), "gone": ("x*",)}


class Servers:
    """Servers that do what they are told, when they are let; a probe that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.given: list[tuple[str | None, Mapping[str, bytes], float]] = []
        self.looked: list[tuple[str, str]] = []
        self.faults: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.running: set[str] = set()
        self.most_running = 0

    async def load(
        self,
        server: str,
        model: str,
        *,
        config: str | None,
        files: Mapping[str, bytes],
        timeout_s: float,
    ) -> None:
        self.given.append((config, files, timeout_s))
        await self._do("load", server, model)

    async def unload(
        self, server: str, model: str, *, with_dependents: bool, timeout_s: float
    ) -> None:
        await self._do("unload" + "+" * with_dependents, server, model)

    async def _do(self, command: str, server: str, model: str) -> None:
        self.told.append((command, server, model))
        self.running.add(server)
        self.most_running = max(self.most_running, len(self.running))
        try:
            await (self.gates[server].wait() if server in self.gates else asyncio.sleep(0))
        finally:
            self.running.discard(server)
        if server in self.faults:
            raise self.faults[server]

    @asynccontextmanager
    async def changing(self, server: str, model: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.looked.append((server, model))

    def hold(self, *servers: str) -> None:
        for server in servers:
            self.gates[server] = asyncio.Event()

    def release(self, *servers: str) -> None:
        for server in servers:
            self.gates[server].set()

    async def until_told(self, number: int) -> None:
        while len(self.told) < number:
            await asyncio.sleep(0)


class Desk:
    """A desk, its servers, and its log."""

    def __init__(
        self,
        ready: Sequence[tuple[str, str, int]] = (),
        *,
        concurrency: int = 2,
        kept: bool = False,
        path: Path | None = None,
    ) -> None:
        self.fleet = TableFleet(ready)
        self.servers = Servers()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.kept: KeptLoads | None = None
        if kept:
            self.kept = KeptLoads(StateFile(path, LOADS), log=self._note)
            self.kept.restore()
        settings = ControlSettings(concurrency, timeout_s=9.0, placement=PLACEMENT)
        self.parts = ControlParts(self.fleet, self.servers, self.servers, settings)
        times, ids = count(), count(1)
        self.desk = ModelDesk(
            lambda: self.parts,
            kept=self.kept,
            log=self._note,
            now=lambda: f"t{next(times)}",
            new_id=lambda: f"op{next(ids)}",
        )

    def _note(self, event: str, **fields: Any) -> None:
        self.log.append((event, fields))

    async def carry_out(self, order: Order) -> tuple[Outcome, ...]:
        return (await self.desk.carry_out(order, by="ann")).outcomes

    async def kept_loads(self) -> list[dict[str, Any]]:
        replay = (await self.desk.view())["replay"]
        loads: list[dict[str, Any]] = replay["loads"]
        return loads

    async def back(self, server: str) -> None:
        """Let a server come back and all that follows from it happen."""
        self.desk.server_back(server)
        await settled()


async def settled() -> None:
    """Let everything happen that waits for nothing but its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


def fault(kind: Kind, text: str) -> Fault:
    return Fault(kind, text, origin=Origin.UPSTREAM)


async def test_a_command_goes_to_the_servers_it_names() -> None:
    given = Desk()
    outcomes = await given.carry_out(Order("load", "x", ("c", "a")))
    assert outcomes == (Outcome("a"), Outcome("c")), "in the order of the configuration"
    assert sorted(given.servers.told) == [("load", "a", "x"), ("load", "c", "x")]
    assert sorted(given.servers.looked) == [("a", "x"), ("c", "x")]
    await given.carry_out(Order("unload", "x", ("[bc]",), with_dependents=True))
    assert sorted(given.servers.told[2:]) == [("unload+", "b", "x"), ("unload+", "c", "x")]


async def test_a_command_without_servers_goes_where_the_model_is_placed() -> None:
    given = Desk()
    outcomes = await given.carry_out(Order("load", "placed"))
    assert [each.server for each in outcomes] == ["a", "b"]
    with pytest.raises(NoPlacement, match=r"models\.x\.placement"):
        await given.carry_out(Order("load", "x"))
    with pytest.raises(UnknownName, match=r"no server 'x\*'; there are a, b, c"):
        await given.carry_out(Order("load", "gone"))
    with pytest.raises(UnknownName, match="no server 'z'"):
        await given.desk.start(Order("load", "x", ("a", "z")), by="ann")
    assert len(given.servers.told) == 2, "what is refused is not begun"


async def test_what_a_load_brings_arrives() -> None:
    given = Desk()
    order = Order("load", "x", ("a",), config="{}", files={"file:1/m": b"\0"})
    await given.carry_out(order)
    assert given.servers.given == [("{}", {"file:1/m": b"\0"}, 9.0)]


@pytest.mark.parametrize(
    ("ready", "servers", "concurrency", "most"),
    [
        ([], "abc", 2, 2),
        ([], "abc", 3, 3),
        (ABC, "abc", 3, 2),
        (ABC[:2], "abc", 3, 1),
        (ABC[:1], "abc", 3, 1),
        (ABC, "ab", 2, 2),
        (ABC, "abc", 1, 1),
    ],
)
async def test_never_all_that_serve_a_model_change_at_once(
    ready: list[tuple[str, str, int]], servers: str, concurrency: int, most: int
) -> None:
    given = Desk(ready, concurrency=concurrency)
    outcomes = await given.carry_out(Order("load", "m", tuple(servers)))
    assert len(outcomes) == len(servers)
    assert given.servers.most_running == most


async def test_one_failure_does_not_keep_the_others_from_it() -> None:
    given = Desk()
    given.servers.faults = {
        "a": fault(Kind.FAILED, "no such model"),
        "b": fault(Kind.DEADLINE, "the deadline of the request has passed"),
    }
    outcomes = await given.carry_out(Order("load", "x", ("*",)))
    assert outcomes == (
        Outcome("a", Kind.FAILED, "no such model"),
        Outcome("b", Kind.DEADLINE, "not done within 9 s; it may still go on there"),
        Outcome("c"),
    )
    assert len(given.servers.looked) == 3, "a server that failed is looked at as well"
    assert (await given.desk.operation("op1"))["state"] == "failed"


async def test_a_server_may_be_removed_meanwhile() -> None:
    given = Desk(concurrency=1)
    given.servers.hold("a")
    running = asyncio.ensure_future(given.carry_out(Order("load", "x", ("a", "c"))))
    await given.servers.until_told(1)
    fleet = TableFleet([], servers=[Server("a"), Server("b")])
    given.parts = replace(given.parts, fleet=fleet)
    given.servers.release("a")
    text = "it has left the fleet"
    assert await running == (Outcome("a"), Outcome("c", Kind.UNREACHABLE, text))


async def test_a_server_that_is_leaving_is_not_changed() -> None:
    given = Desk(concurrency=1, kept=True)
    await given.carry_out(Order("load", "placed"))
    given.servers.told.clear()
    given.fleet.table.leave("a", now_s=given.fleet.now_s)
    assert await given.carry_out(Order("load", "x", ("*",))) == (Outcome("b"), Outcome("c"))
    with pytest.raises(UnknownName, match="'a'"):
        await given.carry_out(Order("load", "x", ("a",)))
    given.servers.told.clear()
    await given.back("a")
    assert given.servers.told == []


async def test_a_server_may_leave_before_its_loads_are_repeated() -> None:
    given = Desk(kept=True)
    await given.carry_out(Order("load", "placed"))
    given.servers.told.clear()
    given.fleet.table.remove("a", now_s=given.fleet.now_s)
    await given.back("a")
    assert given.servers.told == []


async def test_a_fault_of_the_gateway_ends_the_command_too() -> None:
    given = Desk()
    given.servers.faults = {"a": ZeroDivisionError("secret")}
    (outcome,) = await given.carry_out(Order("load", "x", ("a",)))
    assert outcome == Outcome("a", Kind.INTERNAL, "internal error of the gateway")


async def test_commands_for_one_model_follow_one_another() -> None:
    given = Desk()
    given.servers.hold("a")
    first = await given.desk.start(Order("load", "x", ("a",)), by="ann")
    second = asyncio.ensure_future(given.carry_out(Order("unload", "x", ("b",))))
    await asyncio.sleep(0)
    other = await given.carry_out(Order("load", "y", ("b",)))
    assert other == (Outcome("b"),), "another model does not wait"
    assert not second.done()
    assert (await given.desk.operation("op2"))["servers"][0]["state"] == "waiting"
    given.servers.release("a")
    await second
    assert given.servers.told[-1] == ("unload", "b", "x")
    assert (await given.desk.operation(first["id"]))["state"] == "done"


async def test_a_command_goes_on_without_its_caller() -> None:
    given = Desk()
    given.servers.hold("a")
    caller = asyncio.ensure_future(given.carry_out(Order("load", "x", ("a",))))
    await given.servers.until_told(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert given.servers.running == {"a"}
    given.servers.release("a")
    while (await given.desk.operation("op1"))["state"] == "running":
        await asyncio.sleep(0)
    assert (await given.desk.operation("op1"))["state"] == "done"


async def test_how_far_a_command_is_can_be_seen() -> None:
    given = Desk(concurrency=1)
    given.servers.hold("a")
    begun = await given.desk.start(Order("load", "x", ("a", "b"), config="{}"), by="ann")
    assert [step["state"] for step in begun["servers"]] == ["waiting", "waiting"]
    await given.servers.until_told(1)
    (seen,) = (await given.desk.view())["operations"]
    assert seen == {
        "id": "op1",
        "command": "load",
        "model": "x",
        "state": "running",
        "since": "t0",
        "by": "ann",
        "config": True,
        "files": [],
        "servers": [
            {"server": "a", "state": "running", "since": "t1"},
            {"server": "b", "state": "waiting", "since": "t0"},
        ],
        "warnings": [],
    }
    given.servers.faults["a"] = fault(Kind.FAILED, "no")
    given.servers.release("a")
    while (await given.desk.operation("op1"))["state"] == "running":
        await asyncio.sleep(0)
    await settled()
    seen = await given.desk.operation("op1")
    assert seen["servers"][0] == {"server": "a", "state": "failed", "since": "t2", "error": "no"}
    assert [event for event, _ in given.log] == ["model control", "model control ended"]
    assert given.log[0][1]["by"] == "ann"
    assert given.log[1][1] == {"operation": "op1", "results": {"a": "no", "b": "done"}}
    with pytest.raises(UnknownName, match="no operation 'op9'"):
        await given.desk.operation("op9")


async def test_the_content_of_files_is_not_kept() -> None:
    class Files(dict[str, bytes]):
        """A mapping whose end can be watched."""

    given = Desk(kept=True)
    files = Files({"file:1/model.py": b"x"})
    await given.carry_out(Order("load", "placed", config="{}", files=files))
    await settled()
    watched = weakref.ref(files)
    given.servers.given.clear()
    del files
    gc.collect()
    assert watched() is None
    assert (await given.desk.operation("op1"))["files"] == ["file:1/model.py"]


async def test_the_last_commands_stay_visible() -> None:
    given = Desk()
    for _ in range(KEPT_ENTRIES + 2):
        await given.carry_out(Order("load", "x", ("a",)))
    shown = [operation["id"] for operation in (await given.desk.view())["operations"]]
    assert shown == [f"op{number}" for number in range(3, KEPT_ENTRIES + 3)]


# --- loads that are repeated


async def test_without_replay_nothing_is_kept() -> None:
    given = Desk()
    await given.carry_out(Order("load", "placed"))
    await given.back("a")
    assert len(given.servers.told) == 2
    assert (await given.desk.view())["replay"] is None


async def test_loads_by_placement_are_repeated_with_their_config() -> None:
    given = Desk(kept=True)
    await given.carry_out(Order("load", "placed", config="one"))
    await given.carry_out(Order("load", "placed", ("a",), config="two"))
    await given.carry_out(Order("load", "placed"))  # keeps what it was loaded with
    await given.carry_out(Order("load", "elsewhere", ("a",)))
    given.servers.told.clear()
    given.servers.given.clear()
    await given.back("a")
    assert given.servers.told == [("load", "a", "placed")]
    assert given.servers.given[0][0] == "two"
    assert (await given.desk.view())["operations"][-1]["by"] == "replay"


async def test_what_is_there_or_was_unloaded_is_not_repeated() -> None:
    given = Desk(kept=True)
    await given.carry_out(Order("load", "placed"))
    given.fleet.has(("a", "placed", 1))
    given.servers.told.clear()
    await given.back("a")
    assert given.servers.told == []
    await given.carry_out(Order("unload", "placed", ("b",)))
    await given.back("b")
    assert given.servers.told == [("unload", "b", "placed")]
    assert [load["server"] for load in await given.kept_loads()] == ["a"]


async def test_what_failed_is_not_kept() -> None:
    given = Desk(kept=True)
    given.servers.faults["a"] = fault(Kind.FAILED, "no")
    await given.carry_out(Order("load", "placed"))
    assert [load["server"] for load in await given.kept_loads()] == ["b"]


async def test_loads_with_files_are_not_repeated_and_that_is_said() -> None:
    given = Desk(kept=True)
    order = Order("load", "placed", config="{}", files={"file:1/model.py": b"x"})
    report = await given.desk.carry_out(order, by="ann")
    assert report.view["warnings"] == [f"not loaded again after a restart: {WITH_FILES}"]
    assert (await given.kept_loads())[0] == {
        "model": "placed",
        "server": "a",
        "config": False,
        "replayed": False,
        "reason": WITH_FILES,
    }
    given.servers.told.clear()
    await given.back("a")
    assert given.servers.told == []
    assert given.log[-1][0] == "load not replayed"
    await given.carry_out(Order("load", "placed"))
    assert not (await given.kept_loads())[0]["replayed"], "its files are still the ones"
    await given.carry_out(Order("load", "placed", config="{}"))
    assert (await given.kept_loads())[0]["replayed"]


async def test_kept_loads_outlast_a_restart_of_the_gateway(tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    before = Desk(kept=True, path=path)
    await before.carry_out(Order("load", "placed", config="{}"))
    files = {"file:1/model.py": b"import secret"}
    await before.carry_out(Order("load", "m", config="{}", files=files))
    after = Desk(kept=True, path=path)
    assert await after.kept_loads() == await before.kept_loads()
    assert b"secret" not in path.read_bytes()
    await after.back("b")
    assert after.servers.told == [("load", "b", "placed")]
    assert after.servers.given[0][0] == "{}"


async def test_a_model_that_is_placed_elsewhere_now_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "loads.json"
    before = Desk(kept=True, path=path)
    await before.carry_out(Order("load", "placed"))
    path.write_text(path.read_text().replace('"placed"', '"gone"'))
    after = Desk(kept=True, path=path)
    await after.back("a")
    assert after.servers.told == []


async def test_a_disk_that_is_full_costs_no_command(tmp_path: Path) -> None:
    given = Desk(kept=True, path=tmp_path / "gone" / "loads.json")
    assert await given.carry_out(Order("load", "placed")) == (Outcome("a"), Outcome("b"))
    assert "loads cannot be kept over a restart" in [event for event, _ in given.log]
