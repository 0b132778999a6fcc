"""A pool of separate gRPC connections to one server, each made when it is first needed.

A call takes the channel with the fewest calls on it, so one large transfer does not hold up the
small ones. Channels are loop-bound: open them in the loop.
"""

import asyncio
import math
import os
import random
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.tasks import spawn, stop
from gateway.upstream.addresses import split_address
from gateway.upstream.http2.call import Call, Part, StreamCall
from gateway.upstream.http2.connection import NO_CONNECTION, NOT_TAKEN, Connection
from gateway.upstream.http2.headers import literal, request_block, timeout_field
from gateway.upstream.tls import TlsOptions, client_context

Metadata = tuple[tuple[str, str], ...]
OnEnd = Callable[[Call], None]

SERVICE = "/inference.GRPCInferenceService/"
_METADATA_BYTES = 4 * 1024 * 1024  # Triton's error texts (tracebacks) travel in metadata
_IDLE_CHECK_S = 1.0
_BACKOFF_GROWTH = 1.6
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How connections are made. Times in seconds.

    A stock Triton tolerates one keepalive ping in 300 s and answers more with GOAWAY.
    """

    channels: int
    connect_timeout_s: float
    reconnect_backoff_min_s: float
    reconnect_backoff_max_s: float
    keepalive_interval_s: float
    max_reply_bytes: int
    tls: TlsOptions | None = None


class Channel:
    """One connection, made anew whenever it is needed and lost, and how much inference is on it.

    With `identity_matters` no call moves to another connection by itself.
    """

    def __init__(self, target: str, options: ChannelOptions, *, identity_matters: bool) -> None:
        self._target = target
        self._options = options
        self._identity_matters = identity_matters
        self._blocks: dict[tuple[str, Metadata], bytes] = {}
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[Call] = []
        self._leaving: set[Connection] = set()
        self._backoff_s = options.reconnect_backoff_min_s
        self._retry_at_s = 0.0
        self._failure = ""
        self._closed = False
        self.in_flight = 0
        self.silent = 0  # probes in a row that got no answer
        self.losses = 0  # connections that were lost so far
        self.answered_s = -math.inf  # when it last answered a question whether it is alive

    def call(
        self,
        method: str,
        message: Sequence[Part],
        *,
        metadata: Metadata,
        timeout_s: float | None,
        on_end: OnEnd,
        forwarded: Metadata = (),
    ) -> Call:
        """Start a call; never blocks. `timeout_s` is what the server is told, not kept here.

        `metadata` is the same for many calls, `forwarded` this one's own.
        """
        block = self._block(method, metadata)
        if timeout_s is not None:
            block += timeout_field(timeout_s)
        if forwarded:
            block += b"".join(literal(*header) for header in forwarded)
        call = Call(block, message, on_end)
        self._start(call)
        return call

    def stream(
        self,
        method: str,
        message: Sequence[Part],
        *,
        metadata: Metadata,
        on_news: Callable[[], None],
        on_end: OnEnd,
        forwarded: Metadata = (),
    ) -> StreamCall:
        """Start a call with one request and any number of replies; see `call`."""
        block = self._block(method, metadata)
        if forwarded:
            block += b"".join(literal(*header) for header in forwarded)
        call = StreamCall(block, message, on_news=on_news, on_end=on_end)
        self._start(call)
        return call

    @property
    def confirmed(self) -> bool:
        """Whether the server at the end of this very connection has been identified."""
        return self._connection is not None and self._connection.confirmed

    @confirmed.setter
    def confirmed(self, confirmed: bool) -> None:
        if self._connection is not None:
            self._connection.confirmed = confirmed

    def waits_to_reconnect(self) -> bool:
        """Whether the last attempt to connect failed and the next one is not due yet."""
        return self._connection is None and self._connecting is None and self._in_backoff()

    def state(self) -> str:
        """Return the connectivity state in gRPC's words."""
        if self._closed:
            return "shutdown"
        if self._connection is not None:
            return "ready"
        if self._connecting is not None:
            return "connecting"
        return "transient_failure" if self._in_backoff() else "idle"

    async def connect(self) -> None:
        """Connect, and wait until that was tried."""
        if self._connection is None:
            if self._connecting is None and not self._closed:
                self._connecting = spawn(self._connect(), name=f"connect to {self._target}")
            if self._connecting is not None:
                await asyncio.wait([self._connecting])

    async def close(self) -> None:
        """Close the connection; calls on it end at once."""
        self._closed = True
        self._failure = f"{NO_CONNECTION} {self._target}: closed by the gateway"
        if self._connecting is not None:
            await stop(self._connecting)
        for connection in (self._connection, *self._leaving):
            if connection is not None:
                connection.close()
        self._fail_waiting(self._failure)

    def lost(self, connection: Connection) -> None:
        """See `gateway.upstream.http2.connection.Owner`."""
        if connection is self._connection:
            self._connection = None
            self.losses += 1
        self._leaving.discard(connection)
        if not connection.idle:
            self._leaving.add(connection)

    def send_again(self, call: Call) -> None:
        """See `gateway.upstream.http2.connection.Owner`."""
        if self._identity_matters:
            call.fail(
                grpc.StatusCode.UNAVAILABLE,
                f"{NOT_TAKEN} {self._target}: the connection was replaced",
            )
        else:
            self._start(call)

    def _block(self, method: str, metadata: Metadata) -> bytes:
        block = self._blocks.get((method, metadata))
        if block is None:
            block = self._blocks[method, metadata] = request_block(
                path=SERVICE + method,
                authority=self._target,
                tls=self._options.tls is not None,
                metadata=metadata,
            )
        return block

    def _start(self, call: Call) -> None:
        if self._connection is not None:
            self._connection.start(call)
            return
        if self._closed:
            call.fail(grpc.StatusCode.UNAVAILABLE, self._failure)
            return
        if self._connecting is None:
            if self._in_backoff():
                call.fail(grpc.StatusCode.UNAVAILABLE, self._failure)
                return
            self._connecting = spawn(self._connect(), name=f"connect to {self._target}")
        self._waiting = [waiting for waiting in self._waiting if not waiting.ended]
        self._waiting.append(call)

    def _in_backoff(self) -> bool:
        return asyncio.get_running_loop().time() < self._retry_at_s

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                connection = await self._open()
        except TimeoutError:
            self._failed("no answer within the timeout")
        except (OSError, ValueError) as error:
            self._failed(_told(error))
        else:
            self._connecting = None
            self._connection = connection
            self._backoff_s = self._options.reconnect_backoff_min_s
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                if not call.ended:
                    self._start(call)

    async def _open(self) -> Connection:
        host, port = split_address(self._target)
        options = self._options
        context, name = None, None
        if options.tls is not None:
            context, name = client_context(options.tls, ["h2"]), options.tls.server_name or host
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(
                self,
                target=self._target,
                max_reply_bytes=options.max_reply_bytes,
                max_header_bytes=_METADATA_BYTES,
                keepalive_interval_s=options.keepalive_interval_s,
            ),
            host,
            port,
            ssl=context,
            server_hostname=name,
        )
        try:
            await connection.ready
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, reason: str) -> None:
        self._connecting = None
        spread = 1 + _JITTER * (2 * random.random() - 1)
        self._retry_at_s = asyncio.get_running_loop().time() + self._backoff_s * spread
        longest_s = self._options.reconnect_backoff_max_s
        self._backoff_s = min(self._backoff_s * _BACKOFF_GROWTH, longest_s)
        self._failure = f"{NO_CONNECTION} {self._target}: {reason}"
        self._fail_waiting(self._failure)

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fail(grpc.StatusCode.UNAVAILABLE, reason)


