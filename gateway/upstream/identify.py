"""What listens on a port, told by plain sockets: Triton's HTTP, its metrics, gRPC, TLS, or nothing.

Knows how each of Triton's three ports answers a client that took it for another one. Knows no
configuration and gives no advice. Called by `diagnose` and `discover`.
"""

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass
from enum import Enum

import orjson

from gateway.upstream.findings import one_line
from gateway.upstream.plain_http import Silent, exchange, is_settings, parsed

_LIMIT_BYTES = 1024 * 1024
_NV_FAMILY = re.compile(rb"^(# HELP )?nv_[a-z]", re.MULTILINE)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "UNEXPECTED_EOF", "HTTP_REQUEST", "PACKET")


class Kind(Enum):
    """What was found behind an address."""

    TRITON_HTTP = "Triton's HTTP port"
    TRITON_METRICS = "Triton's metrics port"
    HTTP2 = "a gRPC port"
    TLS = "a TLS port"
    OTHER_HTTP = "an HTTP server that is no Triton"
    OTHER = "a service that is no Triton"
    CLOSES = "a port that closes every connection at once"
    SILENT = "a port that accepts connections and says nothing"
    REFUSED = "closed: nothing listens there"
    TIMEOUT = "out of reach: no answer to the attempt to connect"
    UNREACHABLE = "out of reach"
    UNRESOLVED = "a host name that cannot be resolved"


@dataclass(frozen=True, slots=True)
class Seen:
    """What listens there; `detail` is its own words, `server_id` what its HTTP port calls it."""

    kind: Kind
    detail: str = ""
    server_id: str = ""


async def identify(host: str, port: int, *, timeout_s: float) -> Seen:
    """Say what listens on `port`, within `timeout_s`. Never raises for what the network does.

    A bare 200 proves nothing: Triton's metrics port answers any path with it (seen on 2.51). So
    the HTTP port must show the JSON of `/v2`, and the metrics port a family of Triton's.
    """
    until = asyncio.get_running_loop().time() + timeout_s
    try:
        reply = await _get(host, port, "/v2", until)
        if reply and not reply.startswith((b"HTTP/", b"\x15\x03")):
            kind = Kind.HTTP2 if is_settings(reply) else Kind.OTHER
            return Seen(kind, one_line(repr(reply[:40])))
        if _perhaps_tls(reply) and await _speaks_tls(host, port, until):
            return Seen(Kind.TLS)
        return await _which_http(host, port, reply, until) if reply else Seen(Kind.CLOSES)
    except (TimeoutError, Silent, OSError) as failure:
        return _failed(failure)


def _failed(failure: Exception) -> Seen:
    if isinstance(failure, Silent):
        return Seen(Kind.SILENT)
    if isinstance(failure, TimeoutError):
        return Seen(Kind.TIMEOUT)
    if isinstance(failure, ConnectionRefusedError):
        return Seen(Kind.REFUSED)
    if isinstance(failure, socket.gaierror):
        return Seen(Kind.UNRESOLVED, failure.strerror or "")
    if isinstance(failure, ConnectionError):
        return Seen(Kind.CLOSES)
    return Seen(Kind.UNREACHABLE, getattr(failure, "strerror", None) or str(failure))


async def _which_http(host: str, port: int, reply: bytes, until: float) -> Seen:
    answer = parsed(reply)
    said = _json_object(answer.body)
    if "name" in said and "version" in said:
        return Seen(Kind.TRITON_HTTP, server_id=str(said["name"]))
    if "API is restricted" in str(said.get("error", "")):  # --http-restricted-api
        return Seen(Kind.TRITON_HTTP, str(said["error"]))
    try:
        page = await _get(host, port, "/metrics", until)
    except (TimeoutError, Silent, OSError):
        page = b""
    if _NV_FAMILY.search(page):
        return Seen(Kind.TRITON_METRICS)
    return Seen(Kind.OTHER_HTTP, f"GET /v2 was answered {answer.status}")


async def _get(host: str, port: int, path: str, until: float) -> bytes:
    received = await exchange(host, port, path, until=until, limit_bytes=_LIMIT_BYTES)
    return received.data


def _json_object(body: bytes) -> dict[str, object]:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _perhaps_tls(reply: bytes) -> bool:
    # A TLS server answers plain HTTP with an alert record, by closing, or (nginx) with a page.
    return not reply or reply.startswith(b"\x15\x03") or b"HTTPS" in reply


async def _speaks_tls(host: str, port: int, until: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        async with asyncio.timeout_at(until):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as failure:
        return not any(text in str(failure) for text in _NOT_TLS)
    except (TimeoutError, OSError):
        return False
    writer.transport.abort()
    return True
