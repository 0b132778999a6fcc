"""Streams that end too early: no client may take them for whole."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.clients import Connection
from tests.conftest import Launch
from tests.gateways import GatewayProcess, configuration
from tests.serving import Serving, serving, until
from tests.streams.sse import Reader, indices, stream_request, stream_url

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

LOST = "the connection to the server was lost during the request"
SHUT_DOWN = "the gateway was shut down"
PLAN = {"COUNT": 400, "DELAY_MS": 25}


@asynccontextmanager
async def reading(url: str, body: dict[str, Any], *, count: int = 1) -> AsyncIterator[list[Reader]]:
    """Read streams: a little of each before the block, and to their ends when it is over."""
    readers = [Reader(url, body) for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.run())
        await until(lambda: all(len(reader.events) >= 3 for reader in readers))
        yield readers


async def test_a_server_that_is_killed(launch_triton: Launch, tmp_path: Path) -> None:
    """Every client is told, and can take what it has for no whole answer. Nothing is retried."""
    a: LocalTriton = await asyncio.to_thread(launch_triton, "cut-a", ["stream"])
    b: LocalTriton = await asyncio.to_thread(launch_triton, "cut-b", ["stream"])
    servers = {"a": a.grpc_address, "b": b.grpc_address}
    with GatewayProcess(configuration(servers), tmp_path) as gateway:
        url = stream_url(gateway.url)
        curl = _curl(url) if shutil.which("curl") else None
        old = await Connection.open(gateway.api_port)
        old.send(stream_request(PLAN, "HTTP/1.0"))
        async with reading(url, PLAN, count=8) as readers:
            await old.reader.readuntil(b"data: ")
            a.kill()
            b.kill()
        with pytest.raises(ConnectionResetError):
            await old.reader.read()
        old.close()
        if curl is not None:
            out, _ = await asyncio.to_thread(curl.communicate)
            assert curl.returncode != 0
            assert LOST.encode() in out
    for reader in readers:
        assert isinstance(reader.error, aiohttp.ClientPayloadError)
        *answers, last = reader.events
        assert last == {"error": LOST}
        assert indices(answers) == list(range(len(answers)))
    lines = [event for event in gateway.events() if event["event"] == "request"]
    assert {(line["outcome"], line["status"], line["attempts"]) for line in lines} == {
        ("broken", 200, 1)
    }


def _curl(url: str) -> subprocess.Popen[bytes]:
    body = '{"COUNT": 400, "DELAY_MS": 25}'
    command = ["curl", "-sN", "--max-time", "20", "-X", "POST", "-d", body, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def test_a_drain_waits_for_streams(triton_a: LocalTriton) -> None:
    plan = {"COUNT": 30, "DELAY_MS": 50}
    async with serving({"a": triton_a.grpc_address}) as gateway:
        reading_on = reading(stream_url(f"http://127.0.0.1:{gateway.port}"), plan)
        (reader,) = await reading_on.__aenter__()
        assert gateway.api.in_flight == 1
    await reading_on.__aexit__(None, None, None)
    assert reader.error is None
    assert indices(reader.events) == list(range(30))
    assert [event["outcome"] for event in gateway.events("request")] == ["ok"]


async def test_a_stream_that_outlasts_the_drain_is_cut_off(triton_a: LocalTriton) -> None:
    times = {"drain_delay_s": 0, "grace_s": 0.2}
    async with serving({"a": triton_a.grpc_address}, shutdown=times) as gateway:
        reading_on = reading(stream_url(f"http://127.0.0.1:{gateway.port}"), PLAN)
        (reader,) = await reading_on.__aenter__()
    await reading_on.__aexit__(None, None, None)
    assert isinstance(reader.error, aiohttp.ClientPayloadError)
    assert reader.events[-1] == {"error": SHUT_DOWN}
    assert [event["outcome"] for event in gateway.events("request")] == ["shutdown"]
    assert gateway.tracebacks == []


async def test_a_model_that_pauses_too_long_is_cut_off(triton_a: LocalTriton) -> None:
    limits = {"stream_idle_s": 0.3}
    async with serving({"a": triton_a.grpc_address}, deadlines=limits) as gateway:
        reader = Reader(
            stream_url(f"http://127.0.0.1:{gateway.port}"), {"COUNT": 3, "DELAY_MS": 900}
        )
        await reader.run()
        await until(lambda: gateway.idle)
        assert isinstance(reader.error, aiohttp.ClientPayloadError)
        assert reader.events[-1] == {"error": "the model sent nothing for 0.3 s"}
        assert _work_of_failures(gateway) > 0
    (line,) = gateway.events("request")
    assert (line["outcome"], line["events"]) == ("deadline", 1)


def _work_of_failures(gateway: Serving) -> float:
    loads, place = gateway.pool._books.model("stream"), gateway.pool.loads["a"].place
    return loads.work(place, gateway.watcher._clock())
