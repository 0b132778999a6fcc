"""The fleet's settings: one answer from several servers, and changes that have to reach all."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from gateway.faults import Fault, Kind, Origin
from gateway.operations import Outcome
from gateway.settings import FleetSettings, SettingsDesk, SettingsFailed, merge
from tests.unit.gateway.fleets import TableFleet

DOWN = Fault(Kind.UNREACHABLE, "not there", origin=Origin.UPSTREAM)


class Servers:
    """Servers with log settings, and those that cannot answer."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, Any]] = {name: {"log_info": True} for name in "abc"}
        self.faults: dict[str, Exception] = {}
        self.calls: Counter[tuple[str, ...]] = Counter()

    async def trace(
        self, server: str, model: str, values: Any, *, timeout_s: float
    ) -> dict[str, Any]:
        return await self._answer(server, "trace", model, values)

    async def log(self, server: str, values: Any, *, timeout_s: float) -> dict[str, Any]:
        return await self._answer(server, "log", "", values)

    async def _answer(self, server: str, *what: Any) -> dict[str, Any]:
        self.calls[server, *map(str, what)] += 1
        await asyncio.sleep(0)
        if server in self.faults:
            raise self.faults[server]
        return self.said[server]


def desk_of(servers: Servers) -> SettingsDesk:
    fleet = TableFleet([("a", "m", 1), ("b", "m", 1), ("b", "m", 2), ("c", "other", 1)])
    return SettingsDesk(fleet, servers, timeout_s=1.0, log=lambda *_, **__: None, clock=fleet.clock)


def test_the_majority_speaks_and_the_others_are_named() -> None:
    one, two = {"x": 1, "y": [1]}, {"y": [1], "x": 2}
    assert merge({"a": one, "b": two, "c": two}, unanswered=["d"]) == FleetSettings(
        two, ["a"], ["d"]
    )
    assert merge({"a": one, "b": two}, unanswered=()) == FleetSettings(one, ["b"], ())
    assert merge({"a": {"x": 1, "y": 2}, "b": {"y": 2, "x": 1}}, unanswered=()).differing == []


async def test_one_server_that_does_not_answer_is_named() -> None:
    servers = Servers()
    servers.faults["b"] = DOWN
    assert await desk_of(servers).read_log() == FleetSettings({"log_info": True}, [], ["b"])
    servers.faults = dict.fromkeys("abc", DOWN)
    with pytest.raises(Fault, match="not there"):
        await desk_of(servers).read_log()


async def test_a_model_is_asked_for_where_it_is() -> None:
    servers = Servers()
    await desk_of(servers).read_trace("m")
    assert {server for server, *_ in servers.calls} == {"a", "b"}
    with pytest.raises(Fault, match="unknown model: 'nope'"):
        await desk_of(servers).read_trace("nope")


async def test_readers_share_one_round() -> None:
    servers = Servers()
    desk = desk_of(servers)
    await asyncio.gather(*(desk.read_log() for _ in range(5)), desk.read_trace(""))
    assert set(servers.calls.values()) == {1}
    await desk.read_log()
    assert servers.calls["a", "log", "", "{}"] == 2


async def test_without_servers_that_is_said() -> None:
    fleet = TableFleet([])
    desk = SettingsDesk(
        fleet, Servers(), timeout_s=1.0, log=lambda *_, **__: None, clock=fleet.clock
    )
    with pytest.raises(Fault, match="no server of the fleet answers"):
        await desk.read_log()


async def test_servers_that_leave_are_neither_asked_nor_changed() -> None:
    servers = Servers()
    fleet = TableFleet([(name, "m", 1) for name in "abc"])
    desk = SettingsDesk(fleet, servers, timeout_s=1.0, log=lambda *_, **__: None, clock=fleet.clock)
    servers.faults["b"] = DOWN
    fleet.table.leave("b", now_s=fleet.now_s)
    await desk.change_log({"log_info": True}, by="ann")
    assert (await desk.read_log()).unanswered == []
    for name in "abc":
        fleet.table.remove(name, now_s=fleet.now_s)
    for change in (desk.change_log({}, by="ann"), desk.change_trace("", {}, by="ann")):
        with pytest.raises(Fault, match="the fleet has no servers"):
            await change


async def test_a_change_reaches_all_or_says_where_not() -> None:
    servers = Servers()
    desk = desk_of(servers)
    assert (await desk.change_log({"log_info": True}, by="ann")).document == {"log_info": True}
    assert len(servers.calls) == 3
    await desk.change_trace("other", {"trace_rate": ["1"]}, by="ann")
    assert servers.calls["c", "trace", "other", "{'trace_rate': ['1']}"] == 1
    servers.faults["b"] = DOWN
    with pytest.raises(SettingsFailed) as caught:
        await desk.change_trace("", {}, by="ann")
    assert caught.value.outcomes == [
        Outcome("a"),
        Outcome("b", Kind.UNREACHABLE, "not there"),
        Outcome("c"),
    ]


async def test_a_fault_of_the_gateway_is_not_taken_for_one_of_a_server() -> None:
    servers = Servers()
    servers.faults["b"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await desk_of(servers).read_log()
