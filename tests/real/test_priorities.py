"""Priority classes at the real tritonserver, at the sample model with three levels."""

import asyncio
import contextlib
import json
import struct
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.local_triton import LocalTriton
from tests import clients
from tests.conftest import Launch
from tests.serving import Serving, serving, until

PATIENCE_S = 50.0
"""Triton's batcher, when it misses that its instance is free, looks again after half a second."""
BUSY_S, ARRIVE_S = (1.0, 4.0, 12.0), 0.3
FORMS = ("json", "raw", "generate", "generate_stream")


@contextlib.asynccontextmanager
async def classed(server: LocalTriton, **config: Any) -> AsyncIterator[Serving]:
    async with serving({"b": server.grpc_address}, **config) as gateway:
        await until(lambda: "priority" in gateway.watcher.snapshot.models)
        yield gateway


def work(form: str, ms: int, cls: str | None = None, **parameters: int) -> bytes:
    """Write a request for so much work."""
    headers = {"Triton-Gateway-Class": cls} if cls else {}
    if form.startswith("generate"):
        body = json.dumps({"WORK_MS": ms, **parameters}).encode()
        return clients.request("POST", f"/v2/models/priority/{form}", body, headers)
    if form == "raw":
        headers["Inference-Header-Content-Length"] = "0"
        return clients.infer("priority", struct.pack("<i", ms), **headers)
    tensor = {"name": "WORK_MS", "datatype": "INT32", "shape": [1, 1], "data": [ms]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return clients.infer("priority", body, **headers)


async def order(gateway: Serving, data: bytes) -> int:
    """Send a request and return the how-manieth execution it was."""
    async with await clients.Connection.open(gateway.port) as client:
        client.send(data)
        reply = await client.reply(head_only=True)
        assert reply.status == 200
        if reply.headers["content-type"].startswith("text/event-stream"):
            event = await client.reader.readuntil(b"\n\n")
            return int(json.loads(event.partition(b"{")[1] + event.partition(b"{")[2])["ORDER"])
        body = await client.reader.readexactly(int(reply.headers["content-length"]))
        said = reply.headers.get("inference-header-content-length")
        if said is not None:
            return int(struct.unpack("<q", body[int(said) :])[0])
        document = json.loads(body)
        if "ORDER" in document:
            return int(document["ORDER"])
        return int(document["outputs"][0]["data"][0])


async def burst(gateway: Serving, *requests: bytes) -> Sequence[int]:
    """Send all while the server is busy with another one; return their places in the order.

    On a machine that is too slow for that it is tried again, with more time.
    """
    now_s = asyncio.get_running_loop().time
    for busy_s in BUSY_S:
        began_s = now_s()
        busy = asyncio.create_task(order(gateway, work("json", int(busy_s * 1000), priority=1)))
        await until(lambda: gateway.held("b")[0] == 1)
        sent = [asyncio.create_task(order(gateway, data)) for data in requests]
        waiting = 1 + len(sent)
        while gateway.held("b")[0] < waiting and now_s() < began_s + busy_s:
            await asyncio.sleep(0.01)
        in_time = now_s() < began_s + busy_s - ARRIVE_S
        orders = await asyncio.gather(busy, *sent)
        if in_time:
            return orders[1:]
    raise AssertionError("the machine is too slow: not all had to wait")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ANSWER_TIMEOUT_S", PATIENCE_S)


@pytest.mark.parametrize(
    ("low", "middle", "high"),
    [(6, 4, 4), pytest.param(50, 10, 5, id="long", marks=pytest.mark.accept)],
)
async def test_the_more_important_ones_come_first_in_whatever_form(
    triton_b: LocalTriton, low: int, middle: int, high: int
) -> None:
    requests = [
        *(work(FORMS[at % 4], 2, "sheddable") for at in range(low)),
        *(work(FORMS[at % 4], 2) for at in range(middle)),
        *(work(FORMS[at % 4], 2, "critical") for at in range(high)),
    ]
    tenants = {"anonymous": {"max_priority_class": "critical"}}
    async with classed(triton_b, tenants=tenants) as gateway:
        orders = await burst(gateway, *requests)
        assert max(orders[-high:]) < min(orders[low:-high])
        assert max(orders[low:-high]) < min(orders[:low])
        counted = [line["class"] for line in gateway.events("request")[-len(requests) :]]
        assert (counted.count("sheddable"), counted.count("standard")) == (low, middle)


async def test_nobody_gets_ahead_by_asking(triton_b: LocalTriton) -> None:
    tiers = {"anybody": {"priority_class": "sheddable"}}
    tenants = {"anonymous": {"priority_class": "sheddable", "max_priority_class": "standard"}}
    async with classed(triton_b, tiers=tiers, tenants=tenants) as gateway:
        requests = [
            *(work("json", 2, "standard") for _ in range(3)),
            work("json", 2),
            work("json", 2, priority=1),
            work("generate", 2, "critical"),
        ]
        orders = await burst(gateway, *requests)
        assert max(orders) == orders[3]
        assert {line["class"] for line in gateway.events("request")} == {"standard", "sheddable"}


def test_the_check_names_the_models_that_take_no_note(
    triton_b: LocalTriton, tmp_path: Path
) -> None:
    def report(**sections: Any) -> list[dict[str, str]]:
        config = {"servers": [{"name": "b", "grpc": triton_b.grpc_address}], **sections}
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml.safe_dump(config))
        done = CliRunner().invoke(app, ["check", "--config", str(path), "--live", "--json"])
        assert done.exit_code == 0
        found: list[dict[str, str]] = json.loads(done.stdout)["fleet"]
        return found

    assert report() == []
    found = report(priority={})
    assert {one["code"] for one in found} == {"priorities-ignored"}
    messages = " ".join(one["message"] for one in found)
    assert "whoami" in messages
    assert " priority," not in messages
    assert " priority:" not in messages
    limited = {"classes": [{"name": "standard", "queue_timeout_s": 1}]}
    found = report(priority=limited)
    assert {one["code"] for one in found} == {"queue-timeouts-ignored"}
    assert any("priority" in one["message"].partition(":")[0] for one in found)


@pytest.mark.accept
async def test_a_class_waits_no_longer_than_it_may(launch_triton: Launch) -> None:
    server = await asyncio.to_thread(launch_triton, "q", ["priority"])
    await asyncio.to_thread(_let_requests_say_how_long_they_wait, server)
    classes = [
        {"name": "critical"},
        {"name": "standard"},
        {"name": "sheddable", "queue_timeout_s": 0.2},
    ]
    tenants = {"anonymous": {"max_priority_class": "critical"}}
    async with classed(server, priority={"classes": classes}, tenants=tenants) as gateway:
        busy = asyncio.create_task(order(gateway, work("json", 3000)))
        await until(lambda: gateway.held("b")[0] == 1)
        late, patient = await asyncio.gather(
            gateway.ask(work("json", 1, "sheddable")), gateway.ask(work("json", 1, "standard"))
        )
        assert (patient.status, late.status) == (200, 503), late.body
        assert await busy > 0


def _let_requests_say_how_long_they_wait(server: LocalTriton) -> None:
    base = f"http://{server.http_address}/v2"
    with urllib.request.urlopen(f"{base}/models/priority/config", timeout=10) as answer:
        config = json.load(answer)
    policy = config["dynamic_batching"]["default_queue_policy"]
    policy |= {"default_timeout_microseconds": 60_000_000, "allow_timeout_override": True}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    urllib.request.urlopen(f"{base}/repository/models/priority/load", body, timeout=30).close()
