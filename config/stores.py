"""What gateways share, where it is kept, and how long: the Redis store, and open sequences.

Decides what may be said about these. Connects to nothing.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from config.fields import (
    FileName,
    Seconds,
    SecondsOrZero,
    Section,
    Text,
    check_address,
    split_address,
)
from config.secrets import Secret

_URL = re.compile(r"(rediss?)(?:\+(sentinel|cluster))?://([^/?#]*)(?:/([^?#]*))?")
_FORMS = (
    "write redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or"
    " redis+cluster://HOST:PORT,HOST:PORT - rediss for TLS"
)
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DEFAULT_PORTS = {"sentinel": 26_379}
_REDIS_PORT = 6_379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis URL taken apart; `service` is the name Sentinels know the master by."""

    kind: Literal["single", "sentinel", "cluster"]
    tls: bool
    nodes: tuple[tuple[str, int], ...]
    service: str = ""
    db: int = 0


def split_redis_url(url: str) -> RedisAddress:
    """Take a Redis URL apart. Raises ValueError, which never shows a password."""
    if "@" in url:
        raise ValueError(
            "the URL holds a user or password - write `username` and `password` instead"
        )
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"{url!r} is no Redis URL - {_FORMS}")
    scheme, kind, hosts, path = found.groups("")
    nodes = tuple(_node(host, kind) for host in hosts.split(","))
    service, _, db = path.partition("/") if kind == "sentinel" else ("", "", path)
    tls = scheme == "rediss"
    match kind:
        case "sentinel":
            if not service:
                raise ValueError(f"{url!r} names no service - {_FORMS}")
            return RedisAddress("sentinel", tls, nodes, service, _db(url, db))
        case "cluster":
            if db:
                raise ValueError(f"{url!r} - a cluster has no databases: end it after the hosts")
            return RedisAddress("cluster", tls, nodes)
        case _:
            if len(nodes) > 1:
                raise ValueError(f"{url!r} names several hosts - {_FORMS}")
            return RedisAddress("single", tls, nodes, db=_db(url, db))


def _node(host: str, kind: str) -> tuple[str, int]:
    has_port = re.search(r":[^\]]*$", host)
    address = host if has_port else f"{host}:{_DEFAULT_PORTS.get(kind, _REDIS_PORT)}"
    return split_address(check_address(address))


def _db(url: str, text: str) -> int:
    if text and not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(f"{url!r} - write the database as a number: {_FORMS}")
    return int(text or 0)


def _check_url(url: str) -> str:
    split_redis_url(url)
    return url


def _check_namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise ValueError(f"{name[:80]!r} - use at most 64 of A-Z a-z 0-9 . _ -")
    return name


RedisUrl = Annotated[
    str,
    AfterValidator(_check_url),
    WithJsonSchema({"type": "string", "pattern": r"^rediss?(\+(sentinel|cluster))?://[^@]+$"}),
]
Namespace = Annotated[
    str,
    AfterValidator(_check_namespace),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,64}$"}),
]


class RedisTls(Section):
    """TLS towards Redis; used with the `rediss` forms of the URL."""

    ca_file: FileName | None = None
    """PEM file of the authorities the server's certificate is checked against. Unset, those of the
    operating system."""
    cert_file: FileName | None = None
    """PEM file of the certificate shown to Redis (mutual TLS); needs `key_file`. Unset, none is
    shown."""
    key_file: FileName | None = None
    """PEM file of the private key of `cert_file`."""


class Redis(Section):
    """The Redis (6.2 or newer, or compatible) that gateways share what they must agree on."""

    url: RedisUrl
    """Where it is: `redis://HOST:PORT/DB`, `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB` or
    `redis+cluster://HOST:PORT,HOST:PORT`; with `rediss` instead of `redis` over TLS. Port and
    database may be left out. Without user and password: they have keys of their own."""
    username: Text | None = None
    """User of Redis' access lists. Unset, its default user."""
    password: Secret | None = None
    """Password of that user. Unset, none is sent."""
    sentinel_password: Secret | None = None
    """Password of the Sentinels themselves. Unset, none is sent to them."""
    tls: RedisTls | None = None
    """Certificates, for the `rediss` forms of the URL. Unset, the server is checked against the
    operating system's authorities and no certificate is shown."""
    namespace: Namespace = "tg"
    """Prefix of every key, the same for all gateways of one fleet. Give each fleet its own where
    several share a Redis. In a cluster all keys of one namespace are on one node."""
    timeout_s: Seconds = 0.025
    """Longest time a request waits for Redis, in seconds. After three failures in a row requests
    do not wait at all, until Redis answers again; it is asked every second. 25 ms is far above a
    healthy Redis nearby and hardly felt."""
    connect_timeout_s: Seconds = 0.5
    """Longest time a connection may take to be made, and an answer to arrive before its connection
    is given up, in seconds. No request waits for it longer than `timeout_s`: half a second leaves
    room for TLS over a distance."""
    max_connections: int = Field(32, ge=1, le=10_000)
    """Connections to Redis (in a cluster to each node), and so commands under way at a time, per
    gateway process. 32 carry many thousand requests a second."""


class Sequences(Section):
    """Requests that belong together: all of one sequence go to the server that has its state."""

    margin_s: SecondsOrZero = 30.0
    """Time for which the place of a silent sequence is remembered beyond the model's own
    `max_sequence_idle_microseconds`, in seconds. It covers the time a request waits and runs.
    Within it a sequence that the server has dropped is answered 409, after it 400."""
    idle_s: Seconds = 60.0
    """Idle time taken for models that state none: ensembles, and models that keep state by
    `sequence_id` without Triton's sequence batcher. A minute, since nothing but memory is lost."""
    max_open: int = Field(100_000, ge=1)
    """Open sequences a gateway process knows at a time; beyond, new ones are refused with 503. Each
    takes about a kilobyte. Far above what a fleet has slots for: it guards against callers that
    begin sequences and never end them."""
