"""What is wrong with a server stands in the fleet view as long as it is, and once in the log."""

import asyncio
import contextlib
from typing import Any

import pytest

from gateway.upstream import doctor
from tests.fakes.model import FakeModel, model_config
from tests.fakes.proxy import HOST, TcpProxy
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, fake_triton, serving, serving_config, until
from tests.wire.test_survey import counting

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


# --- between servers


async def reload(gateway: Serving, fake: FakeTriton, **config: Any) -> None:
    """Load another model `echo`, once the gateway knows that the old one has run."""
    async with asyncio.timeout(10):
        while not fake.models["echo"].executions:
            await gateway.infer()
    probed = fake.calls["ModelStatistics"]
    await fake.until(lambda: fake.calls["ModelStatistics"] > probed + 5)  # three may be a survey's
    fake.models["echo"] = FakeModel(model_config("echo", **config))


async def test_models_are_compared_when_they_change() -> None:
    async with (
        fake_triton() as a,
        fake_triton() as b,
        serving({"a": a, "b": b}, fleet=QUICK) as gateway,
    ):
        await until(lambda: a.calls["ServerReady"] == b.calls["ServerReady"] == 1)
        assert codes(gateway) == set()
        await reload(gateway, b, max_batch_size=4)
        await until(lambda: codes(gateway) == {("", "different-model")})
        (event,) = told(gateway, "different-model")
        assert "version 1 on b differs from a: max_batch_size 4" in event["message"]
        await reload(gateway, a, max_batch_size=4)
        await until(lambda: codes(gateway) == set())
        assert a.calls["ServerReady"] == b.calls["ServerReady"] == 1  # nobody was asked for it


async def test_a_pinned_version_that_no_server_has_is_told(fake: FakeTriton) -> None:
    models = {"echo": {"default_version": 7}}
    async with serving({"a": fake}, fleet=QUICK, models=models) as gateway:
        await until(lambda: ("", "default-version") in codes(gateway))
        (event,) = told(gateway, "default-version")
        assert event["message"] == (
            "`default_version` of model 'echo' is 7, and no server has that version ready;"
            " ready are 1"
        )
        fake.models["echo"].states["7"] = "READY"
        await until(lambda: codes(gateway) == set())


async def test_without_a_server_nothing_is_said_of_pinned_versions(fake: FakeTriton) -> None:
    await fake.kill()
    models = {"echo": {"default_version": 7}}
    async with serving({"a": fake}, fleet=QUICK, models=models) as gateway:
        await until(lambda: ("a", "connection-refused") in codes(gateway))
        await asyncio.sleep(5 * LOOK_S)
        assert ("", "default-version") not in codes(gateway)


async def test_who_is_who_is_asked_again_when_a_server_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_SURVEY_PAUSE_S", 0.0)
    async with counting(1000) as one, contextlib.AsyncExitStack() as stack:
        second = TcpProxy()
        stack.push_async_callback(second.close)
        await second.start(one.proxy.port)
        await second.stop()
        servers = {"a": one.address, "b": f"{HOST}:{second.port}"}
        async with serving(servers, fleet=QUICK) as gateway:
            await until(lambda: ("b", "connection-refused") in codes(gateway))
            assert told(gateway, "same-process") == []
            await second.start(one.proxy.port)
            await until(lambda: ("", "same-process") in codes(gateway))
            await second.stop()
            await until(lambda: ("", "same-process") not in codes(gateway))


async def test_a_server_that_loads_a_model_is_not_taken_for_several(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await until(lambda: fake.calls["ServerReady"] == 1)
        fake.models["late"] = FakeModel(model_config("late"))
        await until(lambda: "late" in gateway.watcher.snapshot.models)
        monkeypatch.setattr(doctor, "_SURVEY_INTERVAL_S", 0.0)
        surveyed = fake.calls["ServerMetadata"]
        await fake.until(lambda: fake.calls["ServerMetadata"] >= surveyed + 9)
        assert codes(gateway) == set()


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
