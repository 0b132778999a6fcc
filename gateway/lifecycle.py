"""start -> ready -> drain -> stop, as one ordered list.

Nothing starts anywhere else. `Gateway.run` is the whole life of the process; what the steps do is
built by wiring.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from gateway.ports import Clock
from gateway.tasks import spawn, stop

_CHECK_INTERVAL_S = 0.02
_LOG_INTERVAL_S = 5.0


class Phase(Enum):
    """Where in its life the gateway is; the value says why it is not ready."""

    STARTING = "the first probe of every server is not over yet"
    READY = "ready"
    DRAINING = "shutting down"
    REPLACED = "replaced"  # by another process of this host, which is ready


@dataclass(slots=True)
class Readiness:
    """The phase, shared with everything that reports or depends on it."""

    phase: Phase = Phase.STARTING
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def not_ready_reason(self) -> str | None:
        """Return why the gateway is not ready, or None if it is."""
        return None if self.phase in (Phase.READY, Phase.REPLACED) else self.phase.value

    def draining(self) -> bool:
        """Whether this process is going down."""
        return self.phase in (Phase.DRAINING, Phase.REPLACED)


class ApiListener(Protocol):
    """The listener that applications call."""

    async def start(self) -> None:
        """Begin to accept connections."""

    def stop_accepting(self) -> None:
        """Refuse new connections."""

    async def close(self, *, timeout_s: float) -> None:
        """Close all connections."""


class OpsListener(Protocol):
    """The listener for operators."""

    async def start(self) -> None:
        """Begin to answer."""

    async def stop(self) -> None:
        """Stop answering."""


class Watcher(Protocol):
    """What keeps the picture of the fleet up to date."""

    def start(self) -> None:
        """Start probing."""

    async def first_pass(self) -> None:
        """Wait until every server was probed once."""

    async def stop(self) -> None:
        """Stop probing and close connections."""


class Background(Protocol):
    """What goes on beside requests and need not be waited for."""

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End at once."""


class Store(Protocol):
    """What gateways share state through."""

    async def start(self) -> None:
        """Begin to connect."""

    async def close(self) -> None:
        """Close connections."""


class Discovery(Protocol):
    """What looks for servers that come and go."""

    def start(self) -> None:
        """Begin to look."""

    async def first_answers(self) -> None:
        """Wait until everybody who knows servers was asked once."""

    async def stop(self) -> None:
        """Look no more."""


@dataclass(frozen=True, slots=True)
class ShutdownTimes:
    """How long stopping may take, in seconds."""

    drain_delay_s: float
    grace_s: float


@dataclass(slots=True)
class Gateway:
    """All parts of a running gateway.

    `busy` counts what still has to end before the process may: requests, and calls on servers that
    nobody waits for any more.
    `log` is called with an event and its fields, `flush` tells what is still waiting to be told.
    """

    api: ApiListener
    ops: OpsListener
    watcher: Watcher
    reloader: Background
    store: Store
    switchboard: Background
    discovery: Discovery
    readiness: Readiness
    busy: Callable[[], int]
    times: Callable[[], ShutdownTimes]
    clock: Clock
    log: Callable[..., Any]
    flush: Callable[[], None]

    async def run(self, stopping: asyncio.Event) -> int:
        """Live until `stopping` is set; return the number of calls that had to be left behind."""
        await self.ops.start()
        await self.store.start()
        self.switchboard.start()
        self.watcher.start()
        self.discovery.start()
        await self.api.start()
        first = spawn(self._become_ready(), name="first probe of the fleet")
        self.reloader.start()
        await stopping.wait()
        await stop(first)
        await self.reloader.stop()
        await self.switchboard.stop()
        return await self._stop()

    async def _become_ready(self) -> None:
        await self.discovery.first_answers()
        await self.watcher.first_pass()
        self.readiness.phase = Phase.READY
        self.readiness.ready.set()
        self.log("ready")

    async def _stop(self) -> int:
        self.readiness.phase = Phase.DRAINING
        times = self.times()
        self.log("draining", delay_s=times.drain_delay_s)
        await asyncio.sleep(times.drain_delay_s)  # balancers in front take notice
        self.api.stop_accepting()
        left = await finish(self.busy, times.grace_s, clock=self.clock, log=self.log)
        await self.api.close(timeout_s=_CHECK_INTERVAL_S)
        await self.discovery.stop()
        await self.watcher.stop()
        await self.store.close()
        await self.ops.stop()
        self.flush()
        self.log("stopped", left_behind=left)
        return left


async def finish(
    busy: Callable[[], int], grace_s: float, *, clock: Clock, log: Callable[..., Any]
) -> int:
    """Wait until nothing is under way any more; return what is left after `grace_s`."""
    began_s = told_s = clock()
    while left := busy():
        now_s = clock()
        if now_s - began_s >= grace_s:
            break
        if now_s - told_s >= _LOG_INTERVAL_S:
            told_s = now_s
            log("waiting for calls to end", calls=left)
        await asyncio.sleep(_CHECK_INTERVAL_S)
    return left
