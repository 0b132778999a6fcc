"""A configuration that changes while its sources go on naming servers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import clients
from tests.fakes.triton import FakeTriton
from tests.reloading import Reloading, config_of, put, reloading_config
from tests.serving import fake_triton, until


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeTriton]]:
    async with fake_triton() as a, fake_triton() as b, fake_triton() as c:
        yield [a, b, c]


class World:
    """A file of servers, and configurations that name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listed = folder / "listed" / "servers.yaml"
        self.listed.parent.mkdir()

    def list(self, **servers: FakeTriton) -> None:
        rows = [{"name": name, "grpc": fake.address} for name, fake in servers.items()]
        other = self.listed.with_suffix(".new")
        other.write_text(yaml.safe_dump(rows))
        other.replace(self.listed)

    def config(self, servers: dict[str, FakeTriton], *sources: dict[str, Any]) -> dict[str, Any]:
        said = {"discovery": list(sources)} if sources else {}
        return config_of(servers, fleet={"statistics_interval_s": 0.1}, **said)

    def source(self, name: str = "f", **more: Any) -> dict[str, Any]:
        file = {"path": str(self.listed), "interval_s": 0.02}
        return {"name": name, "file": file, "removal_grace_s": 0, "max_removed_share": 1.0, **more}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def names(running: Reloading) -> set[str]:
    return set(running.gateway.watcher.snapshot.servers)


def upstream(running: Reloading, name: str) -> object:
    return running.gateway.cores.current.upstreams[name]


async def reload(running: Reloading, config: dict[str, Any]) -> None:
    assert (await running.reload(config)).status == 200


async def planned(running: Reloading, config: dict[str, Any]) -> Any:
    put(running.path, config)
    reply = await clients.ask(running.gateway.ops_port, clients.request("GET", "/config/plan"))
    return reply.json


async def test_discovered_servers_keep_their_connections_over_a_reload(
    world: World, fakes: list[FakeTriton]
) -> None:
    a, b, _ = fakes
    world.list(b=b)
    before = world.config({"a": a}, world.source())
    async with reloading_config(world.folder, before) as running:
        kept = upstream(running, "b")
        await reload(running, {**before, "balancing": {"policy": "peak_ewma"}})
        assert names(running) == {"a", "b"}
        assert upstream(running, "b") is kept
        assert running.gateway.up("b")
        assert (await running.gateway.infer()).status == 200


async def test_a_source_works_for_the_configuration_in_force(
    world: World, fakes: list[FakeTriton]
) -> None:
    a, b, c = fakes
    world.list(b=b)
    before = world.config({"a": a}, world.source())
    async with reloading_config(world.folder, before) as running:
        await reload(running, {**before, "balancing": {"policy": "peak_ewma"}})
        world.list(c=c)
        await until(lambda: names(running) == {"a", "c"} and running.gateway.up("c"))
        assert (await running.gateway.fleet("c"))["source"] == "f"


async def test_servers_may_move_from_the_configuration_to_a_source(
    world: World, fakes: list[FakeTriton]
) -> None:
    """The same server under the same name: it goes on as if nothing had happened."""
    a, b, _ = fakes
    world.list(a=a, b=b)
    async with reloading_config(world.folder, world.config({"a": a})) as running:
        kept = upstream(running, "a")
        await reload(running, world.config({}, world.source()))
        assert names(running) == {"a", "b"}
        assert upstream(running, "a") is kept
        assert (await running.gateway.fleet("a"))["source"] == "f"
        assert (await running.gateway.infer()).status == 200
        await reload(running, world.config({"a": a}))
        await until(lambda: names(running) == {"a"})
        assert (await running.gateway.fleet("a"))["source"] == "configuration"
        assert (await running.gateway.infer()).status == 200


async def test_a_source_that_is_described_differently_describes_its_servers_anew(
    world: World, fakes: list[FakeTriton]
) -> None:
    a, *_ = fakes
    world.list(a=a)
    async with reloading_config(world.folder, world.config({}, world.source())) as running:
        heavier = world.source(servers={"capacity": 4.0})
        await reload(running, world.config({}, heavier))
        assert running.gateway.pool.loads["a"].server.capacity == 4.0
        assert running.gateway.up("a")


async def test_what_a_source_says_during_a_reload_is_not_lost(
    world: World, fakes: list[FakeTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server goes and another comes while the new core waits for its first answers."""
    a, b, c = fakes
    world.list(a=a, b=b)
    before = world.config({}, world.source())
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def first_answers(_: object) -> None:
        waiting.set()
        await go_on.wait()

    monkeypatch.setattr("gateway.wiring.reloader._first_answers", first_answers)
    async with reloading_config(world.folder, before) as running:
        changed = {**before, "balancing": {"policy": "peak_ewma"}}
        task = asyncio.ensure_future(reload(running, changed))
        await waiting.wait()
        world.list(a=a, c=c)
        await until(lambda: names(running) == {"a", "c"})
        go_on.set()
        await task
        assert names(running) == {"a", "c"}
        await until(lambda: running.gateway.up("c"))
        assert (await running.gateway.infer()).status == 200


async def test_a_plan_counts_discovered_servers(world: World, fakes: list[FakeTriton]) -> None:
    a, b, _ = fakes
    world.list(b=b)
    before = world.config({"a": a}, world.source())
    async with reloading_config(world.folder, before) as running:
        plan = await planned(running, world.config({}, world.source()))
        assert plan["servers"] == {"added": [], "removed": ["a"], "reconnected": []}
        assert plan["consequences"] == ["1 model is left with fewer servers: echo 1 (2 -> 1)"]
        plan = await planned(running, world.config({"a": a}))
        assert plan["servers"]["removed"] == ["b"]
