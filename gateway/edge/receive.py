"""The first stage: what a request says in its headers, and its body.

Everything is bounded here: the size of a body before it is read when its length is announced,
while it arrives otherwise, and the time between two pieces of it.
"""

import asyncio
import math
import random
import re
from dataclasses import dataclass

from aiohttp import hdrs, http_exceptions, web, web_protocol
from aiohttp.http import HttpVersion11

from gateway.faults import Fault, Kind, Origin

REQUEST_ID = "X-Request-Id"
TIMEOUT = "X-Request-Timeout-Ms"
_TOKEN = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")
_TIMEOUT_MS = re.compile(r"0*([1-9][0-9]{0,11})")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large and how slow a body may be."""

    max_bytes: int
    stall_s: float


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
    request: web.BaseRequest, limits: BodyLimits, *, allowed_s: float | None
) -> bytes:
    """Read the whole body, as it was sent, within the time the client allows for the request.

    Raises Fault: TOO_LARGE over `max_bytes`, DEADLINE when the client stalls or its time is over,
    INVALID for broken framing.
    """
    content = request.content
    if content.is_eof() and content.at_eof():
        return b""
    announced = request.content_length
    if announced is not None and announced > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    if content.is_eof():
        return _bounded(content.read_nowait(), limits.max_bytes)
    await _continue(request)
    return await _gather(request, limits, allowed_s)


async def _gather(request: web.BaseRequest, limits: BodyLimits, allowed_s: float | None) -> bytes:
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    until_s = math.inf if allowed_s is None else loop.time() + allowed_s
    try:
        async with asyncio.timeout_at(min(until_s, loop.time() + limits.stall_s)) as limit:
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > limits.max_bytes:
                    raise _too_large(limits.max_bytes)
                chunks.append(chunk)
                limit.reschedule(min(until_s, loop.time() + limits.stall_s))
    except TimeoutError:
        if limit.when() == until_s:
            raise Fault.deadline_passed() from None
        raise Fault(
            Kind.DEADLINE,
            f"no part of the request body arrived for {limits.stall_s:g} s",
            origin=Origin.CLIENT,
        ) from None
    except (http_exceptions.HttpProcessingError, web_protocol.RequestPayloadError) as error:
        raise Fault.invalid(f"the request body is not framed correctly: {error}") from None
    return b"".join(chunks)


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
