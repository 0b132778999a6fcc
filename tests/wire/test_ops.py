"""The operators' listener beside a running gateway: metrics, health in every phase, the fleet."""

import asyncio
import contextlib
from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.lifecycle import Phase
from tests.clients import Connection, infer, request
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, environment, fake_triton, serving, until


async def metrics(gateway: Serving) -> dict[tuple[str, ...], float]:
    """The samples of the metrics page: name and label values, to value."""
    gateway.gateway.flush()  # settled requests are counted a moment later
    page = (await gateway.ops("/metrics")).body.decode()
    samples: dict[tuple[str, ...], float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            values = [sample.labels[name] for name in sorted(sample.labels)]
            samples[(sample.name, *values)] += sample.value
    return samples


async def test_the_metrics_page_counts_requests_by_what_became_of_them(gateway: Serving) -> None:
    for _ in range(3):
        await gateway.infer()
    await gateway.infer("typed-by-a-client")
    await gateway.ask(infer(body=b"{"))
    await gateway.ask(request("GET", "/also/typed"))
    found = await metrics(gateway)
    name = "triton_gateway_requests_total"
    assert found[name, "echo", "ok", "infer", "1"] == 3
    assert found[name, "", "not_found", "infer", ""] == 1
    assert found[name, "echo", "invalid", "infer", "1"] == 1
    assert found[name, "", "not_found", "unknown", ""] == 1
    assert found["triton_gateway_upstream_attempts_total", "a"] == 3
    assert found["triton_gateway_request_duration_seconds_count", "echo"] == 4
    assert found["triton_gateway_server_up", "a"] == 1
    assert found["triton_gateway_model_ready", "echo", "a", "1"] == 1
    assert not [labels for labels in found if "typed" in " ".join(labels)]


async def test_what_clients_type_never_grows_the_page(gateway: Serving) -> None:
    await gateway.infer()
    await gateway.infer("unknown-0")
    for method in ("GET", "PUT", "BREW"):
        await gateway.ask(request(method, "/v2/x"))
    size = len(await metrics(gateway))
    for number in range(50):
        await gateway.infer(f"unknown-{number}", X_Request_Id=f"r{number}")
        await gateway.ask(infer(version=str(number + 5)))
        await gateway.ask(request(f"M{number}", f"/v2/{number}"))
    assert len(await metrics(gateway)) == size


async def test_work_under_way_is_on_the_page_and_in_the_view(
    gateway: Serving, fake: FakeTriton
) -> None:
    fake.models["echo"].hang()
    asking = asyncio.gather(*(gateway.infer() for _ in range(5)))
    await fake.until(lambda: fake.infer_started == 5)
    found = await metrics(gateway)
    assert found["triton_gateway_server_in_flight_calls", "a"] == 5
    row = await gateway.fleet()
    assert (row["in_flight_calls"], row["in_flight_rows"], row["detached_calls"]) == (5, 5, 0)
    assert sum(channel["in_flight"] for channel in row["channels"]) == 5
    fake.models["echo"].release()
    await asking
    assert (await metrics(gateway))["triton_gateway_server_in_flight_calls", "a"] == 0


async def test_the_page_is_served_in_the_form_prometheus_asks_for(gateway: Serving) -> None:
    reply = await gateway.ops("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")


async def test_while_it_starts_it_is_alive_and_not_ready(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        gateway.gateway.readiness.phase = Phase.STARTING
        reply = await gateway.ops("/readyz")
        assert reply.status == 503
        assert reply.json == {
            "ready": False,
            "reason": "the first probe of every server is not over yet",
        }
        assert (await gateway.ops("/healthz")).json == {"status": "ok"}
        ready = request("GET", "/v2/health/ready")
        assert (await gateway.ask(ready)).status == 400
        gateway.gateway.readiness.phase = Phase.READY
        assert (await gateway.ops("/readyz")).status == 200
        assert (await gateway.ask(ready)).status == 200


async def test_the_first_probe_of_every_server_makes_it_ready(fake: FakeTriton) -> None:
    """A server that never answers holds the gateway up for one probe, not for ever."""
    async with fake_triton() as silent:
        silent.silent.update({"ServerMetadata", "ModelStatistics"})
        fleet = {"statistics_timeout_s": 0.3}
        async with serving({"a": fake, "b": silent}, fleet=fleet) as gateway:
            assert gateway.up("a")
            assert not gateway.up("b")
            assert (await gateway.ops("/readyz")).status == 200


async def test_while_it_drains_it_serves_and_says_so(fake: FakeTriton) -> None:
    running = serving({"a": fake}, shutdown={"drain_delay_s": 0.5, "grace_s": 5})
    gateway = await running.__aenter__()
    connection = await Connection.open(gateway.port)
    assert (await connection.ask(infer())).headers.get("connection") != "close"
    stopping = asyncio.get_running_loop().create_task(running.__aexit__(None, None, None))
    await until(gateway.gateway.readiness.draining)
    reply = await gateway.ops("/readyz")
    assert (reply.status, reply.json) == (503, {"ready": False, "reason": "shutting down"})
    assert (await gateway.ask(request("GET", "/v2/health/ready"))).status == 400
    assert (await gateway.ask(request("GET", "/v2/health/live"))).status == 200
    reply = await connection.ask(infer())
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await connection.ended()
    connection.close()
    await stopping


async def test_after_the_drain_nothing_is_accepted(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        port, ops_port = gateway.port, gateway.ops_port
    for closed in (port, ops_port):
        with pytest.raises(ConnectionRefusedError):
            await Connection.open(closed)
    assert [event["event"] for event in gateway.events()][-2:] == ["draining", "stopped"]


async def test_the_fleet_view_needs_the_key(fake: FakeTriton) -> None:
    with environment(OPS_KEY="0ps"):
        async with serving({"a": fake}, ops={"key": {"env": "OPS_KEY"}}) as gateway:
            assert (await gateway.ops("/fleet")).status == 401
            assert (await gateway.ops("/metrics")).status == 401
            assert (await gateway.ops("/healthz")).status == 200
            assert (await gateway.ops("/readyz")).status == 200
            key = {"Authorization": "Bearer 0ps"}
            assert (await gateway.ops("/fleet", key)).status == 200
            assert (await gateway.ops("/metrics", key)).status == 200
            log = str(gateway.events())
    assert "0ps" not in log


async def test_the_fleet_view_tells_of_every_server_and_model() -> None:
    async with (
        fake_triton("echo", "only-a") as a,
        fake_triton("echo", version="2.51.0") as b,
        serving({"a": a, "b": b}) as gateway,
    ):
        view = (await gateway.ops("/fleet")).json
    assert [(row["name"], row["triton_version"]) for row in view["servers"]] == [
        ("a", "2.58.0"),
        ("b", "2.51.0"),
    ]
    servers = {model["name"]: model["versions"]["1"]["servers"] for model in view["models"]}
    assert servers == {"echo": ["a", "b"], "only-a": ["a"]}
    assert [model["default_version"] for model in view["models"]] == [1, 1]


async def test_a_scraper_that_leaves_breaks_nothing(gateway: Serving) -> None:
    for _ in range(20):
        connection = await Connection.open(gateway.ops_port)
        connection.send(request("GET", "/metrics"))
        await asyncio.sleep(0)
        connection.reset()
    with contextlib.suppress(ConnectionError):
        assert (await gateway.ops("/healthz")).status == 200
    assert gateway.tracebacks == []
