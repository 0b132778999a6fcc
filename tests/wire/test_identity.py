"""A server that must have a certain id: nobody else on its port ever gets a tensor."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients import request
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, fake_triton, serving_config, until

SLOW = {"statistics_interval_s": 60.0, "index_interval_s": 60.0}
QUICK = {"statistics_interval_s": 0.05}
STATISTICS = request("GET", "/v2/models/stats")


def expecting(fake: FakeTriton, fleet: dict[str, float]) -> dict[str, Any]:
    config = configuration({"a": fake.address}, fleet=fleet)
    config["servers"][0]["expect"] = "mine"
    return config


@pytest.fixture
async def mine() -> AsyncIterator[FakeTriton]:
    async with fake_triton(server_id="mine") as server:
        yield server


@pytest.fixture
async def stranger() -> AsyncIterator[FakeTriton]:
    async with fake_triton(server_id="theirs") as server:
        yield server


async def lead_to(server: FakeTriton, other: FakeTriton, gateway: Serving) -> None:
    """Let the port of `server` lead to `other` from now on; connections so far are cut."""
    await server.proxy.stop()
    await until(lambda: all(s["state"] != "ready" for s in gateway.watcher.states("a")))
    await server.proxy.start(other.proxy.port)


async def test_who_is_there_is_asked_on_every_connection(mine: FakeTriton) -> None:
    config = expecting(mine, SLOW)
    config["servers"][0]["channels"] = 3
    async with serving_config(config) as gateway:
        asked = mine.calls["ServerMetadata"]
        assert asked >= 3
        assert {s["state"] for s in gateway.watcher.states("a")} == {"ready"}
        assert {(await gateway.infer()).status for _ in range(30)} == {200}
        assert mine.calls["ServerMetadata"] - asked < 10  # by the diagnosis, not for every call


async def test_a_stranger_behind_a_new_connection_gets_no_tensors(
    mine: FakeTriton, stranger: FakeTriton
) -> None:
    async with serving_config(expecting(mine, SLOW)) as gateway:
        assert (await gateway.infer()).status == 200
        await lead_to(mine, stranger, gateway)
        replies = await asyncio.gather(*(gateway.infer() for _ in range(20)))
        assert {reply.status for reply in replies} == {503}
        await until(lambda: "another server" in gateway.watcher.snapshot.servers["a"].reason)
        assert (await gateway.infer()).status == 503
    assert (mine.infer_started, stranger.infer_started) == (1, 0)
    assert stranger.calls["ServerMetadata"] >= 1


@pytest.mark.usefixtures("undiagnosed")
async def test_statistics_do_not_bring_a_stranger_in(
    mine: FakeTriton, stranger: FakeTriton
) -> None:
    """Any call on a lost connection makes a new one; only the prober asks who is there."""
    async with serving_config(expecting(mine, SLOW)) as gateway:
        assert (await gateway.ask(STATISTICS)).status == 200
        await lead_to(mine, stranger, gateway)
        for _ in range(3):
            await gateway.ask(STATISTICS)
        replies = await asyncio.gather(*(gateway.infer() for _ in range(20)))
        assert {reply.status for reply in replies} == {503}
    assert stranger.infer_started == 0
    assert stranger.calls["ModelStatistics"] == 0


async def test_the_right_server_is_used_again_when_it_is_back(
    mine: FakeTriton, stranger: FakeTriton
) -> None:
    async with serving_config(expecting(mine, QUICK)) as gateway:
        home = mine.proxy._target_port
        await lead_to(mine, stranger, gateway)
        await until(lambda: "another server" in gateway.watcher.snapshot.servers["a"].reason)
        await mine.proxy.stop()
        await mine.proxy.start(home)
        await until(gateway.up)
        assert (await gateway.infer()).status == 200
    assert stranger.infer_started == 0
