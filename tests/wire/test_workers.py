"""Several worker processes behind one port: their lives, and what operators see of them.

All tests share one host, and leave it as it was: two workers that are ready.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching

from tests.clients import Reply, ask, infer, request
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.operators import operate
from tests.serving import fake_triton
from tests.workers import BACK_S, Workers, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fake() -> AsyncIterator[FakeTriton]:
    batching = ModelDynamicBatching(priority_levels=3)
    async with fake_triton("echo", "limited") as server:
        server.models["echo"].config.dynamic_batching.CopyFrom(batching)
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    fake: FakeTriton, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Workers]:
    limits = {"slow": {"per_minute": 1, "burst": 1, "models": ["limited"]}}
    config = configuration(
        {"a": fake.address},
        model_control={"enabled": True},
        limits=limits,
        tiers={"low": {"priority_class": "sheddable"}},
        tenants={"acme": {"tier": "low"}},
    )
    running = Workers({**config, "workers": 2}, tmp_path_factory.mktemp("host"))
    await running.begin()
    try:
        yield running
    finally:
        fake.models["echo"].release()
        await running.end()


async def test_both_serve_and_operators_see_one_host(gateway: Workers, fake: FakeTriton) -> None:
    before = await gateway.metric("triton_gateway_requests_total")
    replies = await gateway.everywhere(infer(X_Request_Id="mine"))
    assert {reply.status for reply in replies} == {200}
    rows = await gateway.workers()
    assert [(row["slot"], row["state"]) for row in rows] == [(0, "ready"), (1, "ready")]
    assert all(row["resident_bytes"] > 10_000_000 for row in rows)

    async def logged() -> bool:
        lines = [event for event in gateway.events() if event.get("request_id") == "mine"]
        return len(lines) == 40 and {line["worker"] for line in lines} == {0, 1}

    await until(logged)
    assert await gateway.metric("triton_gateway_requests_total") == before + 40
    assert await gateway.metric("triton_gateway_server_up") == 1
    assert await gateway.metric("triton_gateway_workers_ready") == 2
    view = await gateway.get("/fleet")
    assert [row["slot"] for row in view["workers"]] == [0, 1]
    assert {channel["worker"] for channel in view["servers"][0]["channels"]} == {0, 1}
    past = await gateway.get("/explain?request_id=mine")
    assert (past["outcome"], past["attempts"][0]["server"]) == ("ok", "a")
    now = await gateway.get("/explain?model=echo")
    assert [row["server"] for row in now["candidates"]] == ["a"]
    await _only_the_supervisor_probes(gateway, fake)
    await _what_is_under_way_is_added_up(gateway, fake)


async def _only_the_supervisor_probes(gateway: Workers, fake: FakeTriton) -> None:
    await gateway.everywhere(infer(), 4)
    before = fake.calls["ModelStatistics"]
    began_s = asyncio.get_running_loop().time()
    await fake.until(lambda: fake.calls["ModelStatistics"] >= before + 4)
    # The probes of one prober, which watches a new server closely, are 0.4 to 0.6 s apart.
    assert asyncio.get_running_loop().time() - began_s > 1.2


async def _what_is_under_way_is_added_up(gateway: Workers, fake: FakeTriton) -> None:
    before = fake.infer_started
    fake.models["echo"].hang()
    asking = [asyncio.create_task(ask(gateway.api_port, infer())) for _ in range(20)]
    await fake.until(lambda: fake.infer_started == before + 20)
    server = await gateway.get("/servers/a")
    assert server["in_flight_calls"] == 20
    assert sum(row["requests_in_flight"] for row in await gateway.workers()) == 20
    assert await gateway.metric("triton_gateway_server_in_flight_calls") == 20
    fake.models["echo"].release()
    assert {reply.status for reply in await asyncio.gather(*asking)} == {200}
    assert (await gateway.get("/servers/a"))["in_flight_calls"] == 0


async def test_both_know_priority_classes(gateway: Workers, fake: FakeTriton) -> None:
    named = infer(X_Request_Id="classed", Triton_Gateway_Class="sheddable")
    before = await gateway.metric("triton_gateway_class_requests_total")
    assert {reply.status for reply in await gateway.everywhere(named)} == {200}
    assert fake.last_request.parameters["priority"].uint64_param == 3

    async def logged() -> bool:
        lines = [event for event in gateway.events() if event.get("request_id") == "classed"]
        return {(line["worker"], line["class"]) for line in lines} == {
            (0, "sheddable"),
            (1, "sheddable"),
        }

    await until(logged)
    assert await gateway.metric("triton_gateway_class_requests_total") == before + 40
    said = (await gateway.get("/explain?model=echo&tenant=acme"))["priority"]
    assert (said["class"], said["level"], said["levels"]) == ("sheddable", 3, 3)


async def test_commands_reach_every_worker_and_those_that_come_later(gateway: Workers) -> None:
    assert (await operate("servers", "cordon", "a", ops_port=gateway.ops_port)).code == 0
    assert {reply.status for reply in await gateway.everywhere(infer())} == {503}
    (victim, _) = await gateway.pids()
    os.kill(victim, signal.SIGKILL)
    await until(lambda: _not(gateway, victim), BACK_S)
    await gateway.settled()
    assert {reply.status for reply in await gateway.everywhere(infer())} == {503}
    assert (await operate("servers", "uncordon", "a", ops_port=gateway.ops_port)).code == 0
    assert {reply.status for reply in await gateway.everywhere(infer())} == {200}


async def test_what_is_switched_off_is_off_in_every_worker_and_in_those_that_come_later(
    gateway: Workers,
) -> None:
    async def statuses() -> set[int]:
        return {reply.status for reply in await gateway.everywhere(infer("limited"), 20)}

    assert 429 in await statuses()
    words = ("disable", "limits", "--for", "30m", "--reason", "why not")
    assert (await operate(*words, ops_port=gateway.ops_port)).code == 0
    assert await statuses() == {200}
    assert await gateway.metric("triton_gateway_feature_disabled") == 1
    (victim, _) = await gateway.pids()
    os.kill(victim, signal.SIGKILL)
    await until(lambda: _not(gateway, victim), BACK_S)
    await gateway.settled()
    assert await statuses() == {200}
    (row,) = (await gateway.get("/fleet"))["steering"]["disabled"]
    assert (row["feature"], row["reason"]) == ("limits", "why not")
    assert (await operate("enable", "limits", ops_port=gateway.ops_port)).code == 0
    assert 429 in await statuses()
    assert await gateway.metric("triton_gateway_feature_disabled") == 0


async def _not(gateway: Workers, pid: int) -> bool:
    return pid not in await gateway.pids()


async def test_a_lost_server_is_lost_to_all_and_comes_back_to_all(
    gateway: Workers, fake: FakeTriton
) -> None:
    await fake.kill()
    await until(lambda: _is_up(gateway, False))
    assert {reply.status for reply in await gateway.everywhere(infer())} <= {502, 503}
    await fake.start()
    await until(lambda: _is_up(gateway, True))
    await gateway.everywhere(infer(), 10)
    assert {reply.status for reply in await gateway.everywhere(infer())} == {200}


async def _is_up(gateway: Workers, up: bool) -> bool:
    return bool((await gateway.get("/servers/a"))["up"]) is up


async def test_of_a_killed_worker_only_the_open_requests_fail(
    gateway: Workers, fake: FakeTriton
) -> None:
    crashes = await gateway.metric("triton_gateway_worker_crashes_total")
    before = fake.infer_started
    fake.models["echo"].hang()
    asking = [asyncio.create_task(ask(gateway.api_port, infer())) for _ in range(20)]
    await fake.until(lambda: fake.infer_started == before + 20)
    rows = await gateway.workers()
    victim, other = rows[0], rows[1]
    assert victim["requests_in_flight"] > 0 < other["requests_in_flight"]
    os.kill(victim["pid"], signal.SIGKILL)
    began_s = asyncio.get_running_loop().time()
    await until(lambda: _in_flight(gateway, other["requests_in_flight"]), 2.0)
    # What arrives while there is one worker less is served, by the other or the new one.
    fake.models["echo"].release()
    assert {reply.status for reply in await gateway.everywhere(infer())} == {200}
    print(f"served {asyncio.get_running_loop().time() - began_s:.2f} s after the kill")
    done = await asyncio.gather(*asking, return_exceptions=True)
    failed = [each for each in done if not isinstance(each, Reply) or each.status != 200]
    assert len(failed) == victim["requests_in_flight"]
    await gateway.settled()
    assert (await gateway.workers())[0]["generation"] == victim["generation"] + 1
    *_, event = [event for event in gateway.events() if event["event"] == "worker ended"]
    assert (event["slot"], event["reason"]) == (0, "killed by signal 9")
    assert await gateway.metric("triton_gateway_worker_crashes_total") == crashes + 1


async def _in_flight(gateway: Workers, count: int) -> bool:
    return int((await gateway.get("/servers/a"))["in_flight_calls"]) == count


async def test_a_restart_by_command_replaces_both(gateway: Workers) -> None:
    rows = await gateway.workers()
    done = await operate("restart", ops_port=gateway.ops_port)
    assert (done.code, done.err) == (0, "")
    assert done.out == "1 of 2 workers replaced\n2 of 2 workers replaced\n"
    after = await gateway.workers()
    assert not {row["pid"] for row in rows} & {row["pid"] for row in after}
    assert [row["generation"] for row in after] == [row["generation"] + 1 for row in rows]


async def test_models_are_loaded_by_the_supervisor_whichever_worker_is_asked(
    gateway: Workers, fake: FakeTriton
) -> None:
    load = request("POST", "/v2/repository/models/echo/load?server=a")
    refused = await ask(gateway.api_port, request("POST", "/v2/repository/models/no/load"))
    assert refused.status == 400
    before = fake.calls["RepositoryModelLoad"]
    assert {reply.status for reply in await gateway.everywhere(load, 10)} == {200}
    assert fake.calls["RepositoryModelLoad"] == before + 10
    operations = (await gateway.get("/fleet"))["model_control"]["operations"]
    assert {(row["model"], row["state"]) for row in operations} == {("echo", "done")}
