"""What a diagnosis is made of: whom it is about, what was found, and what to do about it.

Plain data without behaviour towards the network. Filled by `diagnose` and `survey`, printed by the
command line, which knows neither gRPC nor Triton's messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.upstream.tls import TlsOptions
from routing.queueing import Queueing
from routing.types import ModelSpec

Counters = Mapping[tuple[str, str], tuple[int, ...]]
"""(model, version) -> its cumulative times in nanoseconds, always in the same order."""


class Severity(StrEnum):
    """How bad it is: the server cannot be used as configured, something is odd, or good to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Control(StrEnum):
    """Triton's `--model-control-mode`, as far as it shows from outside."""

    EXPLICIT = "explicit"
    NONE_OR_POLL = "none-or-poll"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth telling: `message` is what was seen, `fix` what to change."""

    severity: Severity
    code: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Target:
    """One server as configured. Addresses are `host:port`; metadata is sent with every call."""

    grpc: str
    http: str | None = None
    metrics: str | None = None
    tls: TlsOptions | None = field(default=None, repr=False)
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    expect: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One server as it was found; what could not be learnt is None or empty.

    `reachable` means that a Triton answered on the gRPC address, if only with a refusal.
    `missing_keys` are the metadata names it wants a key under. `models_ready` counts names, not
    versions. `round_trip_ms` is the median of three ServerLive calls on a warm connection.
    """

    reachable: bool = False
    triton_version: str = ""
    server_id: str = ""
    cancel_safe: bool = False
    control_mode: Control = Control.UNKNOWN
    models_ready: int | None = None
    round_trip_ms: float | None = None
    missing_keys: tuple[str, ...] = ()
    counters: Counters = field(default_factory=dict, repr=False)
    signatures: Mapping[tuple[str, str], ModelSpec] = field(default_factory=dict, repr=False)
    queues: Mapping[tuple[str, str], Queueing] = field(default_factory=dict, repr=False)
    findings: tuple[Finding, ...] = ()


def error(code: str, message: str, fix: str) -> Finding:
    """Build a finding that keeps the server from being used as configured."""
    return Finding(Severity.ERROR, code, message, fix)


def warning(code: str, message: str, fix: str) -> Finding:
    """Build a finding about something that is odd or dangerous, but works."""
    return Finding(Severity.WARNING, code, message, fix)


def one_line(text: str, limit: int = 200) -> str:
    """Return foreign text fit for a message: one line, printable, at most `limit` characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    plain = " ".join(plain.split())
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."
