"""Break-glass: limits and authentication switched off for a while, seen from every side."""

import uuid
from typing import Any

import pytest

from gateway import switchboard
from tests.clients import ask, request
from tests.fakes.proxy import TcpProxy
from tests.fakes.triton import FakeTriton
from tests.operators import Done, operate
from tests.redis_server import RedisServer
from tests.serving import Serving, environment, serving, until
from tests.tenants import KEYS, WRONG, bearer, sections
from tests.wire.test_ops import metrics

LIMITS = {"slow": {"per_minute": 1, "burst": 1}}
FOR = ("--for", "30m")


async def run(gateway: Serving, *words: str) -> Done:
    return await operate(*words, ops_port=gateway.ops_port)


async def statuses(gateway: Serving, count: int = 3, **headers: str) -> list[int]:
    return [(await gateway.infer(**headers)).status for _ in range(count)]


def logged(gateway: Serving, name: str) -> list[dict[str, Any]]:
    """Return the events of a name, without their times."""
    found = gateway.events(name)
    return [
        {k: v for k, v in event.items() if k not in ("timestamp", "until", "since")}
        for event in found
    ]


async def test_limits_are_off_for_their_time_and_everybody_can_see_it(fake: FakeTriton) -> None:
    async with serving({"a": fake}, limits=LIMITS) as gateway:
        assert await statuses(gateway) == [200, 429, 429]
        done = await run(gateway, "disable", "limits", *FOR, "--reason", "acme is locked out")
        assert (done.code, done.err) == (
            0,
            "warning: forgotten at a restart: steering.state_file is not set\n",
        )
        assert done.out.startswith("limits: off until ")
        assert done.out.endswith(", on this host\n")
        replies = [await gateway.infer() for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert "ratelimit" not in replies[0].headers
        found = await metrics(gateway)
        assert found["triton_gateway_limit_decisions_total", "slow", "observed"] == 3
        off = [found["triton_gateway_feature_disabled", f] for f in ("limits", "auth", "admission")]
        assert off == [1, 0, 0]
        (row,) = (await gateway.ops("/fleet")).json["steering"]["disabled"]
        assert (row["feature"], row["reason"]) == ("limits", "acme is locked out")
        text = (await run(gateway, "fleet")).out
        assert "\nSWITCHED OFF\n  limits until 2" in text
        assert "disable, feature limits, until 2" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 80
        assert (await run(gateway, "enable", "limits")).out == "limits: on again, on this host\n"
        assert (await run(gateway, "enable", "limits")).out == "limits: was not switched off\n"
        assert await statuses(gateway, 1) == [429]
        assert (await metrics(gateway))["triton_gateway_feature_disabled", "limits"] == 0
        (began,) = logged(gateway, "feature disabled")
        assert (began["reason"], began["feature"]) == ("acme is locked out", "limits")
        (ended,) = logged(gateway, "feature enabled")
        assert ended["by"] == ended["was_disabled_by"] == began["by"]


async def test_it_ends_by_itself(fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "FOLLOW_S", 0.05)
    async with serving({"a": fake}, limits=LIMITS) as gateway:
        assert await statuses(gateway) == [200, 429, 429]
        assert (await run(gateway, "disable", "limits", "--for", "1s")).code == 0
        assert 200 in await statuses(gateway, 1)
        await until(lambda: bool(gateway.events("feature enabled")))
        assert await statuses(gateway, 1) == [429]
        assert logged(gateway, "feature enabled")[0]["by"] == "the end of its time"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("limits", "--for", "25h"), "--for: '25h' - it must be more than nothing and at most 24h"),
        (("limits", "--for", "soon"), "--for: 'soon' is no time"),
        (("limits", *FOR, "--reason", "a\nb"), "--reason: the reason must be one line"),
        (("limits",), "Missing option '--for'"),
        (("everything", *FOR), "'everything' is not one of"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_asked(
    words: tuple[str, ...], said: str
) -> None:
    done = await operate("disable", *words, ops_port=1)
    assert done.code == 2
    assert said in done.err


async def test_over_rest_it_is_asked_for_completely(gateway: Serving) -> None:
    async def post(path: str) -> tuple[int, str]:
        reply = await ask(gateway.ops_port, request("POST", path))
        return reply.status, reply.json.get("error", "")

    missing = "say for how long, as in ?duration=30m; at most 24h"
    assert await post("/features/limits/disable") == (400, missing)
    assert (await post("/features/limits/disable?duration=0s"))[0] == 400
    assert (await post("/features/limits/disable?duration=1m&reason=%07"))[0] == 400
    assert await post("/features/all/disable?duration=1m") == (
        404,
        "there is no feature 'all'; there are admission, auth, limits",
    )
    assert (await post("/features/admission/disable?duration=1m"))[0] == 200
    assert (await gateway.ops("/features/admission/enable")).status == 405


async def test_without_authentication_models_are_open_and_nothing_else_is(fake: FakeTriton) -> None:
    restricted = [{"apis": ["statistics"], "header": "X-Key", "key": {"env": "STATS"}}]
    shut = [
        ("POST", "/v2/repository/models/echo/load"),
        ("POST", "/v2/repository/models/echo/unload"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/models/echo/trace/setting"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
    ]
    config = sections() | {
        "api": {"restricted": restricted},
        "ops": {"key": {"env": "OPS"}},
        # Under `enforce` these do not count; with authentication off they must not either.
        "model_control": {"enabled": True},
        "server_settings": {"enabled": True},
    }
    key = {"TRITON_GATEWAY_OPS_KEY": "0ps-key"}
    with environment(STATS="secret-1", OPS="0ps-key"):
        async with serving({"a": fake}, **config) as gateway:
            callers = [{}, bearer(WRONG), bearer(KEYS["late"]), bearer(KEYS["b"])]
            assert [(await gateway.infer(**who)).status for who in callers] == [401, 401, 401, 404]
            refused = await run(gateway, "disable", "auth", *FOR)
            assert (refused.code, "wants its key" in refused.err) == (1, True)
            done = await operate("disable", "auth", *FOR, ops_port=gateway.ops_port, env=key)
            assert done.code == 0, done.err
            assert [(await gateway.infer(**who)).status for who in callers] == [200] * 4
            for who in callers:
                for method, path in shut:
                    reply = await gateway.ask(request(method, path, b"{}", who))
                    assert (reply.status, reply.error) == (403, "this needs the scope 'admin'")
                stats = await gateway.ask(request("GET", "/v2/models/stats", headers=who))
                assert stats.status == 403
            assert (await gateway.ops("/fleet")).status == 401
            load = request(
                "POST", "/v2/repository/models/echo/load?server=a", b"{}", bearer(KEYS["admin"])
            )
            assert (await gateway.ask(load)).status == 200
            gateway.gateway.flush()
            page = await gateway.ops("/metrics", {"Authorization": "Bearer 0ps-key"})
            counted = [
                line.rpartition(" ")[0].partition("{")[2]
                for line in page.body.decode().splitlines()
                if line.startswith("triton_gateway_auth_refusals_total{")
            ]
            assert 'mode="observe",reason="unknown_key",tenant="unknown"}' in counted
            assert 'mode="enforce",reason="scope",tenant="anonymous"}' in counted
            done = await operate("enable", "auth", ops_port=gateway.ops_port, env=key)
            assert done.code == 0
            assert [(await gateway.infer(**who)).status for who in callers] == [401, 401, 401, 404]


async def test_observed_authentication_stays_as_it_is(fake: FakeTriton) -> None:
    async with serving(
        {"a": fake}, **sections("observe"), model_control={"enabled": True}
    ) as gateway:
        load = request("POST", "/v2/repository/models/echo/load?server=a", b"{}", bearer(WRONG))
        assert (await gateway.ask(load)).status == 200
        assert (await run(gateway, "disable", "auth", *FOR)).code == 0
        assert (await gateway.ask(load)).status == 200


# --- over gateways


async def test_every_gateway_that_shares_a_redis_follows(
    fake: FakeTriton, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that do not, in another namespace, go on as before."""
    monkeypatch.setattr(switchboard, "FOLLOW_S", 0.1)
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    url = f"redis://127.0.0.1:{proxy.port}"
    shared = {"limits": LIMITS, "redis": {"url": url, "namespace": uuid.uuid4().hex}}
    other = {"limits": LIMITS, "redis": {"url": url, "namespace": uuid.uuid4().hex}}
    try:
        async with (
            serving({"a": fake}, **shared) as one,
            serving({"a": fake}, **shared) as two,
            serving({"a": fake}, **other) as stranger,
        ):
            for gateway in (one, two, stranger):
                store = gateway.cores.current.view.store
                await until(lambda store=store: store.down_reason() is None)
            assert await statuses(one, 2) == [200, 429]
            assert await statuses(stranger, 2) == [200, 429]
            done = await run(one, "disable", "limits", *FOR)
            assert done.err == ""
            assert done.out.endswith(", on every gateway of the fleet\n")
            await until(lambda: bool(two.events("feature disabled")))
            assert await statuses(two) == [200] * 3
            left_ms = redis_server.ask(
                "PTTL", f"{{{shared['redis']['namespace']}}}:1:disabled:limits"
            )
            assert isinstance(left_ms, int)
            assert 0 < left_ms <= 30 * 60 * 1000
            await proxy.stop()
            await until(lambda: two.cores.current.view.store.down_reason() is not None)
            assert await statuses(two) == [200] * 3
            alone = await run(two, "enable", "limits")
            assert alone.out == "limits: on again, on this host\n"
            assert "warning: on this host only; other gateways follow when" in alone.err
            assert 429 in await statuses(two)
            assert await statuses(one) == [200] * 3
            await proxy.start(redis_server.port)
            await until(lambda: bool(one.events("feature enabled")))
            assert await statuses(one, 2) == [429, 429]
            assert await statuses(stranger, 1) == [429]
            assert stranger.events("feature disabled") == []
    finally:
        await proxy.close()
