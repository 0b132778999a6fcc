"""Calls that may not be cancelled: how long they are waited for, and what bounds them."""

import asyncio
from typing import Any

import grpc
import pytest

from tests.clients import Connection, infer, request
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import SHED_TIMES, Serving, fake_triton, serving, serving_config, until

QUICK = {"statistics_interval_s": 0.05, "statistics_timeout_s": 0.2, "silent_probes": 2}


async def hang_up(gateway: Serving, fake: FakeTriton, count: int = 1) -> None:
    """Let clients leave while their calls hang on the server."""
    fake.models["echo"].hang()
    started = fake.infer_started
    connections = [await Connection.open(gateway.port) for _ in range(count)]
    for connection in connections:
        connection.send(infer())
    await fake.until(lambda: fake.infer_started == started + count)
    for connection in connections:
        connection.reset()
    await until(lambda: gateway.api.in_flight == 0)


async def test_they_carry_no_deadline_that_could_cancel_them(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}) as gateway:
        unsafe.models["echo"].hang()
        assert (await gateway.infer(X_Request_Timeout_Ms="50")).status == 504
        await asyncio.sleep(0.2)
        assert unsafe.infer_cancelled == 0
        assert gateway.held() == (1, 1, 1)
        unsafe.models["echo"].release()
        await until(lambda: gateway.idle)


async def test_a_safe_server_knows_the_deadline_too(safe: FakeTriton) -> None:
    left: list[float] = []
    original = safe._enter

    async def enter(method: str, context: Any) -> None:
        if method == "ModelInfer":
            left.append(context.time_remaining())
        await original(method, context)

    safe._enter = enter  # type: ignore[method-assign]
    async with serving({"a": safe}) as gateway:
        await gateway.infer(X_Request_Timeout_Ms="5000")
    assert 4 < left[0] < 5.1  # gRPC rounds up


async def test_they_are_counted_on_the_metrics_page_and_in_the_log(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}) as gateway:
        await hang_up(gateway, unsafe, 3)
        lines = gateway.events("request")
        assert [line["detached"] for line in lines] == [True] * 3
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'triton_gateway_server_detached_calls{server="a"} 3.0' in page
        assert 'triton_gateway_detached_calls_total{server="a"} 3.0' in page
        unsafe.models["echo"].release()
        await until(lambda: gateway.idle)
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'triton_gateway_server_detached_calls{server="a"} 0.0' in page


async def test_at_the_bound_a_server_gets_no_new_ones(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}, upstream={"max_detached_calls": 3}) as gateway:
        await hang_up(gateway, unsafe, 3)
        reply = await gateway.infer()
        assert reply.status == 503
        assert reply.headers["retry-after"] in SHED_TIMES
        assert reply.error == "every server that holds the model is saturated"
        assert unsafe.infer_started == 3
        ready = request("GET", "/v2/models/echo/ready")
        assert (await gateway.ask(ready)).status == 200  # full is not gone
        unsafe.models["echo"].release()
        await until(lambda: gateway.idle)
        assert (await gateway.infer()).status == 200


async def test_the_other_servers_take_over_from_a_full_one() -> None:
    async with fake_triton(version="2.51.0") as a, fake_triton(version="2.51.0") as b:
        servers = {"a": a, "b": b}
        async with serving(servers, upstream={"max_detached_calls": 2}) as gateway:
            a.models["echo"].hang()
            connections = [await Connection.open(gateway.port) for _ in range(20)]
            for connection in connections:
                connection.send(infer())
            await until(lambda: a.infer_started + b.infer_started == 20)
            for connection in connections:
                connection.reset()
            await until(lambda: gateway.api.in_flight == 0)
            started = a.infer_started
            assert gateway.held("a")[2] == started >= 2
            assert {(await gateway.infer()).status for _ in range(10)} == {200}
            assert a.infer_started == started
            a.models["echo"].release()
            await until(lambda: gateway.idle)


async def test_they_are_waited_for_no_longer_than_configured(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}, upstream={"detached_max_s": 0.2}) as gateway:
        await hang_up(gateway, unsafe)
        assert gateway.held() == (1, 1, 1)
        await until(lambda: gateway.held() == (0, 0, 0), 1.0)
        assert unsafe.infer_cancelled == 0  # given up, not cancelled
        unsafe.models["echo"].release()
        await unsafe.until(lambda: unsafe.infer_finished == 1)
        await until(lambda: gateway.watcher.states("a")[0]["in_flight"] == 0)
        assert gateway.held() == (0, 0, 0)  # and not given back twice


async def test_they_are_given_up_with_a_server_that_goes_silent(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}, fleet=QUICK) as gateway:
        await hang_up(gateway, unsafe, 2)
        unsafe.proxy.freeze()
        await until(lambda: not gateway.up())
        assert gateway.held() == (0, 0, 0)
        assert unsafe.infer_cancelled == 0
        unsafe.proxy.thaw()
        unsafe.models["echo"].release()
        await until(gateway.up)
        assert (await gateway.infer()).status == 200
        await until(lambda: gateway.idle)


async def test_they_end_with_a_server_that_dies(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}, fleet=QUICK) as gateway:
        await hang_up(gateway, unsafe, 2)
        await unsafe.kill()
        await until(lambda: gateway.held() == (0, 0, 0))
        assert gateway.tracebacks == []


async def test_their_errors_are_nobodys(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}) as gateway:
        await hang_up(gateway, unsafe)
        unsafe.models["echo"].error = (grpc.StatusCode.INTERNAL, "too late")
        unsafe.models["echo"].release()
        await until(lambda: gateway.idle)
        assert gateway.tracebacks == []
        assert "too late" not in str(gateway.events())


async def test_the_gateway_waits_for_them_before_it_stops(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}) as gateway:
        await hang_up(gateway, unsafe)
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, unsafe.models["echo"].release)
        began_s = loop.time()
    assert loop.time() - began_s >= 0.3
    assert unsafe.infer_cancelled == 0
    assert unsafe.infer_finished == 1
    assert gateway.events("stopped")[0]["left_behind"] == 0


@pytest.mark.parametrize(
    ("version", "cancel", "cancelled"),
    [
        ("2.58.0", "auto", True),
        ("2.58.0", "never", False),
        ("2.51.0", "auto", False),
        ("2.51.0", "always", True),
        ("odd build", "auto", False),
    ],
)
async def test_the_operator_has_the_last_word(version: str, cancel: str, cancelled: bool) -> None:
    async with fake_triton(version=version) as fake:
        config = configuration({"a": fake.address})
        config["servers"][0]["cancel_upstream"] = cancel
        async with serving_config(config) as gateway:
            await hang_up(gateway, fake)
            if cancelled:
                await fake.until(lambda: fake.infer_cancelled == 1)
                await until(lambda: gateway.held() == (0, 0, 0))
            else:
                assert gateway.held() == (1, 1, 1)
                fake.models["echo"].release()
            await until(lambda: gateway.idle)
            assert fake.infer_cancelled == int(cancelled)


async def test_an_upgraded_server_is_cancelled_on(unsafe: FakeTriton) -> None:
    async with serving({"a": unsafe}, fleet=QUICK) as gateway:
        await unsafe.kill()
        await until(lambda: not gateway.up())
        unsafe.version = "2.58.0"
        await unsafe.start()
        await until(gateway.up)
        await hang_up(gateway, unsafe)
        await unsafe.until(lambda: unsafe.infer_cancelled == 1)
        await until(lambda: gateway.idle)
