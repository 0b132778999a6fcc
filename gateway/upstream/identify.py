"""What listens on a port, told by plain sockets: Triton's HTTP, its metrics, gRPC, TLS, or nothing.

Knows how each of Triton's three ports answers a client that took it for another one. Knows no
configuration and gives no advice. Called by `diagnose` and `discover`.
"""

import asyncio
import http.client
import io
import re
import socket
import ssl
from dataclasses import dataclass
from enum import Enum

import orjson

from gateway.upstream.findings import one_line

_LIMIT_BYTES = 1024 * 1024
_CHUNK_BYTES = 65536
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


class _Silent(Exception):
    """Connected, and nothing came."""


async def identify(host: str, port: int, *, timeout_s: float) -> Seen:
    """Say what listens on `port`, within `timeout_s`. Never raises for what the network does.

    A bare 200 proves nothing: Triton's metrics port answers any path with it (seen on 2.51). So
    the HTTP port must show the JSON of `/v2`, and the metrics port a family of Triton's.
    """
    until = asyncio.get_running_loop().time() + timeout_s
    try:
        reply = await _exchange(host, port, "/v2", until)
        if reply and not reply.startswith((b"HTTP/", b"\x15\x03")):
            kind = Kind.HTTP2 if _is_settings(reply) else Kind.OTHER
            return Seen(kind, one_line(repr(reply[:40])))
        if _perhaps_tls(reply) and await _speaks_tls(host, port, until):
            return Seen(Kind.TLS)
        return await _which_http(host, port, reply, until) if reply else Seen(Kind.CLOSES)
    except (TimeoutError, _Silent, OSError) as failure:
        return _failed(failure)


def _failed(failure: Exception) -> Seen:
    if isinstance(failure, _Silent):
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
    status, body = _parsed(reply)
    said = _json_object(body)
    if "name" in said and "version" in said:
        return Seen(Kind.TRITON_HTTP, server_id=str(said["name"]))
    if "API is restricted" in str(said.get("error", "")):  # --http-restricted-api
        return Seen(Kind.TRITON_HTTP, str(said["error"]))
    try:
        page = await _exchange(host, port, "/metrics", until)
    except (TimeoutError, _Silent, OSError):
        page = b""
    if _NV_FAMILY.search(page):
        return Seen(Kind.TRITON_METRICS)
    return Seen(Kind.OTHER_HTTP, f"GET /v2 was answered {status}")


async def _exchange(host: str, port: int, path: str, until: float) -> bytes:
    """Send one GET and return what came until the answer was complete or the time was up."""
    async with asyncio.timeout_at(until):
        reader, writer = await asyncio.open_connection(host, port)
    data = b""
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii", "replace"))
        async with asyncio.timeout_at(until):
            while not _complete(data) and (chunk := await reader.read(_CHUNK_BYTES)):
                data += chunk
    except TimeoutError:
        if not data:
            raise _Silent from None
    except ConnectionError:
        pass  # reset: what came before counts
    finally:
        writer.transport.abort()
    return data


def _complete(data: bytes) -> bool:
    if len(data) >= _LIMIT_BYTES or _is_settings(data):
        return True
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return length is not None and len(body) >= int(length[1])


def _is_settings(data: bytes) -> bool:
    # RFC 9113, 4.1: three bytes of length, then the type; SETTINGS is 4 and opens a connection.
    return len(data) >= 9 and data[0] == 0 and data[3] == 4


class _Bytes:
    """As much of a socket as http.client wants to read an answer from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(reply: bytes) -> tuple[int, bytes]:
    answer = http.client.HTTPResponse(_Bytes(reply))  # type: ignore[arg-type]
    try:
        answer.begin()
        return answer.status, answer.read()
    except http.client.HTTPException:
        return answer.status if isinstance(answer.status, int) else 0, b""


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
