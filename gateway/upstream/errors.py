"""gRPC errors of a Triton -> Fault.

Triton answers UNAVAILABLE for at least five different things, and the gRPC library uses the same
code for a dead connection; neither sends metadata that would tell them apart, so the text decides.
The table is data, tried top to bottom; the texts were seen on Triton 2.39 and 2.51 or read in the
sources of 2.73. What matches nothing counts as "may have run".
"""

import re
from dataclasses import dataclass

import grpc

from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin, Replay

_Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of error text means. `says` replaces a text that names addresses."""

    code: grpc.StatusCode
    pattern: str
    kind: Kind
    replay: Replay
    says: str | None = None
    origin: Origin = Origin.UPSTREAM

    def matches(self, code: grpc.StatusCode, details: str) -> bool:
        """Whether an error of this code and text is of this kind."""
        return code is self.code and re.search(self.pattern, details) is not None


_NO_CONNECTION = "the server could not be reached"
_LOST = "the connection to the server was lost before it answered"

RULES = (
    # Triton itself: the model or version is not there (any more).
    Rule(_Code.UNAVAILABLE, r"is not at ready state", Kind.NOT_READY, Replay.SAFE),
    Rule(_Code.NOT_FOUND, r"Request for unknown model", Kind.NOT_READY, Replay.SAFE),
    # Triton itself: full. Nothing of the request has run.
    Rule(_Code.UNAVAILABLE, r"Exceeds maximum queue size", Kind.OVERLOADED, Replay.SAFE),
    Rule(_Code.UNAVAILABLE, r"Request timeout expired", Kind.OVERLOADED, Replay.NEVER),
    Rule(
        _Code.UNAVAILABLE,
        r"timeout of the corresponding sequence has been expired",
        Kind.OVERLOADED,
        Replay.NEVER,
    ),
    # Triton itself: going down.
    Rule(_Code.UNAVAILABLE, r"Server (exiting|is stopping|not ready)", Kind.NOT_READY, Replay.SAFE),
    Rule(_Code.UNAVAILABLE, r"server is shutting down", Kind.NOT_READY, Replay.SAFE),
    # Triton itself: not allowed.
    Rule(
        _Code.UNAVAILABLE,
        r"(protocol|API) is restricted",
        Kind.FORBIDDEN,
        Replay.NEVER,
        says="the server restricts this call and the gateway has no key for it",
    ),
    Rule(_Code.UNAVAILABLE, r"explicit model load / unload", Kind.UNSUPPORTED, Replay.NEVER),
    # The connection: never made.
    Rule(
        _Code.UNAVAILABLE,
        r"^failed to connect to all addresses|[Ee]rrors? resolving|DNS resolution failed",
        Kind.UNREACHABLE,
        Replay.SAFE,
        says=_NO_CONNECTION,
    ),
    # The connection: lost with the request on it.
    Rule(
        _Code.UNAVAILABLE,
        r"Socket closed|Connection reset|Broken pipe|Stream removed|GOAWAY|Too many pings"
        r"|[Kk]eepalive|transport|recvmsg|sendmsg|Cancelling all calls",
        Kind.BROKEN,
        Replay.UNSURE,
        says=_LOST,
    ),
    Rule(
        _Code.RESOURCE_EXHAUSTED,
        r"^SERVER: Received message larger than max",
        Kind.TOO_LARGE,
        Replay.NEVER,
        says="the request is larger than a server accepts",
        origin=Origin.CLIENT,
    ),
    Rule(
        _Code.RESOURCE_EXHAUSTED,
        r"Received message larger than max",
        Kind.BROKEN,
        Replay.NEVER,
        says="the answer of the model is larger than the gateway accepts",
    ),
    Rule(
        _Code.RESOURCE_EXHAUSTED,
        r"Sent message larger than max",
        Kind.TOO_LARGE,
        Replay.NEVER,
        says="the request is larger than a server accepts",
        origin=Origin.CLIENT,
    ),
    Rule(
        _Code.RESOURCE_EXHAUSTED,
        r"metadata size exceeds",
        Kind.FAILED,
        Replay.NEVER,
        says="the server reported an error whose text is too long to be carried",
    ),
    Rule(
        _Code.UNIMPLEMENTED,
        r"decoupled transaction policy",
        Kind.UNSUPPORTED,
        Replay.NEVER,
        says="HTTP end point doesn't support models with decoupled transaction policy",
    ),
    Rule(
        _Code.UNIMPLEMENTED,
        r"Method not found",
        Kind.BROKEN,
        Replay.SAFE,
        says="the server does not speak Triton's protocol",
    ),
)

_BY_CODE = {
    _Code.INVALID_ARGUMENT: Kind.INVALID,
    _Code.NOT_FOUND: Kind.NOT_FOUND,
    _Code.ALREADY_EXISTS: Kind.INVALID,
    _Code.UNIMPLEMENTED: Kind.UNSUPPORTED,
    _Code.INTERNAL: Kind.FAILED,
    _Code.UNKNOWN: Kind.REJECTED,
    _Code.CANCELLED: Kind.REJECTED,
    _Code.DEADLINE_EXCEEDED: Kind.DEADLINE,
    _Code.UNAVAILABLE: Kind.UNAVAILABLE,
}
_COMES_BACK = frozenset({Kind.NOT_READY, Kind.OVERLOADED, Kind.UNREACHABLE})


def to_fault(code: grpc.StatusCode, details: str | None) -> Fault:
    """Return the fault an error status of a Triton or of the gRPC library stands for."""
    details = details or ""
    for rule in RULES:
        if rule.matches(code, details):
            return Fault(
                rule.kind,
                rule.says or details,
                origin=rule.origin,
                replay=rule.replay,
                detail=details,
                retry_after_s=RETRY_AFTER_S if rule.kind in _COMES_BACK else None,
            )
    return Fault(
        _BY_CODE.get(code, Kind.FAILED),
        details or code.name,
        origin=Origin.UPSTREAM,
        replay=Replay.UNSURE if code is _Code.UNAVAILABLE else Replay.NEVER,
        detail=f"{code.name}: {details}",
    )
