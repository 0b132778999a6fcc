"""Usage over reloads, while it is not wanted, and while the store cannot be asked."""

import asyncio
from typing import Any

import pytest

from tests.fakes.proxy import TcpProxy
from tests.fakes.triton import FakeTriton
from tests.redis_server import RedisServer
from tests.reloading import Reloading, config_of
from tests.serving import Serving, serving, until

COMPUTE_S = 0.25


@pytest.fixture(autouse=True)
def computing(fake: FakeTriton) -> None:
    fake.models["echo"].compute_s = COMPUTE_S


async def used(gateway: Serving) -> dict[str, Any]:
    """Return what callers, all of them anonymous, have used of the one model."""
    gateway.gateway.flush()
    tenants = (await gateway.ops("/usage")).json["tenants"]
    if not tenants:
        return {"requests": 0, "compute_seconds": 0}
    ((name, (model,)),) = [(row["tenant"], row["models"]) for row in tenants]
    assert (name, model["model"]) == ("anonymous", "echo")
    return dict(model)


async def charged(gateway: Serving, requests: int) -> None:
    """Wait until the time of so many requests has been shared out."""
    async with asyncio.timeout(10):
        while (found := await used(gateway))["compute_seconds"] != requests * COMPUTE_S:
            gateway.watcher.broken("a")  # have it probed at once
            await asyncio.sleep(0.01)
    assert found["requests"] == requests


async def test_a_reload_changes_nothing_about_what_was_used(
    one: Reloading, fake: FakeTriton
) -> None:
    gateway = one.gateway
    for _ in range(3):
        assert (await gateway.infer()).status == 200
    await charged(gateway, 3)
    assert (await gateway.infer()).status == 200
    config = config_of({"a": fake}, usage={"enabled": False}, retries={"max_attempts": 1})
    reply = await one.reload(config)
    assert [change["key"] for change in reply.json["needs_restart"]] == ["usage.enabled"]
    await charged(gateway, 4)  # the old core has served what the new one asks the server about
    assert (await gateway.infer()).status == 200
    await charged(gateway, 5)
    metrics = await one.metrics()
    labels = '{model="echo",tenant="anonymous"}'
    assert metrics[f"triton_gateway_usage_requests_total{labels}"] == 5
    assert metrics[f"triton_gateway_usage_compute_seconds_total{labels}"] == 5 * COMPUTE_S


async def test_where_it_is_not_wanted_nothing_is_counted(fake: FakeTriton) -> None:
    async with serving({"a": fake}, usage={"enabled": False}) as gateway:
        await gateway.infer()
        reply = await gateway.ops("/usage")
        assert (reply.status, reply.json["code"]) == (400, "invalid")
        assert "`usage.enabled` is false" in reply.json["error"]
        assert b"gateway_usage" not in (await gateway.ops("/metrics")).body


async def test_without_its_store_it_is_kept_and_told_later(
    fake: FakeTriton, redis_server: RedisServer
) -> None:
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    redis = {
        "url": f"redis://127.0.0.1:{proxy.port}",
        "namespace": f"usage-{proxy.port}",
        "timeout_s": 0.5,
    }
    try:
        async with serving({"a": fake}, redis=redis) as gateway:
            store = gateway.cores.view().store
            await until(lambda: store.down_reason() is None)
            await proxy.stop()
            await gateway.infer()
            gateway.gateway.flush()
            reply = await gateway.ops("/usage")
            assert (reply.status, reply.json["code"]) == (503, "store_down")
            labels = '{model="echo",tenant="anonymous"}'
            page = (await gateway.ops("/metrics")).body.decode()
            assert f"triton_gateway_usage_requests_total{labels} 1.0" in page
            await proxy.start(redis_server.port)
            await until(lambda: store.down_reason() is None)
            assert (await used(gateway))["requests"] == 1
        async with serving({"a": fake}, redis=redis) as gateway:
            store = gateway.cores.view().store
            await until(lambda: store.down_reason() is None)
            assert (await used(gateway))["requests"] == 1
    finally:
        await proxy.close()
