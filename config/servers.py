"""The servers of the fleet, and how the gateway keeps its connections to them.

Decides what may be said about one Triton and about connections. Connects to nothing.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from config.fields import (
    MAX_MESSAGE_BYTES,
    MAX_SECONDS,
    Address,
    Capacity,
    Channels,
    FileName,
    Host,
    MessageBytes,
    Seconds,
    Section,
    ServerName,
    Text,
    check_brackets,
)
from config.secrets import Secret

# Headers that gRPC writes itself (gRPC over HTTP/2, "Call-Definition").
_OWN_HEADERS = frozenset({"te", "content-type", "user-agent", "host"})


def _check_metadata_name(name: str) -> str:
    if not re.fullmatch(r"[0-9a-z_.-]+", name):
        raise ValueError(f"{name[:80]!r} - write the name in lower case: a-z 0-9 _ . - only")
    if name.startswith("grpc-") or name in _OWN_HEADERS:
        raise ValueError(f"{name!r} is written by gRPC itself - remove it")
    if name.endswith("-bin"):
        raise ValueError(f"{name!r} ends in -bin, which is for bytes - use another name")
    return name


def _check_pattern(pattern: str) -> str:
    if "/" in pattern or "\0" in pattern:
        raise ValueError(f"{pattern!r} fits no model - write the model's name without a slash")
    if pattern.startswith("!"):
        raise ValueError(f"{pattern!r} - a pattern cannot exclude: list what the server is for")
    return check_brackets(pattern)


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    # Pydantic's own minimum also complains when there are patterns and none of them is valid.
    if not patterns:
        raise ValueError("the list is empty - write a pattern, or leave the key out for all models")
    return patterns


MetadataName = Annotated[str, AfterValidator(_check_metadata_name)]
Pattern = Annotated[
    Text,
    AfterValidator(_check_pattern),
    WithJsonSchema({"type": "string", "pattern": "^[^/!][^/]*$"}),
]
# YAML has lists, the configuration tuples: that step alone is lax.
Patterns = Annotated[
    tuple[Pattern, ...],
    Strict(False),
    AfterValidator(_check_patterns),
    Field(json_schema_extra={"minItems": 1}),
]


class ServerTls(Section):
    """TLS towards a server. `tls: {}` alone trusts the public authorities."""

    ca_file: FileName | None = None
    """PEM file of the authorities the server's certificate is checked against. By default those the
    gRPC library brings along, which suits servers with a public certificate."""
    cert_file: FileName | None = None
    """PEM file of the certificate (chain) shown to the server (mutual TLS); needs `key_file`.
    Unset, none is shown: most servers ask for none."""
    key_file: FileName | None = None
    """PEM file of the private key of `cert_file`."""
    server_name: Host | None = None
    """Name the server's certificate must carry. By default the host of `grpc`; set it when the
    server is reached by an IP address or through a forwarded port."""


class ServerAddress(Section):
    """What a server is called and where it is."""

    name: ServerName
    """What logs, metrics and the fleet view call this server; unique, at most 63 characters."""
    grpc: Address
    """`host:port` of Triton's gRPC port (8001 unless Triton was told otherwise). All inference
    goes there."""
    http: Address | None = None
    """`host:port` of Triton's HTTP port (8000 by default). Looked at by `check --live` and by the
    diagnosis only; inference never needs it."""
    metrics: Address | None = None
    """`host:port` of Triton's metrics port (8002 by default). Looked at by `check --live` and by
    the diagnosis only: the servers' own metrics are not collected yet."""


class ServerTraits(Section):
    """What may be said about a server wherever it is."""

    capacity: Capacity = 1.0
    """Relative share of the work, without unit: a server of 2.0 is meant to get twice what one of
    1.0 gets. 1.0 makes all servers equal."""
    zone: Text | None = None
    """Where the server is: a rack, data centre, region or provider. A gateway prefers the servers
    of its own zone (`balancing.zone`). Unset, it is in no zone."""
    cost_per_hour: float | None = Field(None, ge=0)
    """What the server costs an hour, in a currency of your choice (one for all servers). Unset
    means unknown, which is not the same as 0. Nothing uses it yet."""
    tls: ServerTls | None = None
    """How to speak TLS to the server. Unset, the connection is plain text, which is all a Triton
    that was started without `--grpc-use-ssl` speaks."""
    metadata: Mapping[MetadataName, Secret] = Field(default_factory=dict)
    """gRPC metadata sent with every call: name to secret. The key of a server with restricted
    protocols goes here; Triton expects it as `triton-grpc-protocol-<key>`. Empty by default: an
    unrestricted Triton wants none."""
    expect: Text | None = None
    """The id the server must report (Triton's `--id`; `triton` unless it was started with another
    one). Guards against a forwarded port that now leads to somebody else's server. Unset, any id
    is accepted."""
    cancel_upstream: Literal["auto", "always", "never"] = "auto"
    """Whether a call whose caller has gone is cancelled on the server. `auto`, the default,
    cancels unary calls only from Triton 2.57 on: older ones can crash. Where cancelling is off the
    call runs on and its answer is dropped."""
    serve: Patterns = ("*",)
    """Shell patterns (`*`, `?`, `[...]`; case counts) of the models this server is used for.
    Whatever else it holds gets no requests. By default it is used for all it holds."""
    pool: Text | None = None
    """Group of servers this one belongs to. A model with that `models.*.pool` is served by the
    group alone; models without one by all servers, so keep them out with `serve` where the group
    is reserved. Unset, it is in no group."""
    channels: Channels | None = None
    """Connections kept to this server, 1 to 64. Unset, `upstream.channels` counts."""


class Server(ServerTraits, ServerAddress):
    """One Triton Inference Server."""


class Upstream(Section):
    """How connections to the servers are kept; the same for all of them."""

    channels: Channels = 4
    """Connections kept to each server, 1 to 64. A few let small calls overtake large ones; many
    cost the server memory."""
    connect_timeout_s: Seconds = 2.0
    """Longest wait for a connection, in seconds. 2 s lets one lost packet be sent again and still
    moves on to another server soon."""
    reconnect_backoff_min_s: Seconds = 0.1
    """Wait before the first new attempt at a lost connection, in seconds. Short, so that a
    restarted server is used again soon."""
    reconnect_backoff_max_s: Seconds = 1.0
    """Longest wait between two attempts at a lost connection, in seconds. gRPC's own two minutes
    would leave a recovered server idle."""
    keepalive_interval_s: float = Field(300.0, ge=300, le=MAX_SECONDS)
    """Time between two keepalive pings on a connection, in seconds, at least 300. A Triton with
    stock settings answers more frequent pings by closing the connection, calls in flight
    included. Dead servers are not found by pings but by the statistics calls."""
    max_detached_calls: int = Field(256, ge=1)
    """Calls a server may still be running for callers that have gone, for each server. At the
    bound it counts as full and gets no new calls. 256 is far above what healthy clients cause."""
    detached_max_s: Seconds = 600.0
    """Longest time such a call is waited for, in seconds. As long as the longest deadline."""
    max_reply_bytes: MessageBytes = MAX_MESSAGE_BYTES
    """Largest answer accepted from a server, in bytes. The default, 2 GiB less one, is gRPC's own
    maximum: the model, not the gateway, decides how large an answer is."""
