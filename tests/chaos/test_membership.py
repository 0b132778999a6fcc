"""Real Tritons that join and leave a gateway under load: nobody notices but the servers."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.chaos.fleet import RealFleet
from tests.chaos.load import WHOAMI, Load, sleep
from tests.gateways import GatewayProcess

SHORT = pytest.param(1.0, id="short")
LONG = pytest.param(5.0, id="long", marks=pytest.mark.accept)
BOTH = pytest.mark.parametrize("slow_start_s", [SHORT, LONG])


class Listed:
    """A gateway whose servers stand in a file."""

    def __init__(self, fleet: RealFleet, folder: Path, slow_start_s: float) -> None:
        folder.mkdir()
        self._fleet = fleet
        self._file = folder / "servers.yaml"
        source = {
            "name": "list",
            "file": {"path": str(self._file), "interval_s": 0.05},
            "removal_grace_s": 0,
        }
        config = {
            **fleet.config("a", balancing={"slow_start_s": slow_start_s}, discovery=[source]),
            "servers": [],
        }
        self.gateway = GatewayProcess(config, folder)

    def write(self, *names: str) -> None:
        """Let these be the servers."""
        servers = [{"name": name, "grpc": self._fleet[name].grpc_address} for name in names]
        other = self._file.with_suffix(".new")
        other.write_text(yaml.safe_dump(servers))
        other.replace(self._file)

    async def names(self) -> set[str]:
        return {row["name"] for row in (await asyncio.to_thread(self.gateway.fleet))["servers"]}

    async def left_with(self, *names: str) -> float:
        """Wait until these servers are left; return when that was, in the loop's seconds."""
        async with asyncio.timeout(10):
            while await self.names() != set(names):
                await asyncio.sleep(0.05)
        return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def listed(
    fleet: RealFleet, folder: Path, slow_start_s: float, *names: str
) -> AsyncIterator[Listed]:
    servers = Listed(fleet, folder, slow_start_s)
    servers.write(*names)
    try:
        await asyncio.to_thread(servers.gateway.start)
        yield servers
    finally:
        stopped = await asyncio.to_thread(servers.gateway.stop)
    assert stopped == 0
    assert not [event for event in servers.gateway.events() if "exception" in event]


@BOTH
async def test_a_server_that_is_named_long_before_it_listens_costs_no_request(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> None:
    """Of the new ones, b does not listen yet and c has not loaded the model."""
    os.kill(fleet["b"].pid, signal.SIGKILL)
    await fleet.unload("c", "whoami")
    async with (
        listed(fleet, folder, slow_start_s, "a") as servers,
        Load(servers.gateway.api_port, [WHOAMI]) as load,
    ):
        await load.sent(50)
        added_s = load.now_s
        servers.write("a", "b", "c")
        await asyncio.sleep(1.5)
        assert await servers.names() == {"a", "b", "c"}
        assert set(load.answered_by(added_s)) == {"a"}
        await fleet.load("c", "whoami")
        await fleet.restart("b")
        await load.even(["a", "b", "c"], within_s=10 + slow_start_s)
    assert load.failures() == []


@BOTH
async def test_a_server_that_is_removed_costs_no_request_and_ends_what_it_has(
    fleet: RealFleet, folder: Path, slow_start_s: float
) -> None:
    async with listed(fleet, folder, slow_start_s, "a", "b") as servers:
        async with Load(servers.gateway.api_port, [WHOAMI, sleep(3)]) as load:
            await load.even(["a", "b"])
            servers.write("a")
            removed_s = await servers.left_with("a") + 0.1
            await asyncio.sleep(1.0)
            assert set(load.answered_by(removed_s)) == {"a"}
            servers.write("a", "b")
            await load.even(["a", "b"], within_s=10 + slow_start_s)
            servers.write("a")
            await servers.left_with("a")
            await load.sent(10)
        assert load.failures() == []
        metrics = (await asyncio.to_thread(servers.gateway.ops, "/metrics")).decode()
        assert 'server="a"' in metrics
        assert 'server="b"' not in metrics
