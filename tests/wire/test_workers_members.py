"""Servers that come and go while several worker processes answer requests."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.clients import ask, infer
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.operators import operate
from tests.workers import BACK_S, Workers, until


def write(path: Path, **servers: FakeTriton) -> None:
    rows = [{"name": name, "grpc": server.address} for name, server in servers.items()]
    other = path.with_suffix(".new")
    other.write_text(yaml.safe_dump(rows))
    other.replace(path)


class Clients:
    """Clients that ask until they are told to stop, each time over a connection of its own."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.failures: list[Exception] = []
        self._port = port
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(4)]

    async def _ask(self) -> None:
        while True:
            try:
                self.statuses[(await ask(self._port, infer())).status] += 1
            except (OSError, EOFError) as error:
                self.failures.append(error)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def asked(gateway: Workers, server: str) -> set[int]:
    """Return the workers that have sent something to a server."""
    return {
        event["worker"]
        for event in gateway.events()
        if event["event"] == "request" and event.get("server") == server
    }


async def _has(gateway: Workers, *names: str) -> bool:
    view: dict[str, Any] = await gateway.get("/fleet")
    return {row["name"] for row in view["servers"]} == set(names)


async def test_a_server_that_comes_serves_through_both_workers_and_one_that_goes_through_none(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    path = tmp_path / "servers.yaml"
    write(path, a=fake)
    source = {"name": "f", "file": {"path": str(path), "interval_s": 0.05}}
    config = {
        **configuration({}, balancing={"slow_start_s": 0}, fleet={"statistics_interval_s": 0.1}),
        "discovery": [{**source, "removal_grace_s": 0, "max_removed_share": 1.0}],
        "workers": 2,
    }
    gateway = Workers(config, tmp_path)
    await gateway.begin()
    clients = Clients(gateway.api_port)
    try:
        write(path, a=fake, b=other)

        async def both_ask(server: str) -> bool:
            return asked(gateway, server) == {0, 1}

        await until(lambda: both_ask("b"), BACK_S)
        write(path, b=other)
        await until(lambda: _has(gateway, "b"), BACK_S)
        before = fake.infer_started
        sent = clients.statuses.total()
        await until(lambda: _sent(clients, sent + 100), BACK_S)
        assert fake.infer_started == before
        await _a_new_worker_has_what_was_found(gateway, other)
        write(path, a=fake, b=other)  # it comes back to workers that have forgotten it
        await until(lambda: _asked(fake, before), BACK_S)
    finally:
        await clients.stop()
        await gateway.end()
    assert (set(clients.statuses), clients.failures) == ({200}, [])
    assert [e for e in gateway.events() if e["event"] in ("worker ended", "finding")] == []


async def _sent(clients: Clients, count: int) -> bool:
    return clients.statuses.total() >= count


async def _asked(fake: FakeTriton, before: int) -> bool:
    return fake.infer_started > before


async def _a_new_worker_has_what_was_found(gateway: Workers, server: FakeTriton) -> None:
    done = await operate("restart", ops_port=gateway.ops_port)
    assert (done.code, done.err) == (0, "")
    before = server.infer_started
    await until(lambda: _asked(server, before), BACK_S)
