"""The operators' routes: open health, a key before everything else, refusals that say why."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gateway.control import ControlParts, ControlSettings, ModelDesk
from gateway.explain import Explainer
from gateway.ops.listener import OpsListener
from gateway.ops.one_process import OneProcess
from gateway.ports import ConfigRefused
from gateway.steering import SteeringDesk
from gateway.stores.state_file import STEERING, StateFile
from tests.unit.gateway.fleets import TableFleet
from tests.unit.gateway.switching import switchboard
from tests.unit.gateway.test_control import Servers


def _silent(*_: object, **__: object) -> None:
    """Log nothing."""


class Configurations:
    """Stands for what replaces the configuration."""

    def view(self) -> dict[str, Any]:
        return {"hash": "abc"}

    async def plan(self) -> dict[str, Any]:
        return {"to": "def"}

    async def reload(self, *, by: str) -> dict[str, Any]:
        raise ConfigRefused(["f:1: one", f"f:2: {by}"])


@asynccontextmanager
async def listening(
    key: str | None = None, reason: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """An ops listener, and a client whose paths are its own."""
    fleet = TableFleet([("a", "m", 1), ("b", "m", 1), ("b", "with/slash", 1)])
    servers = Servers()
    sock = socket.create_server(("127.0.0.1", 0))
    listener = OpsListener(
        sock,
        host=OneProcess(CollectorRegistry(), Explainer(fleet.view, fleet.clock)),
        view=fleet.view,
        membership=fleet.membership,
        desk=SteeringDesk(
            fleet.view,
            StateFile(None, STEERING),
            switchboard(),
            log=_silent,
            now=lambda: "now",
        ),
        models=ModelDesk(
            lambda: ControlParts(
                fleet,
                servers,
                servers,
                ControlSettings(concurrency=2, timeout_s=9.0, placement={"m": ("a",)}),
            ),
            kept=None,
            log=_silent,
            now=lambda: "now",
            new_id=lambda: "op1",
        ),
        usage=None,
        config=Configurations(),
        not_ready_reason=lambda: reason,
        key=lambda: key,
    )
    await listener.start()
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as client:
            yield client
    finally:
        await listener.stop()


async def get(client: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, bytes]:
    async with client.get(path, headers=headers) as answer:
        return answer.status, await answer.read()


async def post(
    client: aiohttp.ClientSession,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, Any]:
    async with client.post(path, headers=headers, data=body) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer wrong", 401),
        ("Bearer k3y2", 401),
        ("bearer k3y", 401),
        ("Basic k3y", 401),
        ("k3y", 401),
        ("Bearer k3y", 200),
    ],
)
async def test_the_key_is_asked_for(authorization: str | None, status: int) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with listening("k3y") as client:
        for path in ("/metrics", "/fleet", "/servers/a", "/explain?model=m"):
            answered, body = await get(client, path, **headers)
            assert answered == status
            assert b"k3y" not in body
        for path in ("/servers/a/cordon", "/models/m/block", "/breakers/reset", "/models/m/load"):
            assert (await post(client, path, headers))[0] == status


async def test_a_refusal_says_what_is_needed() -> None:
    async with listening("k3y") as client:
        _, body = await get(client, "/fleet")
    assert json.loads(body) == {
        "error": "this needs the header 'Authorization: Bearer <ops key>'",
        "code": "unauthenticated",
    }


async def test_an_odd_header_is_refused_and_breaks_nothing() -> None:
    async with listening("k3y") as client:
        assert (await get(client, "/fleet", Authorization="Bearer k\xe9y"))[0] == 401


async def test_what_does_not_exist_is_not_told_without_the_key() -> None:
    async with listening("k3y") as client:
        assert (await get(client, "/nothing"))[0] == 401
        assert (await get(client, "/nothing", Authorization="Bearer k3y"))[0] == 404


async def test_health_is_open() -> None:
    async with listening("k3y") as client:
        assert await get(client, "/healthz") == (200, b'{\n  "status": "ok"\n}')
        assert (await get(client, "/readyz"))[0] == 200


async def test_without_a_key_nobody_is_asked() -> None:
    async with listening() as client:
        assert (await get(client, "/fleet"))[0] == 200
        assert (await get(client, "/metrics"))[0] == 200


async def test_not_ready_says_why() -> None:
    async with listening(reason="shutting down") as client:
        status, body = await get(client, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "shutting down"})
        assert (await get(client, "/healthz"))[0] == 200  # alive all the same
        view = json.loads((await get(client, "/fleet"))[1])
        assert view["not_ready_reason"] == "shutting down"


async def test_the_fleet_view_has_what_is_steered() -> None:
    async with listening() as client:
        await post(client, "/servers/a/cordon", {"X-Actor": "ann@desk"})
        view = json.loads((await get(client, "/fleet"))[1])
    sections = {"servers", "sources", "models", "findings", "store"}
    sections |= {"breakers", "steering", "config", "model_control"}
    assert view.pop("limits")["rules"] == []
    assert view.pop("admission") == {"mode": "off"}
    assert view.keys() == {"not_ready_reason", "workers", *sections}
    (entry,) = view["steering"].pop("audit")
    assert entry == {
        "at": "now",
        "command": "cordon",
        "by": "ann@desk from 127.0.0.1",
        "server": "a",
        "changed": True,
    }
    nothing: dict[str, Any] = {"blocks": [], "disabled": []}
    assert view["steering"] == {"cordoned": ["a"], **nothing, "survives_restart": False}


@pytest.mark.parametrize(
    ("actor", "by"),
    [
        (None, "127.0.0.1"),
        ("", "127.0.0.1"),
        ("a" * 200, "a" * 100 + " from 127.0.0.1"),
        ("caf\xe9", "café from 127.0.0.1"),
        ("tab\there", "127.0.0.1"),
    ],
)
async def test_who_asked_is_noted_with_the_address(actor: str | None, by: str) -> None:
    headers = {} if actor is None else {"X-Actor": actor}
    async with listening() as client:
        assert (await post(client, "/servers/a/cordon", headers))[1]["by"] == by


async def test_one_server_can_be_looked_at() -> None:
    async with listening() as client:
        view = json.loads((await get(client, "/fleet"))[1])
        status, body = await get(client, "/servers/b")
    assert (status, json.loads(body)) == (200, view["servers"][1])


async def test_names_may_hold_any_character() -> None:
    async with listening() as client:
        status, done = await post(client, "/models/with%2Fslash/block?version=1&server=b")
    assert (status, done["model"], done["version"], done["server"]) == (200, "with/slash", 1, "b")


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "error"),
    [
        ("GET", "/servers/x", 404, "unknown_name", "there is no server 'x'"),
        ("GET", "/explain?model=x", 404, "unknown_name", "there is no model 'x'"),
        ("GET", "/explain?request_id=x", 404, "unknown_name", "request 'x' is not among"),
        ("GET", "/explain", 400, "invalid", "name a model or a request_id"),
        ("GET", "/explain?model=m&version=9", 404, "unknown_name", "has no version 9; it has 1"),
        ("POST", "/servers/x/cordon", 404, "unknown_name", "there are a, b, c"),
        ("POST", "/models/x/block", 404, "unknown_name", "there are m, with/slash"),
        ("POST", "/models/m/unblock", 404, "unknown_name", "no block 'm', nor any other"),
        ("POST", "/breakers/reset?server=x", 404, "unknown_name", "there is no server 'x'"),
        *(
            ("POST", f"/models/m/block?version={text}", 400, "invalid", "is not a version number")
            for text in ("", "0", "-1", "1.0", "x", "%D9%A1", 2**63, "0" * 30 + "1", "9" * 5000)
        ),
    ],
)
async def test_refusals_are_for_people_and_for_programs(
    method: str, path: str, status: int, code: str, error: str
) -> None:
    async with listening() as client, client.request(method, path) as answer:
        body = json.loads(await answer.read())
    assert (answer.status, body.keys(), body["code"]) == (status, {"error", "code"}, code)
    assert error in body["error"]


async def test_the_largest_version_is_one() -> None:
    async with listening() as client:
        status, done = await post(client, f"/models/m/block?version={2**63 - 1}")
    assert (status, done["version"]) == (200, 2**63 - 1)


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://evil.example", 403), ("null", 403), ("http://{own}", 200), (None, 200)],
)
async def test_pages_of_other_sites_cannot_steer(origin: str | None, status: int) -> None:
    async with listening() as client:
        own = str(client._base_url).removeprefix("http://").rstrip("/")
        headers = {} if origin is None else {"Origin": origin.format(own=own)}
        assert (await post(client, "/servers/a/cordon", headers))[0] == status
        view = json.loads((await get(client, "/fleet"))[1])
    assert view["steering"]["cordoned"] == (["a"] if status == 200 else [])


async def test_the_configuration_is_shown_planned_and_refused_with_every_reason() -> None:
    async with listening() as client:
        assert json.loads((await get(client, "/fleet"))[1])["config"] == {"hash": "abc"}
        assert json.loads((await get(client, "/config/plan"))[1]) == {"to": "def"}
        status, refusal = await post(client, "/config/reload", {"X-Actor": "ann"})
        assert (status, refusal) == (
            422,
            {
                "error": "f:1: one; f:2: ann from 127.0.0.1",
                "code": "refused",
                "problems": ["f:1: one", "f:2: ann from 127.0.0.1"],
            },
        )
        assert (await client.post("/config/plan")).status == 405


async def test_a_load_is_begun_and_can_be_watched() -> None:
    async with listening() as client:
        status, begun = await post(client, "/models/x/load?server=b&server=a", {"X-Actor": "ann"})
        assert (status, begun["id"], begun["by"]) == (200, "op1", "ann from 127.0.0.1")
        assert [step["server"] for step in begun["servers"]] == ["a", "b"]
        ended = json.loads((await get(client, "/operations/op1"))[1])
        assert ended["state"] == "done"
        seen = json.loads((await get(client, "/fleet"))[1])["model_control"]
        assert seen == {"operations": [ended], "replay": None}
        body = b'{"parameters":{"unload_dependents":true}}'
        status, begun = await post(client, "/models/m/unload", body=body)
        assert (status, begun["command"]) == (200, "unload")
        assert [step["server"] for step in begun["servers"]] == ["a"], "where it is placed"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/models/x/load", b"", 400, "name servers, or declare the model's placement"),
        ("/models/x/load?server=z", b"", 404, "there is no server 'z'"),
        ("/models/m/load", b"[]", 400, "not an object"),
        ("/models/m/unload", b'{"parameters":{"unload_dependents":1}}', 400, "a boolean"),
    ],
)
async def test_a_load_that_cannot_be_begun_is_refused(
    path: str, body: bytes, status: int, text: str
) -> None:
    async with listening() as client:
        answered, said = await post(client, path, body=body)
        assert answered == status
        assert text in said["error"]
        assert (await get(client, "/operations/op1"))[0] == 404
