"""generate and generate_stream of a real Triton's models, through the gateway: how answers come."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

import aiohttp
import pytest

from tests.clients import Connection, infer
from tests.gateways import GatewayProcess
from tests.streams.sse import Reader, ask, documents, indices, stream_request, stream_url

DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
PATIENCE_S = 5.0


def count_body(count: int) -> bytes:
    tensor = {"name": "COUNT", "datatype": "INT32", "shape": [1], "data": [count]}
    return json.dumps({"inputs": [tensor]}).encode()


async def logged(gateway: GatewayProcess, request_id: str) -> dict[str, Any]:
    """Wait for the line of a request."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [e for e in gateway.events() if e.get("request_id") == request_id]
            if found:
                return found[-1]
            await asyncio.sleep(0.02)


# --- how often a model answers, and how often the caller wants it to


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_infer_on_a_model_that_answers_many_times_is_refused_at_once(
    real_gateway: GatewayProcess, count: int
) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        await Connection.open(real_gateway.api_port) as connection,
    ):
        reply = await connection.ask(
            infer("stream", count_body(count), X_Request_Id=f"unary-{count}")
        )
    assert (reply.status, reply.error) == (501, DECOUPLED)
    line = await logged(real_gateway, f"unary-{count}")
    assert line["outcome"] == "unsupported"
    assert "attempts" not in line
    servers = (await asyncio.to_thread(real_gateway.fleet))["servers"]
    assert all(server["up"] for server in servers)
    metrics = (await asyncio.to_thread(real_gateway.ops, "/metrics")).decode()
    assert 'triton_gateway_circuits_open{model="stream"' not in metrics


@pytest.mark.parametrize(("count", "expected"), [(0, 400), (1, 200), (3, 400)])
async def test_generate_wants_one_answer(
    real_gateway: GatewayProcess, count: int, expected: int
) -> None:
    url = stream_url(real_gateway.url, route="generate")
    status, (document,) = await ask(url, {"COUNT": count})
    assert status == expected
    if expected == 200:
        assert document["INDEX"] == 0
    else:
        assert document["error"].startswith("generate expects model to produce exactly 1 response")


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_stream_has_as_many_events_as_the_model_answers(
    real_gateway: GatewayProcess, count: int
) -> None:
    status, events = await ask(stream_url(real_gateway.url), {"COUNT": count})
    assert (status, indices(events)) == (200, list(range(count)))


# --- framing


async def test_a_stream_without_events_has_an_empty_body(real_gateway: GatewayProcess) -> None:
    async with await Connection.open(real_gateway.api_port) as connection:
        connection.send(stream_request({"COUNT": 0}))
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await connection.reader.readexactly(5) == b"0\r\n\r\n"
        assert (await connection.ask(infer("echo_FP32"))).status == 200


async def test_every_event_is_a_chunk_of_its_own(real_gateway: GatewayProcess) -> None:
    async with await Connection.open(real_gateway.api_port) as connection:
        connection.send(stream_request({"COUNT": 3}))
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Type: text/event-stream; charset=utf-8\r\n" in head
        assert b"Transfer-Encoding: chunked\r\n" in head
        for index in range(3):
            size = int(await connection.reader.readuntil(b"\r\n"), 16)
            event = await connection.reader.readexactly(size)
            expected = f'{{"INDEX":{index},"model_name":"stream","model_version":"1"}}'
            assert event == b"data: " + expected.encode() + b"\n\n"
            assert await connection.reader.readexactly(2) == b"\r\n"
        assert await connection.reader.readexactly(5) == b"0\r\n\r\n"


async def test_events_come_when_the_model_sends_them(real_gateway: GatewayProcess) -> None:
    url = stream_url(real_gateway.url)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"COUNT": 4, "DELAY_MS": 300}) as response,
    ):
        seen_s = [time.monotonic() async for _ in documents(response)]
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(seen_s)]
    assert len(gaps_s) == 3
    assert min(gaps_s) > 0.15


