"""The first stage: what a request says in its headers, and its body.

Everything is bounded here: the size of a body before it is read when its length is announced,
while it arrives otherwise, and the time between two pieces of it.
"""

import asyncio
import contextlib
import math
import random
import re
from dataclasses import dataclass

from aiohttp import hdrs, http_exceptions, web, web_protocol
from aiohttp.http import HttpVersion11

from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin

REQUEST_ID = "X-Request-Id"
TIMEOUT = "X-Request-Timeout-Ms"
_TOKEN = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")
READ_BUFFER_BYTES = 4 * 1024 * 1024
"""What a connection takes in without being read from; at twice as much it stops."""
_LINGER_S = 5.0
_LINGER_PAUSE_S = 1.0
_BAD_FRAMING = (http_exceptions.HttpProcessingError, web_protocol.RequestPayloadError)
_TIMEOUT_MS = re.compile(r"0*([1-9][0-9]{0,11})")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large and how slow a body may be."""

    max_bytes: int
    stall_s: float


class Inbound:
    """The bytes of all request bodies that are held at a time, at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    def take(self, size: int) -> None:
        """Make room for so many bytes. Raises Fault (OVERLOADED) when there is none."""
        if self.held + size > self._max_bytes:
            raise Fault(
                Kind.OVERLOADED,
                "the gateway is busy with other large requests",
                origin=Origin.GATEWAY,
                detail=f"{self.held} bytes of request bodies are held, {size} more do not fit",
                retry_after_s=RETRY_AFTER_S,
            )
        self.held += size

    def release(self, size: int) -> None:
        """Give the room back."""
        self.held -= size


def request_id(request: web.BaseRequest) -> str:
    """Return the caller's request id if it is a token of at most 128 characters, else a new one.

    Anything else is replaced rather than refused: the id is a courtesy, and what goes into logs
    and answers must not be able to break them.
    """
    given = request.headers.get(REQUEST_ID)
    if given is not None and _TOKEN.fullmatch(given):
        return given
    return f"{random.getrandbits(64):016x}"


def timeout_s(request: web.BaseRequest) -> float | None:
    """Return the time the client allows for the request, or None. Raises Fault."""
    given = request.headers.get(TIMEOUT)
    if given is None:
        return None
    found = _TIMEOUT_MS.fullmatch(given)
    if found is None:
        raise Fault.invalid(f"{TIMEOUT} must be a positive whole number of milliseconds")
    return int(found[1]) / 1000


async def read_body(
    request: web.BaseRequest, limits: BodyLimits, inbound: Inbound, *, allowed_s: float | None
) -> bytes:
    """Read the whole body, as it was sent, within the time the client allows for the request.

    The body's length stays taken of `inbound`. Raises Fault: TOO_LARGE over `max_bytes`, DEADLINE
    when the client stalls or its time is over, INVALID for broken framing, OVERLOADED when too many
    bytes are held already.
    """
    content = request.content
    if content.is_eof() and content.at_eof():
        return b""
    announced = request.content_length
    if announced is not None and announced > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    if content.is_eof():
        body = _bounded(content.read_nowait(), limits.max_bytes)
        inbound.take(len(body))
        return body
    with _Holding(inbound, announced or 0) as holding:
        await _continue(request)
        # One wake-up for all of a body instead of one for each piece of it, if it fits the buffer.
        if announced is not None and announced <= READ_BUFFER_BYTES:
            return await _take_whole(request, limits, allowed_s)
        return await _take_pieces(request, limits, allowed_s, holding)


class _Holding:
    """The room of one body while it arrives: `expected` bytes at once, the rest as it comes.

    Given back if the body does not come to its end.
    """

    def __init__(self, inbound: Inbound, expected: int) -> None:
        self._inbound = inbound
        self._held = expected

    def __enter__(self) -> "_Holding":
        self._inbound.take(self._held)
        return self

    def arrived(self, size: int) -> None:
        """Note how many bytes have arrived in all."""
        if size > self._held:
            self._inbound.take(size - self._held)
            self._held = size

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._inbound.release(self._held)


async def discard_rest(request: web.BaseRequest) -> None:
    """Close the connection of a request that was answered before its body was there, gently.

    A connection that is closed with data unread is reset, and then the client may lose the answer.
    So only our half is closed; what still arrives is dropped, until the client has closed its half,
    sends nothing for `_LINGER_PAUSE_S`, or `_LINGER_S` have passed. (nginx: lingering_close.)
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        return
    if transport.can_write_eof():  # not under TLS
        transport.write_eof()
    with contextlib.suppress(TimeoutError, ConnectionError, *_BAD_FRAMING):
        async with asyncio.timeout(_LINGER_S):
            while not request.content.at_eof():
                async with asyncio.timeout(_LINGER_PAUSE_S):
                    await request.content.readany()


async def _take_whole(
    request: web.BaseRequest, limits: BodyLimits, allowed_s: float | None
) -> bytes:
    """Read a body of known size, all of which fits into the connection's buffer."""
    content = request.content
    timer = _BodyTimer(limits.stall_s, allowed_s)
    while not content.is_eof():
        arrived = content.total_bytes
        try:
            async with asyncio.timeout_at(timer.next_s()):
                await content.wait_eof()
        except TimeoutError:
            if timer.is_over() or content.total_bytes == arrived:
                raise timer.fault() from None
        except _BAD_FRAMING as error:
            raise _badly_framed(error) from None
    return content.read_nowait()


async def _take_pieces(
    request: web.BaseRequest, limits: BodyLimits, allowed_s: float | None, holding: _Holding
) -> bytes:
    """Read a body of unknown or great size piece by piece."""
    chunks: list[bytes] = []
    size = 0
    timer = _BodyTimer(limits.stall_s, allowed_s)
    try:
        async with asyncio.timeout_at(timer.next_s()) as limit:
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > limits.max_bytes:
                    raise _too_large(limits.max_bytes)
                holding.arrived(size)
                chunks.append(chunk)
                limit.reschedule(timer.next_s())
    except TimeoutError:
        raise timer.fault() from None
    except _BAD_FRAMING as error:
        raise _badly_framed(error) from None
    return b"".join(chunks)


class _BodyTimer:
    """How long to wait for the next piece of a body, and what has happened when it did not come."""

    def __init__(self, stall_s: float, allowed_s: float | None) -> None:
        self._now = asyncio.get_running_loop().time
        self._stall_s = stall_s
        self._until_s = math.inf if allowed_s is None else self._now() + allowed_s
        self._next_s = math.inf

    def next_s(self) -> float:
        """Return until when to wait, in seconds of the loop's clock."""
        self._next_s = min(self._until_s, self._now() + self._stall_s)
        return self._next_s

    def is_over(self) -> bool:
        """Whether the wait that has just ended was the last one: the client's time is over."""
        return self._next_s == self._until_s

    def fault(self) -> Fault:
        """Return the fault of a wait that ended without a piece."""
        if self.is_over():
            return Fault.deadline_passed()
        return Fault(
            Kind.DEADLINE,
            f"no part of the request body arrived for {self._stall_s:g} s",
            origin=Origin.CLIENT,
        )


def _badly_framed(error: Exception) -> Fault:
    return Fault.invalid(f"the request body is not framed correctly: {error}")


async def _continue(request: web.BaseRequest) -> None:
    if request.version != HttpVersion11:
        return
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the interim answer does not count as the answer


def _bounded(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> Fault:
    return Fault.too_large(f"the request body is larger than {max_bytes} bytes")
