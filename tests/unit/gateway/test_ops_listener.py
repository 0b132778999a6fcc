"""The operators' routes: open health, and a key before everything else."""

import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gateway.ops.listener import OpsListener
from routing.balancing.least_request import LeastRequest
from routing.fleet import FleetSnapshot, FleetTable, ModelRow, ModelVersion
from routing.pool import Pool
from routing.types import Server, State


class Fleet:
    """One server that is up, with a model that failed to load, and one that never answered."""

    def __init__(self) -> None:
        self.table = FleetTable(["a", "b"], quorum=0.5, recently_ready_s=10.0)
        ready, failed = ModelVersion("m", 1), ModelVersion("m", 2)
        self.table.observe_ready("a", [ready], asked_s=0.0, now_s=0.0)
        rows = {failed: ModelRow(State.UNAVAILABLE, "no such file")}
        self.table.observe_index("a", rows, ["only-on-disk"], now_s=0.0)
        self.table.server_up("a", server_id="id-a", triton_version="2.58.0", now_s=0.0)

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def unreachable(self, server: str, reason: str) -> None:
        raise AssertionError

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        raise AssertionError

    def states(self, server: str) -> Iterable[Mapping[str, Any]]:
        return [{"state": "idle", "in_flight": 0}]


@asynccontextmanager
async def listening(
    key: str | None = None, reason: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """An ops listener, and a client whose paths are its own."""
    fleet = Fleet()
    servers = [Server("a", capacity=2.0), Server("b")]
    sock = socket.create_server(("127.0.0.1", 0))
    listener = OpsListener(
        sock,
        registry=CollectorRegistry(),
        fleet=fleet,
        pool=Pool(servers, balancer=LeastRequest(), random=lambda: 0.0, max_detached_calls=9),
        channels=fleet,
        not_ready_reason=lambda: reason,
        key=key,
    )
    await listener.start()
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as client:
            yield client
    finally:
        await listener.stop()


async def get(client: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, bytes]:
    async with client.get(path, headers=headers) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer wrong", 401),
        ("Bearer k3y2", 401),
        ("bearer k3y", 401),
        ("Basic k3y", 401),
        ("k3y", 401),
        ("Bearer k3y", 200),
    ],
)
async def test_the_key_is_asked_for(authorization: str | None, status: int) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with listening("k3y") as client:
        for path in ("/metrics", "/fleet"):
            answered, body = await get(client, path, **headers)
            assert answered == status
            assert b"k3y" not in body


async def test_a_refusal_says_what_is_needed() -> None:
    async with listening("k3y") as client:
        _, body = await get(client, "/fleet")
    assert json.loads(body) == {"error": "this needs the header 'Authorization: Bearer <ops key>'"}


async def test_an_odd_header_is_refused_and_breaks_nothing() -> None:
    async with listening("k3y") as client:
        assert (await get(client, "/fleet", Authorization="Bearer k\xe9y"))[0] == 401


async def test_what_does_not_exist_is_not_told_without_the_key() -> None:
    async with listening("k3y") as client:
        assert (await get(client, "/nothing"))[0] == 401
        assert (await get(client, "/nothing", Authorization="Bearer k3y"))[0] == 404


async def test_health_is_open() -> None:
    async with listening("k3y") as client:
        assert await get(client, "/healthz") == (200, b'{\n  "status": "ok"\n}')
        assert (await get(client, "/readyz"))[0] == 200


async def test_without_a_key_nobody_is_asked() -> None:
    async with listening() as client:
        assert (await get(client, "/fleet"))[0] == 200
        assert (await get(client, "/metrics"))[0] == 200


async def test_not_ready_says_why() -> None:
    async with listening(reason="shutting down") as client:
        status, body = await get(client, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "shutting down"})
        assert (await get(client, "/healthz"))[0] == 200  # alive all the same


async def test_the_fleet_view_has_a_reason_for_everything_that_is_not_ready() -> None:
    async with listening() as client:
        _, body = await get(client, "/fleet")
    view = json.loads(body)
    a, b = view["servers"]
    assert (a["name"], a["up"], a["server_id"], a["triton_version"]) == (
        "a", True, "id-a", "2.58.0",
    )  # fmt: skip
    assert "reason" not in a
    assert a["models"] == [
        {"name": "m", "version": 1, "state": "READY"},
        {"name": "m", "version": 2, "state": "UNAVAILABLE", "reason": "no such file"},
    ]
    assert (a["not_loaded"], a["capacity"]) == (["only-on-disk"], 2.0)
    assert a["channels"] == [{"state": "idle", "in_flight": 0}]
    assert (a["in_flight_calls"], a["in_flight_rows"], a["detached_calls"]) == (0, 0, 0)
    assert (b["up"], b["reason"], b["models"]) == (False, "not probed yet", [])
    assert view["models"] == [
        {"name": "m", "default_version": 1, "versions": {"1": ["a"], "2": []}}
    ]
