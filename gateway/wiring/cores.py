"""The one reference to the core in force, through which the shell reaches it.

Cores that another one has replaced are kept here until the last request on them has ended.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from config.servers import Server
from gateway.control import ControlParts
from gateway.edge.api import Api
from gateway.exchange import Exchange
from gateway.members import Event
from gateway.ports import CoreView
from gateway.tasks import spawn, stop
from gateway.upstream.transport import Upstream
from gateway.wiring.core import Core

_CHECK_INTERVAL_S = 0.1


class Cores:
    """The core in force, and those that still drain. See also `gateway.lifecycle.Watcher`.

    The first one must be put in `current` before anything is asked.
    """

    current: Core

    def __init__(self) -> None:
        self._draining: dict[Core, asyncio.Task[None]] = {}

    @property
    def draining(self) -> list[Core]:
        """The cores that were replaced and are not idle yet, the oldest first."""
        return list(self._draining)

    def api(self) -> Api:
        """Return what answers a request that begins now."""
        return self.current.api

    def view(self) -> CoreView:
        """Return what operators look at and steer now."""
        return self.current.view

    def apply(self, event: Event[Server]) -> None:
        """Take a server in or let one go."""
        self.current.roster.apply(event)

    def has_server(self, name: str) -> bool:
        """Whether there is a server of this name now."""
        return name in self.current.view.pool.loads

    def answers(self, server: str) -> bool:
        """Whether a server answers its probes now."""
        row = self.current.view.fleet.snapshot.servers.get(server)
        return row is not None and row.up

    def control(self) -> ControlParts:
        """Return what commands to load and unload models need now."""
        return self.current.control

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
        # Cores share the loads of the servers they have in common.
        loads = {id(load): load for core in self._all() for load in core.view.pool.loads.values()}
        requests = sum(core.api.in_flight for core in self._all())
        return requests + sum(load.detached for load in loads.values())

    def cut_off(self) -> None:
        """End every request under way."""
        for core in self._all():
            core.api.cut_off()

    def start(self) -> None:
        """Start to watch the fleet."""
        self.current.watcher.start()
        self.current.watcher.start_diagnosis()

    async def first_pass(self) -> None:
        """Wait until every server was probed once."""
        await self.current.watcher.first_pass()

    def replace(self, new: Core) -> None:
        """Put a core, whose watcher was started, in force; requests go on with what they have."""
        old = self.current
        new.take_over(old)
        self.current = new
        new.watcher.start_diagnosis()
        self._draining[old] = spawn(self._drain(old), name="drain what was replaced")

    async def discard(self, core: Core) -> None:
        """End a core that is not in force, or not any more; nothing must be under way on it."""
        await core.watcher.stop()
        for upstream in self._own(core):
            upstream.pool.close_when_idle()

    async def stop(self) -> None:
        """Stop watching and close the connections."""
        await stop(*self._draining.values())
        for core in self._all():
            await core.watcher.stop()
        for upstream in {id(up): up for core in self._all() for up in _upstreams(core)}.values():
            await upstream.pool.close()

    async def _drain(self, core: Core) -> None:
        while not core.is_idle():  # noqa: ASYNC110 - nobody waits for it
            await asyncio.sleep(_CHECK_INTERVAL_S)
        await self.discard(core)
        del self._draining[core]

    def _own(self, core: Core) -> list[Upstream]:
        """Return the connections no other core uses."""
        used = {id(up) for other in self._all() if other is not core for up in _upstreams(other)}
        return [upstream for upstream in _upstreams(core) if id(upstream) not in used]

    def _all(self) -> list[Core]:
        return [self.current, *self._draining]


def _upstreams(core: Core) -> Collection[Upstream]:
    return core.upstreams.values()
