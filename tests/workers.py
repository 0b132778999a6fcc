"""A gateway of two worker processes, and ways to look into it."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from tests.clients import Reply, ask
from tests.gateways import GatewayProcess

SOON_S = 10.0
BACK_S = 20.0


class Workers(GatewayProcess):
    """A gateway of two workers, watched from the loop its scripted server runs in."""

    async def begin(self) -> None:
        await asyncio.to_thread(self.start)

    async def end(self) -> int:
        return await asyncio.to_thread(self.stop)

    async def get(self, path: str) -> Any:
        return json.loads(await asyncio.to_thread(self.ops, path))

    async def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.get("/workers"))["workers"]
        return sorted(rows, key=lambda row: row["slot"])

    async def pids(self) -> list[int]:
        return [row["pid"] for row in await self.workers()]

    async def metric(self, name: str) -> float:
        return total(await asyncio.to_thread(self.ops, "/metrics"), name)

    async def settled(self) -> None:
        """Wait until every slot has one worker, and it is ready."""

        async def done() -> bool:
            return [row["state"] for row in await self.workers()] == ["ready", "ready"]

        await until(done, BACK_S)

    async def everywhere(self, data: bytes, count: int = 40) -> list[Reply]:
        """Send a request over many connections: every worker gets some of them."""
        return list(await asyncio.gather(*(ask(self.api_port, data) for _ in range(count))))


def total(page: bytes, name: str) -> float:
    """Add up the samples of a name."""
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page.decode(), re.M))


async def until(condition: Callable[[], Any], within_s: float = SOON_S) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.02)
