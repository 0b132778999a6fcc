"""Looks after the connections of a process that does not probe: are they alive, and to whom.

The supervisor's probes tell of servers, over its own connections; this is about the connections a
worker's requests use. A connection whose other end matters is used only once the server there has
said who it is. One that has gone silent is replaced. A connection that answers costs no call. Built
by wiring.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from gateway.faults import Fault, Kind
from gateway.ports import Clock
from gateway.tasks import spawn, stop
from gateway.upstream.channels import Channel
from gateway.upstream.control import call_method
from gateway.upstream.transport import Upstream
from routing.fleet import FleetSnapshot

_INTERVAL_S = 1.0
_QUIET_S = 5.0
_SILENT_CHECKS = 2


@dataclass(frozen=True, slots=True)
class Kept:
    """One server's connections.

    `last_reply_s` returns when it last answered inference. `expect` is the id it must have, None if
    that does not matter.
    """

    upstream: Upstream
    last_reply_s: Callable[[], float]
    expect: str | None


class ChannelKeeper:
    """Checks the connections to all servers. `snapshot` returns the current picture."""

    def __init__(
        self,
        servers: Mapping[str, Kept],
        *,
        snapshot: Callable[[], FleetSnapshot],
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._servers = dict(servers)
        self._snapshot = snapshot
        self._timeout_s = timeout_s
        self._clock = clock
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, kept: Kept) -> None:
        """Look after one more server."""
        self._servers[kept.upstream.name] = kept
        self.wake()

    def remove(self, server: str) -> None:
        """Look after a server no more."""
        del self._servers[server]

    def wake(self) -> None:
        """Check now instead of at the next interval."""
        self._wake.set()

    async def connect(self) -> None:
        """Connect to every server that is up; what does not work is left to the requests."""
        await asyncio.gather(
            *(
                self._connect(kept, channel)
                for kept in self._servers.values()
                if self._is_up(kept)
                for channel in kept.upstream.pool.channels
            )
        )

    def start(self) -> None:
        """Begin to check."""
        self._task = spawn(self._watch(), name="connections")

    async def stop(self) -> None:
        """Stop checking. The connections stay open."""
        if self._task is not None:
            await stop(self._task)

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            await asyncio.gather(*self._checks())
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _checks(self) -> Iterator[Coroutine[Any, Any, None]]:
        for kept in self._servers.values():
            for channel in kept.upstream.pool.channels:
                if kept.expect is not None and not channel.confirmed:
                    yield self._identify(kept, channel)
                elif self._looks_silent(kept, channel):
                    yield self._check(kept, channel)

    def _looks_silent(self, kept: Kept, channel: Channel) -> bool:
        if channel.state() != "ready":
            return False
        if not self._is_up(kept):
            return True
        quiet_since_s = max(kept.last_reply_s(), channel.answered_s)
        return channel.in_flight > 0 and self._clock() - quiet_since_s > _QUIET_S

    def _is_up(self, kept: Kept) -> bool:
        row = self._snapshot().servers.get(kept.upstream.name)
        return row is not None and row.up

    async def _connect(self, kept: Kept, channel: Channel) -> None:
        await channel.connect()
        if kept.expect is not None:
            await self._identify(kept, channel)

    async def _identify(self, kept: Kept, channel: Channel) -> None:
        channel.confirmed = False
        try:
            said = await call_method(
                kept.upstream,
                "ServerMetadata",
                pb.ServerMetadataRequest(),
                pb.ServerMetadataResponse,
                timeout_s=self._timeout_s,
                channel=channel,
            )
        except Fault:
            return
        channel.confirmed = said.name == kept.expect

    async def _check(self, kept: Kept, channel: Channel) -> None:
        try:
            await call_method(
                kept.upstream,
                "ServerLive",
                pb.ServerLiveRequest(),
                pb.ServerLiveResponse,
                timeout_s=self._timeout_s,
                channel=channel,
            )
        except Fault as fault:
            silent = fault.kind is Kind.DEADLINE
        else:
            silent, channel.answered_s = False, self._clock()
        channel.silent = channel.silent + 1 if silent else 0
        if channel.silent >= _SILENT_CHECKS:
            kept.upstream.give_up_detached(channel)
            kept.upstream.pool.replace(channel)
