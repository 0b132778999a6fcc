"""How a worker ends, and how a host with workers does.

Beginning is the same as for a single process, see `gateway.lifecycle`. Built by wiring.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.edge.shared_listener import SharedListener
from gateway.lifecycle import Gateway, Phase, Readiness, ShutdownTimes, finish
from gateway.ports import Clock
from gateway.workers.supervisor import Supervisor

_LINGER_S = 10.0
_CLOSE_S = 0.02
END_MARGIN_S = 15.0
"""How much longer than its calls a worker may take to end, in seconds."""


@dataclass(slots=True)
class WorkerLife:
    """What has to end in a worker; see `gateway.lifecycle.Gateway`."""

    listener: SharedListener
    readiness: Readiness
    busy: Callable[[], int]
    times: Callable[[], ShutdownTimes]
    clock: Clock
    log: Callable[..., Any]

    def drain(self) -> None:
        """Say that the host is going down, and go on serving."""
        self.readiness.phase = Phase.DRAINING

    async def stop(self) -> int:
        """End because the host goes down; return how many calls are left behind on servers."""
        self.readiness.phase = Phase.DRAINING
        self.listener.stop_accepting()
        return await self._finish()

    async def retire(self) -> int:
        """End because another process has taken over; return as above.

        Clients with an open connection get some time to be told, with an answer, to open a new one.
        A connection closed while a request is on its way to it would be a failed request.
        """
        self.readiness.phase = Phase.REPLACED
        self.listener.stop_accepting()
        await finish(self._open, _LINGER_S, clock=self.clock, log=_say_nothing)
        self.listener.close_idle()
        return await self._finish()

    async def _finish(self) -> int:
        left = await finish(self.busy, self.times().grace_s, clock=self.clock, log=self.log)
        await self.listener.close(timeout_s=_CLOSE_S)
        return left

    def _open(self) -> int:
        return self.listener.connections


@dataclass(slots=True)
class HostGateway(Gateway):
    """A gateway whose API is served by the workers of `supervisor`."""

    supervisor: Supervisor

    async def _stop(self) -> int:
        self.readiness.phase = Phase.DRAINING
        self.supervisor.drain()
        times = self.times()
        self.log("draining", delay_s=times.drain_delay_s)
        await asyncio.sleep(times.drain_delay_s)
        self.supervisor.stop_accepting()
        await self.supervisor.close(timeout_s=times.grace_s + END_MARGIN_S)
        await self.discovery.stop()
        await self.watcher.stop()
        await self.ops.stop()
        await self.store.close()
        self.log("stopped", left_behind=self.supervisor.left)
        return self.supervisor.left


def _say_nothing(*_: object, **__: object) -> None:
    pass
