"""One ModelStreamInfer with one request on it: read its events one by one, or let go of it.

On the wire a stream with one request, closed behind it, is a call with one request. What nobody
takes stays in HTTP/2's window, and behind it on the server. Cancelling a stream harms no Triton.
"""

import asyncio
import contextlib
from collections.abc import Callable

from gateway.codec.types import InferCall, InferReply
from gateway.faults import Fault
from gateway.upstream.channels import Channel, Metadata
from gateway.upstream.errors import of_text, to_fault
from gateway.upstream.http2.call import Call, RpcError
from gateway.upstream.messages import decode_event, encode_call

_CLOSE_S = 1.0
"""How long a server may take to close a stream whose last event has come."""


class GrpcStream:
    """One stream on one channel; see `gateway.ports.UpstreamStream`."""

    __slots__ = ("_call", "_final", "_on_end", "_wake", "channel")

    def __init__(self, channel: Channel, call: InferCall, *, metadata: Metadata) -> None:
        self.channel = channel
        self._final = False
        self._wake: asyncio.Future[None] | None = None
        self._on_end: Callable[[], None] | None = None
        message = encode_call(call, streamed=True)
        channel.in_flight += 1
        self._call = channel.stream(
            "ModelStreamInfer",
            message,
            metadata=metadata,
            forwarded=call.metadata,
            on_news=self._notice,
            on_end=self._ended,
        )

    @property
    def ended(self) -> bool:
        """Whether the stream is over on the wire."""
        return self._call.ended

    async def next(self, timeout_s: float) -> InferReply | Fault | None:
        """Wait for the next event; see `gateway.ports.UpstreamStream`."""
        while not self._final:
            message = await self._message(timeout_s)
            if message is None:
                return None
            event, self._final = decode_event(message)
            if isinstance(event, str):
                return of_text(event)
            if event is not None:
                return event
        # The answer is complete. The server closes the stream, so it need not be cancelled.
        with contextlib.suppress(TimeoutError, Fault):
            await self._message(_CLOSE_S)
        return None

    async def _message(self, timeout_s: float) -> bytes | None:
        message = self._call.take()
        if message is None and not self._call.ended:
            await self._news(timeout_s)
            message = self._call.take()
            if message is None and not self._call.ended:
                raise TimeoutError
        if message is None:
            try:
                self._call.result()
            except RpcError as error:
                raise to_fault(error.code, error.details) from None
        return message

    async def _news(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = loop.call_later(timeout_s, self._notice)
        try:
            await self._wake
        finally:
            self._wake = None
            timer.cancel()

    def abandon(self, on_end: Callable[[], None]) -> bool:
        """Cancel the stream; see `gateway.ports.UpstreamStream`."""
        self._on_end = on_end
        self._call.cancel()
        return False

    def _notice(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _ended(self, _: Call) -> None:
        self.channel.in_flight -= 1
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
