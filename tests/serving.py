"""A gateway in the loop of the test, in front of scripted Tritons, with its log at hand."""

import asyncio
import contextlib
import io
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from unittest import mock

from gateway.edge.api import Api
from gateway.edge.listener import Listener
from gateway.observe.logs import LibraryLogs, make_logger
from gateway.upstream.watcher import FleetWatcher
from routing.pool import Pool
from tests import clients
from tests.clients import Reply
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import InnerGateway, configuration, inner_gateway

POLL_S = 0.005
SHED_TIMES = ("1", "2", "3")
"""What callers that are shed may be told to wait, in seconds."""


def fake_triton(*models: str, server_id: str = "fake", version: str = "2.58.0") -> FakeTriton:
    """Make a scripted Triton of echoing models."""
    echoing = (FakeModel(model_config(name)) for name in models or ("echo",))
    return FakeTriton(*echoing, server_id=server_id, version=version)


class Serving:
    """A running gateway, and ways to talk to it and look into it."""

    def __init__(self, inner: InnerGateway, log: io.BytesIO) -> None:
        self.port = inner.port
        self.ops_port = int(inner.ops_url.rpartition(":")[2])
        self.gateway = inner.gateway
        self.cores = inner.cores
        self._log = log

    @property
    def api(self) -> Api:
        return self.cores.current.api

    @property
    def connections(self) -> int:
        """How many connections of clients are open."""
        server = cast(Listener, self.gateway.api)._server
        return len(server.connections) if server else 0

    @property
    def pool(self) -> Pool:
        return self.cores.current.view.pool

    @property
    def watcher(self) -> FleetWatcher:
        return self.cores.current.watcher

    async def ask(self, data: bytes) -> Reply:
        """Send one request to the API over a connection of its own."""
        return await clients.ask(self.port, data)

    async def infer(self, model: str = "echo", **headers: str) -> Reply:
        """Send one inference request; underscores in names of headers become dashes."""
        return await self.ask(clients.infer(model, None, **headers))

    async def ops(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return await clients.ask(self.ops_port, clients.request("GET", path, headers=headers))

    async def fleet(self, server: str = "a") -> dict[str, Any]:
        """Return what the ops listener shows of one server."""
        rows = (await self.ops("/fleet")).json["servers"]
        return next(row for row in rows if row["name"] == server)

    def up(self, server: str = "a") -> bool:
        return self.watcher.snapshot.servers[server].up

    def held(self, server: str = "a") -> tuple[int, int, int]:
        """Return the calls, rows and detached calls on a server."""
        load = self.pool.loads[server]
        return load.calls, load.rows, load.detached

    @property
    def idle(self) -> bool:
        loads = self.pool.loads
        return self.api.in_flight == 0 and all(self.held(name) == (0, 0, 0) for name in loads)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return what was logged so far, by the gateway and by libraries."""
        self.gateway.flush()
        found = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [event for event in found if name in (None, event["event"])]

    @property
    def tracebacks(self) -> list[dict[str, Any]]:
        """What went wrong inside the gateway.

        grpc.aio has one poller a process: it may hand this loop the end of a call that an earlier
        test has left behind, and fails as that one's loop is closed.
        """
        found = [event for event in self.events() if "exception" in event]
        return [event for event in found if "PollerCompletionQueue" not in event["event"]]


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition on the state of a gateway holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def serving(
    servers: Mapping[str, FakeTriton | str], **sections: Any
) -> AsyncIterator[Serving]:
    """Run a gateway in front of scripted Tritons (or plain addresses) until the block ends."""
    addresses = {
        name: server if isinstance(server, str) else server.address
        for name, server in servers.items()
    }
    async with serving_config(configuration(addresses, **sections)) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def serving_config(config: Mapping[str, Any] | Path) -> AsyncIterator[Serving]:
    """Run a gateway with a whole configuration, or from a file or folder of one."""
    log = io.BytesIO()
    with _library_logs(log):
        async with inner_gateway(config, log) as inner:
            yield Serving(inner, log)


@contextlib.contextmanager
def _library_logs(log: io.BytesIO) -> Any:
    """Route what libraries log as `serve` does."""
    root = logging.getLogger()
    logger = make_logger(json=True, level="warning", stream=log)
    handler = LibraryLogs(lambda: logger)
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextlib.contextmanager
def no_diagnosis() -> Iterator[None]:
    """Keep gateways from examining servers, which makes connections and calls of its own."""

    async def watch(_: object) -> None:
        await asyncio.Event().wait()

    with mock.patch("gateway.upstream.doctor.Doctor.watch", watch):
        yield


@contextlib.contextmanager
def environment(**values: str) -> Any:
    """Set environment variables that a configuration takes secrets from."""
    with mock.patch.dict(os.environ, values):
        yield
