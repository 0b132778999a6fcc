"""Inference over gRPC: start a call, wait for it, and let go of it without harm.

Cancelling a unary call crashes a Triton before 2.57 (25.04), by client cancel and by gRPC deadline
alike. On such a server a call whose caller is gone is *detached*: it carries no gRPC deadline,
runs to its end and its result is dropped. Streams, which can be cancelled on every Triton, are in
`gateway.upstream.streams`.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.codec.types import InferCall, InferReply
from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin, Replay
from gateway.upstream.channels import Channel, ChannelPool
from gateway.upstream.errors import to_fault
from gateway.upstream.http2.call import Call, RpcError
from gateway.upstream.messages import decode_reply, encode_call
from gateway.upstream.streams import GrpcStream

FIRST_CANCEL_SAFE = (2, 57)


@dataclass(slots=True)
class Upstream:
    """One server as upstream sees it: its connections and what is under way on them.

    `cancel` is the operator's choice: "always", "never", or "auto" for by the server's version.
    """

    name: str
    pool: ChannelPool
    metadata: tuple[tuple[str, str], ...] = ()
    cancel: str = "auto"
    triton_version: str = ""
    cancel_safe: bool = field(init=False)
    """Whether unary calls may be cancelled on this server."""
    detached: "set[GrpcCall]" = field(default_factory=set)

    def __post_init__(self) -> None:
        """Work out what the version says about cancelling."""
        self.learn_version(self.triton_version)

    def learn_version(self, triton_version: str) -> None:
        """Note the version the server reports."""
        self.triton_version = triton_version
        self.cancel_safe = self.cancel == "always" or (
            self.cancel == "auto" and version_tuple(triton_version) >= FIRST_CANCEL_SAFE
        )

    def give_up_detached(self, channel: Channel) -> None:
        """Stop waiting for the detached calls on a channel that is gone, or whose server is."""
        for call in tuple(self.detached):
            if call.channel is channel:
                call.give_up()

    def let_go(self) -> None:
        """Close the connections when the calls on them have ended; wait for no detached call."""
        for channel in self.pool.channels:
            self.give_up_detached(channel)
        self.pool.close_when_idle()


def version_tuple(text: str) -> tuple[int, ...]:
    """Return Triton's version text ("2.51.0") as numbers; an odd text sorts before all."""
    numbers = []
    for part in text.split(".")[:2]:
        if not part.isdecimal():
            return ()
        numbers.append(int(part))
    return tuple(numbers)


class GrpcCall:
    """One ModelInfer on one channel."""

    __slots__ = ("_call", "_detached_max_s", "_on_end", "_timer", "_upstream", "_wake", "channel")

    def __init__(
        self,
        upstream: Upstream,
        channel: Channel,
        call: InferCall,
        *,
        timeout_s: float,
        detached_max_s: float,
    ) -> None:
        self.channel = channel
        self._upstream = upstream
        self._detached_max_s = detached_max_s
        self._wake: asyncio.Future[None] | None = None
        self._on_end: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        channel.in_flight += 1
        self._call = channel.call(
            "ModelInfer",
            encode_call(call),
            metadata=upstream.metadata,
            forwarded=call.metadata,
            timeout_s=timeout_s if upstream.cancel_safe else None,
            on_end=self._ended,
        )

    @property
    def ended(self) -> bool:
        """Whether the call is over on the wire."""
        return self._call.ended

    async def reply(self, timeout_s: float) -> InferReply:
        """Wait for the answer; see `gateway.ports.UpstreamCall`."""
        if not self._call.ended:
            loop = asyncio.get_running_loop()
            self._wake = loop.create_future()
            timer = loop.call_later(timeout_s, _set, self._wake)
            try:
                await self._wake
            finally:
                timer.cancel()
            if not self._call.ended:
                raise TimeoutError
        try:
            response = self._call.result()
        except RpcError as error:
            raise to_fault(error.code, error.details) from None
        return decode_reply(response)

    def abandon(self, on_end: Callable[[], None]) -> bool:
        """Cancel or detach the call; see `gateway.ports.UpstreamCall`."""
        self._on_end = on_end
        if self._upstream.cancel_safe:
            self._call.cancel()
            return False
        self._upstream.detached.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._detached_max_s, self.give_up)
        return True

    def give_up(self) -> None:
        """Stop accounting for a detached call. It is not cancelled: that could harm the server."""
        self._upstream.detached.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def _ended(self, _: Call) -> None:
        self.channel.in_flight -= 1
        if self._wake is not None:
            _set(self._wake)
        self.give_up()


class GrpcTransport:
    """Starts inference calls on the least busy channel of a server."""

    def __init__(self, upstreams: Mapping[str, Upstream], *, detached_max_s: float) -> None:
        self._upstreams = upstreams
        self._detached_max_s = detached_max_s

    def start(self, server: str, call: InferCall, *, timeout_s: float) -> GrpcCall:
        """Put the call on the wire; see `gateway.ports.Transport`."""
        upstream = upstream_named(self._upstreams, server)
        return GrpcCall(
            upstream,
            _channel(upstream),
            call,
            timeout_s=timeout_s,
            detached_max_s=self._detached_max_s,
        )

    def open_stream(self, server: str, call: InferCall) -> GrpcStream:
        """Put the call on a stream of its own; see `gateway.ports.Transport`."""
        upstream = upstream_named(self._upstreams, server)
        return GrpcStream(_channel(upstream), call, metadata=upstream.metadata)

    def cancels(self, server: str) -> bool:
        """Whether unary calls may be cancelled there; see `gateway.ports.Transport`."""
        upstream = self._upstreams.get(server)
        return upstream is not None and upstream.cancel_safe


def upstream_named(upstreams: Mapping[str, Upstream], server: str) -> Upstream:
    """Return how a server is reached. Raises Fault for one that has just left the fleet."""
    upstream = upstreams.get(server)
    if upstream is None:
        raise _unreachable("the server has been removed")
    return upstream


def _channel(upstream: Upstream) -> Channel:
    channel = upstream.pool.least_busy()
    if channel is None:
        raise not_confirmed()
    return channel


def not_confirmed() -> Fault:
    """Build the fault of a call that must wait until its server is known to be the right one."""
    return _unreachable("the connection is new and the server's identity not confirmed yet")


def _unreachable(detail: str) -> Fault:
    return Fault(
        Kind.UNREACHABLE,
        "the server could not be reached",
        origin=Origin.UPSTREAM,
        replay=Replay.SAFE,
        detail=detail,
        retry_after_s=RETRY_AFTER_S,
    )


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
