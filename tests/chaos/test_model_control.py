"""Models loaded and unloaded through the gateway while it serves, and on servers that fail."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests import clients
from tests.chaos.fleet import RealFleet, version_row
from tests.chaos.load import WHOAMI, Load, sleep
from tests.clients import Reply
from tests.gateways import GatewayProcess

SLOW = "slow_load"
RELOADS = pytest.mark.parametrize(
    "reloads", [1, pytest.param(5, id="long", marks=pytest.mark.accept)]
)


@contextlib.asynccontextmanager
async def running(
    fleet: RealFleet, folder: Path, *names: str, **model_control: Any
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway before some of the servers, through which models may be changed."""
    config = fleet.config(
        *names,
        model_control={"enabled": True, **model_control},
        server_settings={"enabled": True},
        models={model: {"placement": list(names)} for model in (SLOW, "whoami")},
        balancing={"slow_start_s": 0},
    )
    gateway = GatewayProcess(config, folder)
    try:
        await asyncio.to_thread(gateway.start)
        yield gateway
    finally:
        stopped = await asyncio.to_thread(gateway.stop)
    assert stopped == 0
    assert not [event for event in gateway.events() if "exception" in event]


async def post(gateway: GatewayProcess, path: str, body: Any = None, **headers: str) -> Reply:
    text = b"" if body is None else json.dumps(body).encode()
    return await clients.ask(
        gateway.api_port, clients.request("POST", path, text, headers=headers or None)
    )


async def get(gateway: GatewayProcess, path: str) -> Reply:
    return await clients.ask(gateway.api_port, clients.request("GET", path))


async def command(
    gateway: GatewayProcess, what: str, model: str, *servers: str, config: Any = None
) -> Reply:
    """Load or unload a model on some servers, or where it is placed."""
    query = "&".join(f"server={name}" for name in servers)
    body = None if config is None else {"parameters": {"config": json.dumps(config)}}
    return await post(gateway, f"/v2/repository/models/{model}/{what}?{query}", body)


async def fleet_view(gateway: GatewayProcess) -> dict[str, Any]:
    return await asyncio.to_thread(gateway.fleet)


