"""Why a TLS connection to a server fails, told by a handshake of its own.

gRPC reports such a failure in words that rarely name the reason; Python's ssl module does. Called
by `diagnose` once it is known that something speaks TLS there.
"""

import asyncio
import ssl
from dataclasses import dataclass, replace
from enum import Enum

from gateway.upstream.findings import one_line
from gateway.upstream.tls import TlsOptions, client_context

# OpenSSL's verification results (openssl/x509_vfy.h).
_EXPIRED = frozenset({9, 10})  # not yet valid, no longer valid
_WRONG_NAME = frozenset({62, 64})  # host name, IP address
_SETTINGS_WITHIN_S = 0.3


class Trouble(Enum):
    """What is wrong between the two sides."""

    UNTRUSTED = "untrusted"
    WRONG_NAME = "wrong name"
    EXPIRED = "expired"
    WANTS_CERTIFICATE = "wants a client certificate"
    NO_HTTP2 = "no HTTP/2"
    BAD_FILES = "bad files"


@dataclass(frozen=True, slots=True)
class TlsProblem:
    """The trouble, in OpenSSL's words, and the names the certificate is for."""

    trouble: Trouble
    detail: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Handshake:
    """What a handshake brought: the protocol agreed on, and the names in the certificate."""

    protocol: str | None
    names: tuple[str, ...]
    closed: bool


async def tls_problem(
    host: str, port: int, tls: TlsOptions, *, timeout_s: float
) -> TlsProblem | None:
    """Return what is wrong with TLS to this server, or None when nothing shows in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _problem(host, port, tls)
    except (TimeoutError, OSError):
        return None


async def _problem(host: str, port: int, tls: TlsOptions) -> TlsProblem | None:
    name = tls.server_name or host
    try:
        context = client_context(replace(tls, cert_pem=None), ["h2", "http/1.1"])
    except (ssl.SSLError, ValueError) as failure:
        return TlsProblem(Trouble.BAD_FILES, one_line(str(failure)))
    try:
        shaken = await _handshake(host, port, context, name)
    except ssl.SSLCertVerificationError as failure:
        return await _unverified(host, port, tls, failure)
    except ssl.SSLError as failure:
        return _refused(failure)
    if shaken.protocol != "h2":
        return TlsProblem(Trouble.NO_HTTP2, f"it chose {shaken.protocol or 'no protocol'}")
    if shaken.closed:
        return TlsProblem(Trouble.WANTS_CERTIFICATE, "it hangs up after the handshake")
    return None


async def _handshake(host: str, port: int, context: ssl.SSLContext, name: str) -> _Handshake:
    """Shake hands and see whether the server stays. Raises ssl.SSLError.

    In TLS 1.3 a server refuses a client without a certificate only after the client's handshake is
    over, by an alert or (gRPC's own servers) by hanging up. A content one sends its settings.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    closed = False
    try:
        tls = writer.get_extra_info("ssl_object")
        names = tuple(value for _, value in tls.getpeercert().get("subjectAltName", ()))
        async with asyncio.timeout(_SETTINGS_WITHIN_S):
            closed = await reader.read(1) == b""
    except TimeoutError:
        pass
    except ConnectionError:
        closed = True
    finally:
        writer.transport.abort()
    return _Handshake(tls.selected_alpn_protocol(), names, closed)


async def _unverified(
    host: str, port: int, tls: TlsOptions, failure: ssl.SSLCertVerificationError
) -> TlsProblem:
    detail = one_line(failure.verify_message.rstrip("."))
    if failure.verify_code in _EXPIRED:
        return TlsProblem(Trouble.EXPIRED, detail)
    if failure.verify_code not in _WRONG_NAME:
        return TlsProblem(Trouble.UNTRUSTED, detail)
    context = client_context(replace(tls, cert_pem=None), ["h2", "http/1.1"])
    context.check_hostname = False
    try:
        names = (await _handshake(host, port, context, tls.server_name or host)).names
    except ssl.SSLError:
        names = ()
    return TlsProblem(Trouble.WRONG_NAME, detail, tuple(map(one_line, names)))


def _refused(failure: ssl.SSLError) -> TlsProblem | None:
    if "ALERT" not in (failure.reason or ""):
        return None
    return TlsProblem(Trouble.WANTS_CERTIFICATE, one_line(str(failure.reason)))
