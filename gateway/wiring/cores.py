"""The one reference to the core in force, through which the shell reaches it.

Cores that another one has replaced are kept here until the last request on them has ended.
"""

from typing import Any

from gateway.edge.api import Api
from gateway.exchange import Exchange
from gateway.ports import CoreView
from gateway.wiring.core import Core


class Cores:
    """The core in force, and those that still drain. See also `gateway.lifecycle.Watcher`.

    The first one must be put in `current` before anything is asked.
    """

    current: Core

    def __init__(self) -> None:
        self.draining: list[Core] = []

    def api(self) -> Api:
        """Return what answers a request that begins now."""
        return self.current.api

    def view(self) -> CoreView:
        """Return what operators look at and steer now."""
        return self.current.view

    def ops_key(self) -> str | None:
        """Return the key operators need now."""
        return self.current.ops_key

    def observe(self, exchange: Exchange) -> None:
        """Write the line of a settled request; see `gateway.ports.Observer`."""
        self.current.request_log.observe(exchange)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event, in the way the configuration in force wants it."""
        self.current.logger.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that an operator should look at."""
        self.current.logger.warning(event, **fields)

    def busy(self) -> int:
        """Count what has to end first: requests, and calls on servers nobody waits for."""
        cores = [self.current, *self.draining]
        loads = [load for core in cores for load in core.view.pool.loads.values()]
        return sum(core.api.in_flight for core in cores) + sum(load.detached for load in loads)

    def cut_off(self) -> None:
        """End every request under way."""
        for core in (self.current, *self.draining):
            core.api.cut_off()

    def start(self) -> None:
        """Start to watch the fleet."""
        self.current.watcher.start()

    async def first_pass(self) -> None:
        """Wait until every server was probed once."""
        await self.current.watcher.first_pass()

    async def stop(self) -> None:
        """Stop watching and close the connections."""
        for core in (self.current, *self.draining):
            await core.watcher.stop()