async def until(gateway: GatewayProcess, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until a condition holds for what `/fleet` says of model control."""
    async with asyncio.timeout(30):
        while True:
            view: dict[str, Any] = (await fleet_view(gateway))["model_control"]
            if holds(view):
                return view
            await asyncio.sleep(0.05)


def last(view: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = view["operations"][-1]
    return operation


def states(operation: dict[str, Any]) -> dict[str, str]:
    return {step["server"]: step["state"] for step in operation["servers"]}


def slow(load_s: float) -> dict[str, Any]:
    """A configuration of the model whose load takes as long as one likes."""
    tensor = {"data_type": "TYPE_INT32", "dims": [-1]}
    return {
        "name": SLOW,
        "backend": "python",
        "input": [{"name": "IN", **tensor}],
        "output": [{"name": "OUT", **tensor}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "parameters": {"load_s": {"string_value": str(load_s)}},
    }


def pids(load: Load, since_s: float) -> set[str]:
    """Return the processes that have answered since."""
    answered = (a for a in load.of("whoami", since_s=since_s) if a.status == 200)
    return {json.loads(a.body)["outputs"][0]["data"][2] for a in answered}


@RELOADS
async def test_a_reload_costs_no_request(fleet: RealFleet, folder: Path, reloads: int) -> None:
    async with running(fleet, folder, "a", "b") as gateway:
        config = (await get(gateway, "/v2/models/whoami/config")).json
        async with Load(gateway.api_port, [WHOAMI]) as load:
            await load.sent(50)
            for number in range(reloads):
                before = pids(load, load.now_s - 0.3)
                config["parameters"]["reload"] = {"string_value": f"{folder}-{number}"}
                reply = await command(gateway, "load", "whoami", "a", "b", config=config)
                assert reply.status == 200, reply.body
                assert states(reply.json) == {"a": "done", "b": "done"}
                await load.sent(100)
                after = pids(load, load.now_s - 0.3)
                assert before, "there was load"
                assert after.isdisjoint(before), "every server runs the model in new processes"
            found = (await get(gateway, "/v2/models/whoami/config")).json
            assert found["parameters"]["reload"] == config["parameters"]["reload"]
        assert load.failures() == []
        assert len(load.asked) >= 150 + 100 * reloads


async def test_an_unload_on_one_server_costs_no_request(fleet: RealFleet, folder: Path) -> None:
    async with running(fleet, folder, "a", "b") as gateway:
        async with Load(gateway.api_port, [WHOAMI, sleep(5)]) as load:
            await load.sent(50)
            assert (await command(gateway, "unload", "whoami", "a")).status == 200
            assert version_row(gateway, "whoami", 10)["servers"] == ["b"]
            unloaded_s = load.now_s
            await load.sent(100)
            assert set(load.answered_by(unloaded_s + 0.1)) == {"b"}
            assert (await command(gateway, "load", "whoami", "a")).status == 200
            assert version_row(gateway, "whoami", 10)["servers"] == ["a", "b"]
            await load.even("ab")
        assert load.failures() == []


async def test_what_one_server_cannot_do_is_told(fleet: RealFleet, folder: Path) -> None:
    async with running(fleet, folder, "a", "b", "c") as gateway:
        fleet["b"].kill()
        reply = await command(gateway, "load", "whoami", "a", "b")
        assert reply.status == 503
        assert reply.error == (
            "failed to load 'whoami' on 1 of 2 servers: b: the server could not be reached"
            " (done on: a)"
        )
        bad = await command(gateway, "load", "nope", "*")
        assert bad.status == 503, "the worst of 500, 503 and 500"
        assert "on 3 of 3 servers: a: failed to load 'nope', failed to poll" in bad.error
        view = (await fleet_view(gateway))["model_control"]
        assert states(view["operations"][0]) == {"a": "done", "b": "failed"}
        assert view["operations"][0]["servers"][1]["error"] == "the server could not be reached"
        for text in (reply.error, bad.error, json.dumps(view)):
            assert "127.0.0.1:" not in text
        changed = await post(gateway, "/v2/logging", {"log_info": True})
        assert changed.status == 503
        assert changed.error == (
            "failed to change the log settings on 1 of 3 servers: b: the server could not be"
            " reached (done on: a, c)"
        )


async def test_a_long_load_can_be_watched_and_goes_on_without_its_caller(
    fleet: RealFleet, folder: Path
) -> None:
    async with running(fleet, folder, "a", "b", concurrency=1) as gateway:
        path = f"/v2/repository/models/{SLOW}/load"
        body = {"parameters": {"config": json.dumps(slow(1.5))}}
        impatient = await post(gateway, path, body, **{"X-Request-Timeout-Ms": "300"})
        assert impatient.status == 504
        view = last((await fleet_view(gateway))["model_control"])
        assert (view["command"], view["model"], view["config"]) == ("load", SLOW, True)
        assert states(view) == {"a": "running", "b": "waiting"}
        # The server lists it as loading: it is worth coming back for.
        await asyncio.sleep(1.2)
        early = await get(gateway, f"/v2/models/{SLOW}")
        assert early.status == 503
        assert "retry-after" in early.headers
        view = await until(gateway, lambda v: states(last(v)) == {"a": "done", "b": "running"})
        assert (await get(gateway, f"/v2/models/{SLOW}/ready")).status == 200
        second = await command(gateway, "unload", SLOW, "a", "b")
        assert second.status == 200, "the second command waited for the first"
        first = (await fleet_view(gateway))["model_control"]["operations"][0]
        assert states(first) == {"a": "done", "b": "done"}
        assert (await get(gateway, f"/v2/models/{SLOW}/ready")).status == 400
    events = {event["event"]: event for event in reversed(gateway.events())}
    begun = events["model control"]
    assert (begun["by"], begun["command"], begun["servers"]) == ("127.0.0.1", "load", ["a", "b"])
    ended = events["model control ended"]
    assert ended["operation"] == begun["operation"]
    assert ended["results"] == {"a": "done", "b": "done"}


async def test_a_gateway_stops_while_a_model_is_loading(fleet: RealFleet, folder: Path) -> None:
    async with running(fleet, folder, "a") as gateway:
        body = {"parameters": {"config": json.dumps(slow(4))}}
        path = f"/v2/repository/models/{SLOW}/load"
        reply = await post(gateway, path, body, **{"X-Request-Timeout-Ms": "200"})
        assert reply.status == 504
        begun_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun_s < 3, "nobody waits for the load"
    await fleet.unload("a", SLOW)


async def test_a_server_that_restarts_gets_its_loads_back(fleet: RealFleet, folder: Path) -> None:
    kept = folder.parent / "loads.json"
    keep = {"replay": True, "state_file": str(kept)}
    async with running(fleet, folder, "a", "b", **keep) as gateway:
        assert (await command(gateway, "load", SLOW, config=slow(0.1))).status == 200
        await fleet.restart("a")
        await until(gateway, lambda v: last(v)["by"] == "replay" and last(v)["state"] == "done")
        assert version_row(gateway, SLOW)["servers"] == ["a", "b"]
        config = (await get(gateway, f"/v2/models/{SLOW}/config")).json
        assert config["parameters"]["load_s"] == {"string_value": "0.1"}
    fleet["b"].kill()
    async with running(fleet, folder / "again", "a", "b", **keep) as gateway:
        await fleet.restart("b")
        view = await until(gateway, lambda v: v["operations"] and last(v)["state"] == "done")
        assert (last(view)["by"], states(last(view))) == ("replay", {"b": "done"})
        assert (await command(gateway, "unload", SLOW)).status == 200
        assert json.loads(kept.read_text())["loads"] == []


async def test_settings_that_differ_are_told(fleet: RealFleet, folder: Path) -> None:
    async with running(fleet, folder / "alone", "b") as alone:
        assert (await post(alone, "/v2/logging", {"log_verbose_level": 1})).status == 200
    async with running(fleet, folder, "a", "b", "c") as gateway:
        found = await get(gateway, "/v2/logging")
        assert found.json["log_verbose_level"] == 0
        assert found.headers["triton-gateway-differing"] == "b"
        mended = await post(gateway, "/v2/logging", {"log_verbose_level": 0})
        assert "triton-gateway-differing" not in mended.headers
        assert mended.json == (await get(gateway, "/v2/logging")).json
        trace = await get(gateway, "/v2/models/whoami/trace/setting")
        assert trace.json["trace_level"] == ["OFF"]
