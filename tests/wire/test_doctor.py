"""What is wrong with a server stands in the fleet view as long as it is, and once in the log."""

import asyncio
from typing import Any

import pytest

from gateway.upstream import doctor
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, fake_triton, serving, serving_config, until

QUICK = {"statistics_interval_s": 0.05}
LOOK_S = 0.02


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOOK_INTERVAL_S", LOOK_S)


async def findings(gateway: Serving) -> list[dict[str, str]]:
    found: list[dict[str, str]] = (await gateway.ops("/fleet")).json["findings"]
    return found


def codes(gateway: Serving) -> set[tuple[str, str]]:
    return {(found["server"], found["code"]) for found in gateway.watcher.findings()}


def told(gateway: Serving, code: str) -> list[dict[str, Any]]:
    return [event for event in gateway.events("finding") if event["code"] == code]


async def test_a_finding_stands_in_the_fleet_view_and_once_in_the_log(fake: FakeTriton) -> None:
    config = configuration({"a": fake.address})
    config["servers"][0]["expect"] = "mine"
    async with serving_config(config) as gateway:
        await until(lambda: codes(gateway) != set())
        await asyncio.sleep(10 * LOOK_S)
        (found,) = [f for f in await findings(gateway) if f["severity"] == "error"]
        assert found["server"] == "a"
        assert "'fake'" in found["message"]
        assert found["fix"]
        (event,) = told(gateway, found["code"])
        assert {key: event[key] for key in found} == found
        assert event["level"] == "warning"


async def test_what_is_good_to_know_is_shown_and_not_logged() -> None:
    async with fake_triton(version="2.51.0") as old, serving({"a": old}) as gateway:
        await until(lambda: codes(gateway) != set())
        assert {found["severity"] for found in await findings(gateway)} == {"info"}
        await asyncio.sleep(5 * LOOK_S)
        assert gateway.events("finding") == []


async def test_a_server_is_examined_when_it_goes_down_and_when_it_is_back(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await until(lambda: fake.calls["ServerReady"] == 1)
        for times in (1, 2):
            await fake.kill()
            await until(lambda: ("a", "connection-refused") in codes(gateway))
            await fake.start()
            await until(lambda: codes(gateway) == set())
            assert len(told(gateway, "connection-refused")) == times
            assert await findings(gateway) == []


async def test_a_server_where_nothing_changes_is_examined_once(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet={"statistics_interval_s": 60.0}):
        await until(lambda: fake.calls["ServerReady"] == 1)
        await asyncio.sleep(20 * LOOK_S)
        assert fake.calls["ServerReady"] == 1
        assert fake.calls["ServerLive"] <= 3


async def test_a_running_gateway_unloads_nothing_to_find_out(fake: FakeTriton) -> None:
    unloaded: list[object] = []

    async def unload(request: Any, context: Any) -> Any:
        unloaded.append(request)
        raise AssertionError

    fake.RepositoryModelUnload = unload
    async with serving({"a": fake}):
        await until(lambda: fake.calls["ServerReady"] == 1)
        await asyncio.sleep(5 * LOOK_S)
    assert unloaded == []