class ChannelPool:
    """The connections to one server.

    With `identity_matters` calls go only over connections whose other end the prober confirmed.
    """

    def __init__(
        self, target: str, options: ChannelOptions, *, identity_matters: bool = False
    ) -> None:
        self._identity_matters = identity_matters
        self._target = target
        self._options = options
        self._channels = [self._new() for _ in range(options.channels)]
        self._turn = 0

    @property
    def channels(self) -> Sequence[Channel]:
        """All channels, in a stable order."""
        return self._channels

    def states(self) -> Sequence[Mapping[str, Any]]:
        """Return the state of every channel, and how many calls are on it."""
        return [{"state": c.state(), "in_flight": c.in_flight} for c in self._channels]

    def least_busy(self) -> Channel | None:
        """Return the usable channel with the fewest inference calls on it.

        One that waits to reconnect would fail the call at once; it is taken only if all do. None
        if the server's identity has to be known and is not, on any channel.
        """
        best = min(self._channels, key=_in_flight)
        if self._is_usable(best):
            return best
        usable = [channel for channel in self._channels if self._is_usable(channel)]
        if usable:
            return min(usable, key=_in_flight)
        return None if self._identity_matters else best

    def for_control(self) -> Channel | None:
        """Return the channel for calls that are not inference, None as above.

        A call on a lost connection would bring it back unidentified, and inference after it.
        """
        if not self._identity_matters:
            return self.able_to_connect()[0]
        return next((channel for channel in self._channels if channel.confirmed), None)

    def _is_usable(self, channel: Channel) -> bool:
        if self._identity_matters:
            return channel.confirmed
        return not channel.waits_to_reconnect()

    def able_to_connect(self) -> Sequence[Channel]:
        """Return the channels that do not wait to reconnect, or all of them if all do.

        What such a one says is how its last attempt ended, which may be long ago: while another
        has a connection, that is no news of the server.
        """
        able = [channel for channel in self._channels if not channel.waits_to_reconnect()]
        return able or self._channels

    def next_for_probe(self) -> Channel:
        """Return the channels in turn, so that probes notice each one that went silent."""
        able = self.able_to_connect()
        self._turn += 1
        return able[self._turn % len(able)]

    def replace(self, channel: Channel) -> None:
        """Put a new connection in place of `channel`, which is closed once no call is on it.

        Closing a connection cancels the calls on it, and a cancelled call can crash an old Triton
        that only seemed dead.
        """
        self._channels[self._channels.index(channel)] = self._new()
        spawn(_close_when_idle(channel), name="close a replaced channel")

    def close_when_idle(self) -> None:
        """Close each connection as soon as no call is on it any more."""
        for channel in self._channels:
            spawn(_close_when_idle(channel), name="close a channel out of use")

    async def close(self) -> None:
        """Close every connection that has no call on it.

        The others are left to the end of the process, which is a smaller danger to an old Triton
        than cancelling their calls.
        """
        for channel in self._channels:
            if channel.in_flight == 0:
                await channel.close()

    def _new(self) -> Channel:
        return Channel(self._target, self._options, identity_matters=self._identity_matters)


async def _close_when_idle(channel: Channel) -> None:
    while channel.in_flight:  # noqa: ASYNC110 - rare, and nobody waits for it
        await asyncio.sleep(_IDLE_CHECK_S)
    await channel.close()


def _told(error: Exception) -> str:
    """Return why there is no connection, without asyncio's own words about it."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return str(error)


def _in_flight(channel: Channel) -> int:
    return channel.in_flight
