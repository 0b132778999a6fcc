"""Rate limits over HTTP: refusals, header fields, metrics, the operators' view and their reset."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests import clients
from tests.fakes.proxy import TcpProxy
from tests.fakes.triton import FakeTriton
from tests.redis_server import RedisServer
from tests.reloading import config_of, reloading
from tests.serving import Serving, fake_triton, serving, until
from tests.tenants import KEYS, bearer, hashed


@pytest.fixture
async def triton():
    async with fake_triton("echo", "other") as triton:
        yield triton


async def ready(gateway: Serving) -> None:
    await until(lambda: {"echo", "other"} <= set(gateway.watcher.snapshot.models))


async def metric(gateway: Serving, name: str) -> list[str]:
    page = (await gateway.ops("/metrics")).body.decode()
    return sorted(line for line in page.splitlines() if line.startswith(f"triton_gateway_{name}"))


async def test_a_caller_over_its_limit_is_told_when_to_come_back(triton: FakeTriton) -> None:
    limits = {"slow": {"per_minute": 6, "burst": 2}, "seats": {"concurrent": 4}}
    async with serving({"a": triton}, limits=limits) as gateway:
        await ready(gateway)
        first = await gateway.infer()
        assert first.status == 200
        assert first.headers["ratelimit-policy"] == (
            '"slow";q=2;w=20, "seats";q=4;qu="concurrent-requests"'
        )
        assert first.headers["ratelimit"] == '"slow";r=1;t=10, "seats";r=3'
        assert "triton-gateway-limits" not in first.headers
        assert not [name for name in first.headers if name.startswith("x-ratelimit")]
        assert (await gateway.infer("other")).headers["ratelimit"].startswith('"slow";r=0;t=20')
        refused = await gateway.infer()
        assert refused.status == 429
        assert refused.error == (
            "limit 'slow' of 6 requests a minute is reached; try again in 10 s"
        )
        assert refused.headers["retry-after"] == "10"
        assert refused.headers["ratelimit"].startswith('"slow";r=0;t=20')
        assert triton.infer_started == 2
        assert await metric(gateway, "limit_decisions_total") == [
            'triton_gateway_limit_decisions_total{limit="seats",outcome="allowed"} 2.0',
            'triton_gateway_limit_decisions_total{limit="slow",outcome="allowed"} 2.0',
            'triton_gateway_limit_decisions_total{limit="slow",outcome="denied"} 1.0',
        ]
        await until(lambda: gateway.cores.current.view.limits.view()["places_held"] == 0)


async def test_requests_that_are_too_large_for_a_limit_are_invalid(triton: FakeTriton) -> None:
    limits = {"small": {"of": "elements", "per_s": 100, "burst": 3}}
    async with serving({"a": triton}, limits=limits) as gateway:
        await ready(gateway)
        reply = await gateway.ask(clients.infer("echo", clients.tensor(1, 2, 3, 4)))
        assert reply.status == 400
        assert reply.error == (
            "limit 'small' lets at most 3 elements of inputs through at once, and this request"
            " has 4; split it"
        )
        assert (await gateway.ask(clients.infer("echo", clients.tensor(1, 2, 3)))).status == 200


async def test_the_older_fields_are_there_where_they_are_wanted(triton: FakeTriton) -> None:
    limits = {"wide": {"per_s": 100}, "slow": {"per_minute": 6, "burst": 2}}
    api = {"older_limit_headers": True}
    async with serving({"a": triton}, limits=limits, api=api) as gateway:
        await ready(gateway)
        headers = (await gateway.infer()).headers
        assert headers["x-ratelimit-limit"] == "2"
        assert headers["x-ratelimit-remaining"] == "1"
        assert headers["x-ratelimit-reset"] == "10"


async def test_what_is_observed_is_counted_and_not_told(triton: FakeTriton) -> None:
    limits = {"tried": {"per_minute": 1, "mode": "observe"}}
    async with serving({"a": triton}, limits=limits) as gateway:
        await ready(gateway)
        replies = [await gateway.infer() for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert "ratelimit" not in replies[0].headers
        assert await metric(gateway, "limit_decisions_total") == [
            'triton_gateway_limit_decisions_total{limit="tried",outcome="allowed"} 1.0',
            'triton_gateway_limit_decisions_total{limit="tried",outcome="observed"} 2.0',
        ]


async def test_operators_see_and_reset_what_a_tenant_has_used(triton: FakeTriton) -> None:
    limits: dict[str, Any] = {
        "slow": {"per_minute": 1},
        "each": {"per_minute": 1, "per": "tenant_model", "models": ["e*"]},
        "all": {"per_minute": 60, "burst": 60, "per": "global"},
        "seats": {"concurrent": 5},
        "theirs": {"per_s": 1, "tenants": ["b*"]},
    }
    async with serving({"a": triton}, limits=limits) as gateway:
        await ready(gateway)
        assert (await gateway.infer()).status == 200
        assert (await gateway.infer()).status == 429

        def run(*words: str) -> list[str]:
            url = f"http://127.0.0.1:{gateway.ops_port}"
            done = CliRunner().invoke(app, ["limits", *words, "--ops", url])
            assert done.exit_code == 0, done.output
            return done.output.splitlines()

        shown = await asyncio.to_thread(run, "show", "anonymous")
        assert [line.partition(", ")[0] for line in shown] == [
            "all: 59 of 60 requests left",
            "each for echo: 0 of 1 requests left",
            "seats: 0 of 5 at a time",
            "slow: 0 of 1 requests left",
        ]
        assert await asyncio.to_thread(run, "reset", "anonymous") == [
            "each: reset",
            "seats: reset",
            "slow: reset",
        ]
        assert (await gateway.infer()).status == 200
        assert "limits reset" in [event["event"] for event in gateway.events()]
        assert await asyncio.to_thread(run, "reset", "b") == [
            "each: reset",
            "seats: reset",
            "slow: reset",
            "theirs: reset",
        ]
        view = (await gateway.ops("/fleet")).json["limits"]
        assert view["decided_by"] == "the shared store"
        assert [rule["name"] for rule in view["rules"]] == sorted(limits)


async def test_there_may_be_no_limits_at_all(triton: FakeTriton) -> None:
    async with serving({"a": triton}) as gateway:
        await ready(gateway)
        assert "ratelimit-policy" not in (await gateway.infer()).headers

        def run(*words: str) -> str:
            url = f"http://127.0.0.1:{gateway.ops_port}"
            return CliRunner().invoke(app, ["limits", *words, "--ops", url]).output

        assert await asyncio.to_thread(run, "show", "x") == "x: no limits\n"
        assert await asyncio.to_thread(run, "reset", "x") == "x: no limits of its own\n"


async def test_what_decides_while_redis_is_down_can_be_seen(
    triton: FakeTriton, redis_server: RedisServer
) -> None:
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    redis = {"url": f"redis://127.0.0.1:{proxy.port}", "namespace": "limits-down"}
    limits = {
        "slow": {"per_minute": 1, "burst": 2, "models": ["echo"]},
        "strict": {"per_s": 100, "models": ["other"], "on_store_failure": "closed"},
    }
    try:
        async with serving({"a": triton}, limits=limits, redis=redis) as gateway:
            await ready(gateway)
            store = gateway.cores.current.view.store
            await until(lambda: store.down_reason() is None)
            assert "triton-gateway-limits" not in (await gateway.infer()).headers
            await proxy.stop()
            await until(lambda: store.down_reason() is not None)
            reply = await gateway.infer()
            assert (reply.status, reply.headers["triton-gateway-limits"]) == (200, "local")
            strict = await gateway.infer("other")
            assert (strict.status, strict.headers["triton-gateway-limits"]) == (503, "closed")
            assert strict.error == "limit 'strict' cannot be checked at the moment"
            assert strict.headers["retry-after"] == "1"
            decided = await metric(gateway, "limited_requests_total")
            assert 'triton_gateway_limited_requests_total{decided_by="local"} 1.0' in decided
            assert 'triton_gateway_limited_requests_total{decided_by="closed"} 1.0' in decided
            view = (await gateway.ops("/fleet")).json["limits"]
            assert view["decided_by"] == "on_store_failure of each rule"
            shown = await gateway.ops("/limits/anonymous")
            assert (shown.status, shown.json["code"]) == (503, "store_down")
            await proxy.start(redis_server.port)
            await until(lambda: store.down_reason() is None)
            assert "triton-gateway-limits" not in (await gateway.infer()).headers
            assert (await gateway.infer()).status == 429  # as before the outage
    finally:
        await proxy.close()


async def test_a_reload_changes_limits_and_forgets_nothing(
    triton: FakeTriton, tmp_path: Path
) -> None:
    def limits(burst: int) -> dict[str, Any]:
        return {"slow": {"per_minute": 1, "burst": burst}}

    async with reloading(tmp_path, {"a": triton}, limits=limits(1)) as running:
        gateway = running.gateway
        await ready(gateway)
        assert [(await gateway.infer()).status for _ in range(2)] == [200, 429]
        new = config_of({"a": triton}, limits=limits(3))
        assert (await running.reload(new)).status == 200
        assert [(await gateway.infer()).status for _ in range(3)] == [200, 200, 429]
        assert await metric(gateway, "limit_decisions_total") == [
            'triton_gateway_limit_decisions_total{limit="slow",outcome="allowed"} 3.0',
            'triton_gateway_limit_decisions_total{limit="slow",outcome="denied"} 2.0',
        ]


async def test_a_lone_client_that_obeys_is_let_in_on_its_next_call(
    triton: FakeTriton, redis_server: RedisServer
) -> None:
    limits = {
        "second": {"per_s": 1, "burst": 2},
        "rows": {"of": "rows", "per_s": 5},
    }
    redis = {"url": redis_server.url, "namespace": "obeys", "timeout_s": 5.0}
    async with serving({"a": triton}, limits=limits, redis=redis) as gateway:
        await ready(gateway)
        refused = 0
        while refused < 2:
            reply = await gateway.infer()
            if reply.status == 429:
                refused += 1
                await asyncio.sleep(int(reply.headers["retry-after"]))
                assert (await gateway.infer()).status == 200


async def test_callers_that_hang_up_are_counted_once_each_and_spoil_nothing(
    triton: FakeTriton, redis_server: RedisServer
) -> None:
    """400 callers of two tenants, Redis 10 ms away each way; every second one leaves after 5 ms."""
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    limits = {
        "tight": {"per_minute": 1, "burst": 3, "tenants": ["a"]},
        "wide": {"per_minute": 6000, "burst": 6000, "tenants": ["b"]},
    }
    redis = {"url": f"redis://127.0.0.1:{proxy.port}", "namespace": "leavers", "timeout_s": 5.0}
    parts = {
        "auth": {"mode": "enforce"},
        "tenants": {name: {"keys": [hashed(name)]} for name in "ab"},
        "redis": redis,
    }
    try:
        async with serving({"a": triton}, limits=limits, **parts) as gateway:
            await ready(gateway)
            store = gateway.cores.current.view.store
            await until(lambda: store.down_reason() is None)
            proxy.delay_s = 0.01

            async def call(tenant: str, leaves: bool) -> tuple[str, int]:
                async with await clients.Connection.open(gateway.port) as connection:
                    connection.send(clients.infer(**bearer(KEYS[tenant])))
                    if not leaves:
                        return tenant, (await connection.reply()).status
                    await asyncio.sleep(0.005)
                    connection.reset()
                    return tenant, 0

            calls = (call("ab"[number // 2 % 2], number % 2 == 1) for number in range(400))
            answers = await asyncio.gather(*calls)
            proxy.delay_s = 0.0
            await until(lambda: gateway.idle)
            assert {status for tenant, status in answers if tenant == "b"} == {0, 200}
            told = [status for tenant, status in answers if tenant == "a" and status]
            assert set(told) <= {200, 429}
            assert told.count(200) <= 3
            lines = [e for e in gateway.events("request") if e["route"] == "infer"]
            gone = {e["request_id"] for e in lines if e["outcome"] == "client_gone"}
            assert len(lines) == 400
            assert len(gone) > 100
            decided = gateway.cores.current.view.limits.decisions()
            a, b = decided["tight", "allowed"], decided["wide", "allowed"]
            assert (a, ("wide", "denied") in decided) == (3, False)
            assert a + decided["tight", "denied"] + b == gateway_decisions(gateway)
            for tenant, count, most in (("a", 3, 3), ("b", b, 6000)):
                shown = (await gateway.ops(f"/limits/{tenant}")).json["quotas"]
                # A minute of "wide" is worked off in less than a second each hundred.
                assert most - count <= shown[0]["remaining"] <= most
                assert tenant == "b" or shown[0]["remaining"] == 0
    finally:
        await proxy.close()


def gateway_decisions(gateway: Serving) -> int:
    return sum(gateway.cores.current.view.limits.sources().values())