@pytest.mark.parametrize(
    ("version", "headers", "chunked"),
    [
        ("HTTP/1.0", {}, False),
        ("HTTP/1.0", {"Connection": "keep-alive"}, False),
        ("HTTP/1.1", {"Connection": "close"}, True),
    ],
)
async def test_clients_that_want_the_connection_closed(
    real_gateway: GatewayProcess, version: str, headers: dict[str, str], chunked: bool
) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        await Connection.open(real_gateway.api_port) as connection,
    ):
        connection.send(stream_request({"COUNT": 2}, version, **headers))
        head, _, body = (await connection.reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(f"{version} 200 OK".encode())
    assert b"Connection: close" in head
    assert (b"Transfer-Encoding: chunked" in head) == chunked
    assert body.count(b"data: ") == 2
    assert body.endswith(b"0\r\n\r\n") == chunked


# --- errors


async def test_an_error_in_place_of_the_first_answer_has_a_status(
    real_gateway: GatewayProcess,
) -> None:
    status, events = await ask(stream_url(real_gateway.url), {"COUNT": 10, "ERROR_AT": 0})
    assert (status, events) == (500, [{"error": "asked to fail at response 0"}])


async def test_an_error_behind_the_first_answer_is_an_event_and_a_failure(
    real_gateway: GatewayProcess,
) -> None:
    body = {"COUNT": 10, "ERROR_AT": 3}
    url = stream_url(real_gateway.url)
    status, events = await ask(url, body, **{"X-Request-Id": "fails-later"})
    assert status == 200
    assert events.pop(3) == {"error": "asked to fail at response 3"}
    assert indices(events) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    line = await logged(real_gateway, "fails-later")
    assert (line["outcome"], line["events"], line["attempts"]) == ("failed", 10, 1)


async def test_requests_that_do_not_fit_the_model_are_the_callers_fault(
    real_gateway: GatewayProcess,
) -> None:
    status, (document,) = await ask(stream_url(real_gateway.url), {})
    assert status == 400
    assert "missing required input(s) ['COUNT']" in document["error"]


async def test_a_client_bounds_all_of_a_stream(real_gateway: GatewayProcess) -> None:
    """The time is over in the middle: an event says so, and the body has no regular end."""
    headers = {"X-Request-Timeout-Ms": "700", "X-Request-Id": "too-long"}
    reader = Reader(stream_url(real_gateway.url), {"COUNT": 99, "DELAY_MS": 100}, **headers)
    await reader.run()
    assert isinstance(reader.error, aiohttp.ClientPayloadError)
    *answers, last = reader.events
    assert last == {"error": "the deadline of the request has passed"}
    assert 3 <= len(answers) <= 8
    assert (await logged(real_gateway, "too-long"))["outcome"] == "deadline"


# --- what operators see


async def test_streams_are_measured(real_gateway: GatewayProcess) -> None:
    url = stream_url(real_gateway.url)
    body = {"COUNT": 3, "DELAY_MS": 50}
    status, _ = await ask(url, body, **{"X-Request-Id": "measured"})
    assert status == 200
    line = await logged(real_gateway, "measured")
    assert (line["route"], line["outcome"], line["events"]) == ("generate_stream", "ok", 3)
    assert line["first_event_ms"] < line["duration_ms"] - 80
    assert line["bytes_out"] > 3 * 50
    assert line["stages_us"]["send"] > 80_000
    metrics = (await asyncio.to_thread(real_gateway.ops, "/metrics")).decode()
    labels = 'model="stream",outcome="ok",route="generate_stream",version="1"'
    assert f"triton_gateway_requests_total{{{labels}}}" in metrics
    assert 'triton_gateway_time_to_first_event_seconds_count{model="stream"}' in metrics
    assert 'triton_gateway_stream_events_total{model="stream"}' in metrics
