"""Priority classes over HTTP: how they are asked for, what reaches servers, what operators see."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching
from typer.testing import CliRunner

from gateway.cli import app
from gateway.upstream import doctor
from tests import clients
from tests.clients import Reply
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.operators import operate
from tests.reloading import config_of, reloading_config
from tests.serving import Serving, serving, until
from tests.tenants import KEYS, bearer, sections

THREE = ModelDynamicBatching(priority_levels=3, default_priority_level=2)
GREEDY: dict[str, Any] = {"priority": {}}


@pytest.fixture
async def ranked() -> AsyncIterator[FakeTriton]:
    """A server with a model of three levels, `echo`, and one without, `plain`."""
    models = (
        FakeModel(model_config("echo", dynamic_batching=THREE)),
        FakeModel(model_config("plain")),
    )
    async with FakeTriton(*models) as server:
        yield server


@contextlib.asynccontextmanager
async def classed(server: FakeTriton, **config: Any) -> AsyncIterator[Serving]:
    async with serving({"a": server}, **config) as gateway:
        await until(lambda: {"echo", "plain"} <= set(gateway.watcher.snapshot.models))
        yield gateway
        assert gateway.tracebacks == []


def told(server: FakeTriton) -> dict[str, int]:
    """The parameters of the last request that reached the server."""
    found = server.last_request.parameters
    return {
        name: value.uint64_param if name == "priority" else value.int64_param
        for name, value in found.items()
    }


def with_parameters(**parameters: Any) -> bytes:
    return json.dumps({**json.loads(clients.tensor(1.5)), "parameters": parameters}).encode()


async def ask(gateway: Serving, *, model: str = "echo", name: str = "", **parameters: Any) -> Reply:
    headers = {"Triton-Gateway-Class": name} if name else {}
    return await gateway.ask(clients.infer(model, with_parameters(**parameters), **headers))


async def metrics(gateway: Serving) -> str:
    gateway.gateway.flush()
    return (await gateway.ops("/metrics")).body.decode()


async def test_nothing_changes_where_nothing_is_configured(ranked: FakeTriton) -> None:
    async with classed(ranked) as gateway:
        assert (await gateway.infer()).status == 200
        assert told(ranked) == {}
        assert (await ask(gateway, priority=3)).status == 200
        assert told(ranked) == {"priority": 3}
        lines = gateway.events("request")
        assert "class" not in lines[0]
        assert lines[1]["class"] == "sheddable"
        assert (await gateway.ops("/explain?model=echo")).json["priority"] is None


@pytest.mark.parametrize("configured", [{}, GREEDY])
async def test_every_form_of_request_may_name_a_class(
    ranked: FakeTriton, configured: dict[str, Any]
) -> None:
    raw = {"Inference-Header-Content-Length": "0"}
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "FP32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                }
            ]
        }
    ).encode()
    forms = [
        ("infer", clients.tensor(1.5), {}),
        ("infer", head + b"1234", {"Inference-Header-Content-Length": str(len(head))}),
        ("infer", b"1234", raw),
        ("generate", b'{"IN": 1.5}', {}),
        ("generate_stream", b'{"IN": 1.5}', {}),
    ]
    async with classed(ranked, **configured) as gateway:
        for route, body, headers in forms:
            named = {**headers, "Triton-Gateway-Class": "sheddable"}
            target = f"/v2/models/echo/{route}"
            async with await clients.Connection.open(gateway.port) as client:
                client.send(clients.request("POST", target, body, named))
                head_only = route == "generate_stream"
                assert (await client.reply(head_only=head_only)).status == 200
            assert told(ranked) == {"priority": 3}
        assert {line["class"] for line in gateway.events("request")} == {"sheddable"}


@pytest.mark.parametrize("configured", [{}, GREEDY])
async def test_what_is_none_is_refused(ranked: FakeTriton, configured: dict[str, Any]) -> None:
    async with classed(ranked, **configured) as gateway:
        reply = await ask(gateway, name="Critical")
        assert (reply.status, reply.error) == (
            400,
            "Triton-Gateway-Class names no priority class; there are critical, standard, sheddable",
        )
        for value in (-1, "high", 1.5, "1", True, None, 2**64):
            assert (await ask(gateway, priority=value)).status == 400
        for level in (4, 2**40):
            reply = await ask(gateway, priority=level)
            assert (reply.status, reply.error) == (
                400,
                "Unable to parse 'parameters.priority': expected an integer from 0 to 3, the"
                " priority levels of the model",
            )
        assert ranked.infer_started == 0
        assert (await ask(gateway, model="plain", priority=4)).status == 200
        assert told(ranked) == {"priority": 4}
        assert (await gateway.infer()).status == 200


async def test_tenants_have_classes_and_ceilings(ranked: FakeTriton) -> None:
    config = sections()
    config["tiers"]["gold"] = {"max_priority_class": "critical"}
    config["tenants"]["b"] |= {"models": ["*"], "priority_class": "sheddable"}
    config["priority"] = {
        "classes": [
            {"name": "critical"},
            {"name": "standard", "queue_timeout_s": 0.5},
            {"name": "sheddable", "queue_timeout_s": 0.2},
        ]
    }

    async def got(key: str, name: str = "", **parameters: Any) -> dict[str, int]:
        headers = bearer(KEYS[key]) | ({"Triton-Gateway-Class": name} if name else {})
        reply = await gateway.ask(clients.infer("echo", with_parameters(**parameters), **headers))
        assert reply.status == 200
        return told(ranked)

    async with classed(ranked, **config) as gateway:
        assert await got("a") == {"priority": 2, "timeout": 500_000}
        assert await got("a", "critical") == {"priority": 1}
        assert await got("a", priority=1) == {"priority": 1}
        assert await got("b") == {"priority": 3, "timeout": 200_000}
        assert await got("b", "critical") == {"priority": 3, "timeout": 200_000}
        assert await got("b", priority=1, timeout=7) == {"priority": 3, "timeout": 7}
        assert gateway.events("request")[-1]["asked_in_vain"] == "lowered: priority 1"
        page = await metrics(gateway)
        assert 'triton_gateway_class_requests_total{class="sheddable",outcome="ok"} 3.0' in page
        assert (
            'triton_gateway_priority_objections_total{mode="enforce",reason="lowered",tenant="b"}'
            " 2.0"
        ) in page


async def test_observed_everybody_gets_what_he_asks_for(ranked: FakeTriton) -> None:
    async with classed(ranked, priority={"mode": "observe"}) as gateway:
        assert (await ask(gateway, priority=1)).status == 200
        assert told(ranked) == {"priority": 1}
        assert (await ask(gateway, priority=9)).status == 200
        assert told(ranked) == {"priority": 9}
        assert (await ask(gateway, name="vital")).status == 200
        page = await metrics(gateway)
        for reason in ("lowered", "out_of_range", "unknown_class"):
            assert f'mode="observe",reason="{reason}",tenant="anonymous"}} 1.0' in page


async def test_a_reload_changes_classes_and_what_is_said_of_models(
    ranked: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LOOK_INTERVAL_S", 0.02)
    quick = {"fleet": {"statistics_interval_s": 0.05}}

    def found(gateway: Serving) -> dict[str, str]:
        return {one["code"]: one["message"] for one in gateway.watcher.findings()}

    async with reloading_config(tmp_path, config_of({"a": ranked}, **quick)) as running:
        gateway = running.gateway
        await until(lambda: "plain" in gateway.watcher.snapshot.models)
        await until(lambda: ranked.calls["ServerReady"] == 1)
        assert found(gateway) == {}
        named = {"priority": {"classes": [{"name": "now"}, {"name": "later"}], "default": "later"}}
        assert (await running.reload(config_of({"a": ranked}, **quick, **named))).status == 200
        assert (await gateway.infer()).status == 200
        assert told(ranked) == {"priority": 3}
        assert (await ask(gateway, name="critical")).error.endswith("there are now, later")
        await until(lambda: "priorities-ignored" in found(gateway))
        assert found(gateway)["priorities-ignored"].startswith("model plain: priority classes")
        (event,) = [e for e in gateway.events("finding") if e["code"] == "priorities-ignored"]
        assert event["fix"].startswith("write `dynamic_batching { priority_levels")
        assert (await running.reload(config_of({"a": ranked}, **quick))).status == 200
        await until(lambda: found(gateway) == {})
        assert (await gateway.infer()).status == 200
        assert told(ranked) == {}


async def test_a_model_that_gets_levels_is_told_of_them(
    ranked: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LOOK_INTERVAL_S", 0.02)
    quick = {"statistics_interval_s": 0.05}

    def ignored() -> bool:
        return any(one["code"] == "priorities-ignored" for one in gateway.watcher.findings())

    async with classed(ranked, priority={}, fleet=quick) as gateway:
        assert (await ask(gateway, model="plain")).status == 200
        assert told(ranked) == {}
        await until(ignored)
        probed = ranked.calls["ModelStatistics"]
        await ranked.until(lambda: ranked.calls["ModelStatistics"] > probed + 5)
        ranked.models["plain"] = FakeModel(
            model_config("plain", dynamic_batching=ModelDynamicBatching(priority_levels=5))
        )
        await until(lambda: not ignored())
        assert (await ask(gateway, model="plain")).status == 200
        assert told(ranked) == {"priority": 3}


async def explained(gateway: Serving, model: str, *options: str) -> str:
    done = await operate("explain", "--model", model, *options, ops_port=gateway.ops_port)
    assert (done.code, done.err) == (0, "")
    return done.out


async def test_explain_shows_the_class_and_level_of_a_tenant(ranked: FakeTriton) -> None:
    tenants = {"acme": {"priority_class": "critical"}}
    async with classed(ranked, tenants=tenants) as gateway:
        text = await explained(gateway, "echo", "--tenant", "acme")
        assert "Tenant acme: class critical, up to critical when asked for;" in text
        assert "level 1 of 3" in " ".join(text.split())
        text = await explained(gateway, "plain")
        assert "Tenant anonymous: class standard" in text
        assert "priority classes make no difference at the servers: no dynamic" in text
        assert max(map(len, text.splitlines())) <= 80
        reply = await gateway.ops("/explain?model=echo&tenant=nobody")
        assert reply.status == 404
        assert reply.json["error"].startswith("there is no tenant 'nobody'; there are acme")
    refused = CliRunner().invoke(app, ["explain", "--request-id", "r", "--tenant", "acme"])
    assert refused.exit_code == 2
