"""The two listeners: the API that applications call, and the one for operators.

Decides what may be said about them. Opens no socket.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict

from config.fields import (
    FileName,
    HeaderName,
    Host,
    ListenPort,
    MessageBytes,
    Seconds,
    Section,
    Text,
)
from config.secrets import Secret

_HOP_BY_HOP = frozenset(
    {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_PREFIXES = ("grpc-", "content-", "proxy-", "accept", "triton-grpc-protocol-", ":")


def _check_forwarded(name: str) -> str:
    lower = name.lower()
    if lower.startswith(_PREFIXES) or lower in _HOP_BY_HOP or lower.endswith("-bin"):
        raise ValueError(f"{name!r} belongs to HTTP or gRPC itself - remove it")
    if lower in ("authorization", "cookie", "x-api-key"):
        raise ValueError(f"{name!r} would give the callers' keys to the servers - remove it")
    return name


ForwardedHeader = Annotated[HeaderName, AfterValidator(_check_forwarded)]


class ListenerTls(Section):
    """TLS on a listener."""

    cert_file: FileName
    """PEM file of the certificate, followed by the intermediate ones."""
    key_file: FileName
    """PEM file of the certificate's private key, without a pass phrase."""
    client_ca_file: FileName | None = None
    """PEM file of the authorities that client certificates are checked against. Set, every client
    must show one (mutual TLS). Unset, none is asked for."""


ApiCategory = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
"""Triton's names for the parts of its API (`--http-restricted-api`)."""


def _check_categories(categories: tuple[str, ...]) -> tuple[str, ...]:
    # Pydantic's own minimum also complains when there are names and none of them is valid.
    if not categories:
        raise ValueError("the list is empty - write at least one part of the API")
    return categories


class RestrictedApi(Section):
    """Parts of the API that need a key in a header, as with Triton's `--http-restricted-api`."""

    # YAML has lists, the configuration tuples: that step alone is lax.
    apis: Annotated[
        tuple[ApiCategory, ...],
        Strict(False),
        AfterValidator(_check_categories),
        Field(json_schema_extra={"minItems": 1}),
    ]
    """Which parts, by Triton's names. A part may be named once only in all entries together."""
    header: HeaderName
    """Name of the header; letter case does not count."""
    key: Secret
    """What the header must hold. Requests without it are refused with 403."""


class Api(Section):
    """The listener that applications call: the Open Inference Protocol over HTTP."""

    host: Host = "0.0.0.0"
    """Address to listen on. The default is every IPv4 interface: the API is there to be reached.
    `::` is every interface."""
    port: ListenPort = 8080
    """TCP port. 8080, so that no rights are needed and a Triton on the same machine keeps 8000. 0
    takes any free port."""
    server_id: Text = "triton"
    """The name the gateway reports of itself at `/v2`. The default is the one a Triton reports
    unless it was started with another `--id`, and what Triton's own client examples check for."""
    max_body_bytes: MessageBytes = 268_435_456
    """Largest request body, in bytes as received; a larger one is refused with 413. 256 MiB holds
    a large batch of images and still fits many times into memory."""
    max_unpacked_bytes: MessageBytes = 268_435_456
    """Largest request body after it was decompressed, in bytes. The same as for plain bodies, so
    that compression is no way round that limit."""
    max_header_bytes: int = Field(32_768, ge=1_024, le=1_048_576)
    """Largest request line, and largest single header, in bytes. 32 KiB holds long tokens and
    cookies."""
    header_timeout_s: Seconds = 30.0
    """How long the head of a request may take to arrive, in seconds, from the connection on or, on
    a connection that is kept open, from its first byte. Half a minute forgives a bad network and
    keeps clients that send nothing from piling up."""
    max_inbound_bytes: int = Field(2_147_483_648, ge=1)
    """Bytes of request bodies held at a time, all requests together; at least `max_body_bytes`.
    What does not fit is refused with 503 before it is read. 2 GiB holds eight of the largest
    bodies; set it to what the machine can spare. Several workers share it equally."""
    forward_headers: Annotated[tuple[ForwardedHeader, ...], Strict(False)] = (
        "traceparent",
        "tracestate",
    )
    """Headers of the callers that go to the servers, as gRPC metadata. A Triton started with
    `--grpc-header-forward-pattern` makes request parameters of them. The default passes W3C trace
    contexts on. What gRPC cannot carry is left out, and named in the log."""
    older_limit_headers: bool = False
    """Add `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) of the
    tightest limit to `RateLimit-Policy` and `RateLimit`. Off by default: these older names mean
    something else at each service; switch it on for clients that look at them."""
    keepalive_timeout_s: Seconds = 75.0
    """How long an idle client connection is kept open, in seconds. Longer than the 60 s of common
    load balancers, so that they close first and no request meets a closing connection."""
    body_timeout_s: Seconds = 60.0
    """Longest wait between two pieces of a request body, in seconds. A minute forgives a bad
    network and still frees the memory of clients that have vanished."""
    tls: ListenerTls | None = None
    """Serve HTTPS. Unset, plain HTTP: usually a load balancer in front ends TLS."""
    restricted: Annotated[tuple[RestrictedApi, ...], Strict(False)] = ()
    """Parts of the API that need a key. Empty by default: all of it is open, except what
    `model_control` and `server_settings` refuse."""


class Ops(Section):
    """The listener for operators: health, metrics and the view of the fleet."""

    host: Host = "127.0.0.1"
    """Address to listen on. By default only this machine: the view shows server addresses. Any
    other address needs `key`."""
    port: ListenPort = 8081
    """TCP port, the one after the API's. 0 takes any free port."""
    key: Secret | None = None
    """Key that callers must send as `Authorization: Bearer <key>`. Unset, callers are not asked,
    which is allowed on this machine's own addresses only."""
    allow_unauthenticated: bool = False
    """Allow an address other machines can reach without `key`. Off by default; switch it on only
    when something else, such as a network policy, keeps strangers out."""
    tls: ListenerTls | None = None
    """Serve HTTPS. Unset, plain HTTP."""
    scrape_timeout_s: Seconds = 5.0
    """How long a server's own metrics page may take when `/metrics/fleet` is asked for, in seconds.
    Half of Prometheus' usual scrape timeout, so that a dead server never costs the others' page."""
    max_metrics_page_bytes: int = Field(8_388_608, ge=1_024, le=268_435_456)
    """Largest metrics page taken from one server, in bytes. 8 MiB is a hundred times what a Triton
    with a hundred models writes."""
