"""Admission over HTTP: who waits, refusals, what operators see, reloads, several workers."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import Connection, infer
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.reloading import config_of, reloading
from tests.serving import Serving, fake_triton, serving, until
from tests.workers import Workers
from tests.workers import until as until_it_is

ENFORCE = {"mode": "enforce", "max_queued": 4, "max_queued_per_tenant": 4}
ONE = {"echo": {"concurrency": 1}}


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    async with fake_triton("echo") as triton:
        triton.models["echo"].hang()
        try:
            yield triton
        finally:
            triton.models["echo"].release()


@contextlib.asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Connection]]:
    connections = [await Connection.open(port) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def queued(gateway: Serving) -> int:
    waiting = gateway.cores.current.view.admission.queued().get("echo", {})
    return sum(waiting.values())


async def ask_in_turn(gateway: Serving, connections: list[Connection]) -> None:
    """Send a request over each; the first is under way, and the others wait in this order."""
    for number, connection in enumerate(connections):
        connection.send(infer(X_Request_Id=f"r{number}"))
        await until(lambda n=number: queued(gateway) == n and gateway.api.in_flight == n + 1)  # type: ignore[misc]


async def metrics(gateway: Serving) -> dict[str, float]:
    gateway.gateway.flush()
    page = (await gateway.ops("/metrics")).body.decode()
    found = re.findall(r"^triton_gateway_admission_(\S+) (\S+)$", page, re.M)
    return {name: float(value) for name, value in found}


def fields(gateway: Serving, request_id: str) -> dict[str, Any]:
    return next(e for e in gateway.events("request") if e["request_id"] == request_id)


async def test_what_waits_is_shown_and_what_is_refused_is_told(triton: FakeTriton) -> None:
    async with (
        serving({"a": triton}, admission=ENFORCE, models=ONE) as gateway,
        connected(gateway.port, 5) as connections,
    ):
        await until(gateway.up)
        await ask_in_turn(gateway, connections)  # standard: 0.9 of four places, so four wait
        refused = await gateway.infer(X_Request_Id="late")
        assert refused.status == 503
        assert refused.error == "too many requests of class 'standard' wait for the model"
        assert refused.headers["retry-after"] in ("1", "2", "3")
        assert triton.infer_started == 1

        view = (await gateway.ops("/fleet")).json["admission"]
        assert view == {
            "mode": "enforce",
            "queued": {"echo": {"standard": 4}},
            "limits": [{"server": "a", "model": "echo", "limit_rows": 1.0, "in_flight_rows": 1}],
        }
        explained = (await gateway.ops("/explain?model=echo")).json
        assert explained["queued"] == {"standard": 4}
        assert [each["limit"] for each in explained["candidates"]] == [1.0]

        triton.models["echo"].release()
        assert [(await each.reply()).status for each in connections] == [200] * 5
        kind, who = 'class="standard"', 'tenant="anonymous"'
        assert await metrics(gateway) == {
            f'decisions_total{{{kind},outcome="passed"}}': 1,
            f'decisions_total{{{kind},outcome="queued"}}': 4,
            f'decisions_total{{{kind},outcome="refused"}}': 1,
            f'tenant_requests_total{{{kind},outcome="queued",{who}}}': 4,
            f'tenant_requests_total{{{kind},outcome="refused",{who}}}': 1,
            f"queued_seconds_total{{{kind}}}": pytest.approx(0, abs=20),
            f'queued{{{kind},model="echo"}}': 0,
            'limit_rows{model="echo",server="a"}': 1,
            'in_flight_rows{model="echo",server="a"}': 0,
        }
        assert fields(gateway, "r1")["admission"] == "queued"
        assert fields(gateway, "r1")["queued_us"] > 0
        assert fields(gateway, "late")["admission"] == "refused"
        assert "admission" not in fields(gateway, "r0")
        past = (await gateway.ops("/explain?request_id=r4")).json
        assert (past["admission"], past["queued_ms"] > 0) == ("queued", True)
        assert gateway.tracebacks == []


async def test_a_caller_that_leaves_while_it_waits_is_never_sent(triton: FakeTriton) -> None:
    async with (
        serving({"a": triton}, admission=ENFORCE, models=ONE) as gateway,
        connected(gateway.port, 3) as connections,
    ):
        await until(gateway.up)
        await ask_in_turn(gateway, connections)
        connections[1].reset()
        await until(lambda: queued(gateway) == 1)
        triton.models["echo"].release()
        assert [(await connections[n].reply()).status for n in (0, 2)] == [200, 200]
        assert triton.infer_started == 2
        assert fields(gateway, "r1")["admission"] == "left"
        await until(lambda: gateway.idle)


async def test_observing_is_the_default_and_holds_nobody_up(triton: FakeTriton) -> None:
    async with (
        serving({"a": triton}) as gateway,
        connected(gateway.port, 4) as connections,
    ):
        await until(gateway.up)
        await until(lambda: bool(gateway.pool.limits()))
        for connection in connections:
            connection.send(infer())
        await triton.until(lambda: triton.infer_started == 4)
        triton.models["echo"].release()
        for connection in connections:
            assert (await connection.reply()).status == 200
        shown = await metrics(gateway)
        assert shown['decisions_total{class="standard",outcome="passed"}'] == 2
        assert shown['decisions_total{class="standard",outcome="would_queue"}'] == 2
        assert shown['limit_rows{model="echo",server="a"}'] == 2, "twice one instance"


async def test_off_shows_nothing(triton: FakeTriton) -> None:
    triton.models["echo"].release()
    async with serving({"a": triton}, admission={"mode": "off"}) as gateway:
        await until(gateway.up)
        assert (await gateway.infer()).status == 200
        assert set(await metrics(gateway)) == set()
        assert (await gateway.ops("/fleet")).json["admission"] == {"mode": "off"}
        assert gateway.pool.limits() == {}


async def test_the_shape_of_a_model_is_read_from_its_configuration() -> None:
    config = model_config("batching", instance_group=[{"count": 3}], max_batch_size=8)
    async with FakeTriton(FakeModel(config)) as triton, serving({"a": triton}) as gateway:
        await until(lambda: bool(gateway.pool.limits()))
        assert {pair: room.limit for pair, room in gateway.pool.limits().items()} == {
            ("a", "batching"): 48
        }


async def test_what_waits_at_a_reload_ends_where_it_began(
    triton: FakeTriton, tmp_path: Path
) -> None:
    servers = {"a": triton}
    async with (
        reloading(tmp_path, servers, admission=ENFORCE) as running,
        connected(running.gateway.port, 5) as connections,
    ):
        gateway = running.gateway
        await until(lambda: bool(gateway.pool.limits()))
        limits = gateway.pool.model("echo").limits
        limits._found[0].rows = 3.0  # found out meanwhile
        limits.fix(None)
        for connection in connections[:4]:
            connection.send(infer())
        await until(lambda: queued(gateway) == 1)
        answer = await running.reload(config_of(servers, admission={**ENFORCE, "max_queued": 9}))
        assert answer.status == 200
        assert queued(gateway) == 0, "the new core has none of them"
        assert gateway.pool.limits()["a", "echo"] == (3.0, 3)
        connections[4].send(infer())
        await until(lambda: queued(gateway) == 1)
        assert triton.infer_started == 3
        triton.models["echo"].release()
        assert [(await each.reply()).status for each in connections] == [200] * 5
        off = await running.reload(config_of(servers, admission={"mode": "off"}))
        assert off.status == 200
        assert (await gateway.infer()).status == 200


async def test_a_limit_that_is_changed_by_a_reload_counts_at_once(
    triton: FakeTriton, tmp_path: Path
) -> None:
    servers = {"a": triton}
    async with (
        reloading(tmp_path, servers, admission=ENFORCE, models=ONE) as running,
        connected(running.gateway.port, 3) as connections,
    ):
        await until(running.gateway.up)
        await ask_in_turn(running.gateway, connections)
        three = {"echo": {"concurrency": 3}}
        await running.reload(config_of(servers, admission=ENFORCE, models=three))
        await triton.until(lambda: triton.infer_started == 3)


async def test_nothing_is_left_behind(triton: FakeTriton) -> None:
    async with (
        serving({"a": triton}, admission=ENFORCE, models=ONE) as gateway,
        connected(gateway.port, 5) as connections,
    ):
        await until(gateway.up)
        await ask_in_turn(gateway, connections)
        for connection in connections[1:]:
            connection.close()
        triton.models["echo"].release()
        assert (await connections[0].reply()).status == 200
        await until(lambda: gateway.idle)
        await asyncio.sleep(0.05)
        assert gateway.pool.model("echo").on_room == ()
        assert triton.infer_started == 1


# --- several workers


async def test_workers_share_the_limit_and_none_waits_for_ever(
    triton: FakeTriton, tmp_path: Path
) -> None:
    config = configuration(
        {"a": triton.address},
        admission={"mode": "enforce"},
        models={"echo": {"concurrency": 4}},
    )
    gateway = Workers({**config, "workers": 2}, tmp_path)
    await gateway.begin()
    try:
        async with connected(gateway.api_port, 24) as connections:
            for connection in connections:
                connection.send(infer())

            async def all_there() -> bool:
                admission = (await gateway.get("/fleet"))["admission"]
                waiting = sum(admission["queued"].get("echo", {}).values())
                (limit,) = [each for each in admission["limits"] if each["model"] == "echo"]
                return bool(waiting + limit["in_flight_rows"] == 24)

            await until_it_is(all_there)
            # One worker may have taken all four before the other had its two.
            assert 4 <= triton.infer_started <= 6
            assert await gateway.metric("triton_gateway_admission_queued") >= 18
            assert await gateway.metric("triton_gateway_admission_limit_rows") == 4
            triton.models["echo"].release()
            assert [(await each.reply()).status for each in connections] == [200] * 24
    finally:
        triton.models["echo"].release()
        await gateway.end()
