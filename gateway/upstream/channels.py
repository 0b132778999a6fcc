"""A pool of really separate gRPC connections to one server.

Channels with equal target and options share one TCP connection in the gRPC library; a local
subchannel pool keeps them apart. A call takes the channel with the fewest calls on it, so one
large transfer does not hold up the small ones. Channels are loop-bound: open them in the loop.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from gateway.tasks import spawn

Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]

METHOD = "/inference.GRPCInferenceService/"
_UNLIMITED = 2**31 - 1
_METADATA_BYTES = 4 * 1024 * 1024
_IDLE_CHECK_S = 1.0
_WINDOW_BYTES = 4 * 1024 * 1024  # what a server may send before the gateway has read it


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS to a server. `root_pem` None means the system's roots; with `cert_pem` it is mTLS."""

    root_pem: bytes | None = None
    cert_pem: bytes | None = None
    key_pem: bytes | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How connections are made. Times in seconds.

    A stock Triton tolerates one keepalive ping in 300 s and answers more with GOAWAY. The
    library's own reconnect backoff goes up to two minutes, far too long for a server that
    restarts.
    """

    channels: int
    connect_timeout_s: float
    reconnect_backoff_min_s: float
    reconnect_backoff_max_s: float
    keepalive_interval_s: float
    max_reply_bytes: int
    tls: TlsOptions | None = None

    def arguments(self) -> list[tuple[str, int | str]]:
        """Return the gRPC channel arguments."""
        arguments: list[tuple[str, int | str]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.max_receive_message_length", min(self.max_reply_bytes, _UNLIMITED)),
            # Triton's error texts (tracebacks) travel in metadata.
            ("grpc.max_metadata_size", _METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
            ("grpc.initial_reconnect_backoff_ms", _ms(self.reconnect_backoff_min_s)),
            # The name misleads: this is how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", _ms(self.connect_timeout_s)),
            ("grpc.max_reconnect_backoff_ms", _ms(self.reconnect_backoff_max_s)),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_interval_s)),
            ("grpc.enable_http_proxy", 0),
            # Bookkeeping for a debugging service that nobody serves: a tenth of a call's cost.
            ("grpc.enable_channelz", 0),
            ("grpc.max_channel_trace_event_memory_per_node", 0),
            # One layer retries, and it is the pipeline; the library's machinery for it costs a
            # twentieth of a small request.
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.enable_retries", 0),
            # A ping behind every reply measures how far the window should open. It is open.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ]
        if self.tls and self.tls.server_name:
            arguments.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return arguments


class Channel:
    """One connection, and how many inference calls are on it."""

    __slots__ = ("_channel", "confirmed", "in_flight", "infer", "silent")

    def __init__(self, target: str, options: ChannelOptions) -> None:
        self._channel = _open(target, options)
        self.confirmed = False
        self.in_flight = 0
        self.silent = 0  # probes in a row that got no answer
        self.infer = self.unary("ModelInfer")

    def unary(self, method: str) -> Unary:
        """Return a callable for one method; requests and replies are serialised bytes."""
        # Registered: the library prepares the path once, as for its generated stubs.
        return self._channel.unary_unary(
            METHOD + method,
            _registered_method=True,  # type: ignore[call-arg]  # not in the stubs
        )

    def is_confirmed(self) -> bool:
        """Whether the server at the end of this very connection has been identified."""
        return self.confirmed and self._channel.get_state() is grpc.ChannelConnectivity.READY

    def waits_to_reconnect(self) -> bool:
        """Whether the last attempt to connect failed and the next one is not due yet."""
        return self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def state(self) -> str:
        """Return the connectivity state, in gRPC's words and lower case."""
        return self._channel.get_state().name.lower()

    async def close(self) -> None:
        """Close the connection; calls on it end at once."""
        await self._channel.close()


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
        self._channels = [Channel(target, options) for _ in range(options.channels)]
        self._turn = 0

    @property
    def channels(self) -> Sequence[Channel]:
        """All channels, in a stable order."""
        return self._channels

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
            return self._channels[0]
        return next((channel for channel in self._channels if channel.is_confirmed()), None)

    def _is_usable(self, channel: Channel) -> bool:
        if self._identity_matters:
            return channel.is_confirmed()
        return not channel.waits_to_reconnect()

    def next_for_probe(self) -> Channel:
        """Return the channels in turn, so that probes notice each one that went silent."""
        self._turn = (self._turn + 1) % len(self._channels)
        return self._channels[self._turn]

    def replace(self, channel: Channel) -> None:
        """Put a new connection in place of `channel`, which is closed once no call is on it.

        Closing a connection cancels the calls on it, and a cancelled call can crash an old Triton
        that only seemed dead.
        """
        self._channels[self._channels.index(channel)] = Channel(self._target, self._options)
        spawn(_close_when_idle(channel), name="close a replaced channel")

    async def close(self) -> None:
        """Close every connection that has no call on it.

        The others are left to the end of the process, which is a smaller danger to an old Triton
        than cancelling their calls.
        """
        for channel in self._channels:
            if channel.in_flight == 0:
                await channel.close()


async def _close_when_idle(channel: Channel) -> None:
    while channel.in_flight:  # noqa: ASYNC110 - rare, and nobody waits for it
        await asyncio.sleep(_IDLE_CHECK_S)
    await channel.close()


def _open(target: str, options: ChannelOptions) -> grpc.aio.Channel:
    arguments = options.arguments()
    if options.tls is None:
        return grpc.aio.insecure_channel(target, options=arguments)
    tls = options.tls
    credentials = grpc.ssl_channel_credentials(tls.root_pem, tls.key_pem, tls.cert_pem)
    return grpc.aio.secure_channel(target, credentials, options=arguments)


def _in_flight(channel: Channel) -> int:
    return channel.in_flight


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
