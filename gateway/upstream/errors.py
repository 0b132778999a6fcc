"""gRPC errors of a Triton -> Fault: what happened, may it run again, and whom it speaks against.

Triton answers UNAVAILABLE for at least five different things, and the gRPC library uses the same
code for a dead connection; neither sends metadata that would tell them apart, so the text decides.
`RULES` is data, tried top to bottom. Each row says where its text comes from: "seen" on that Triton
release, "read" in the sources of one, "gateway" for its own connections', or "grpc" for the
library's. When a release changes a
text, add a row. What matches nothing is unknown: it may have run, and speaks against the version.

Errors inside a stream come as text alone, without a code: `of_text` reads them by the same rows.
"""

import re
from dataclasses import dataclass

import grpc

from gateway.faults import RETRY_AFTER_S, Blame, Fault, Kind, Origin, Replay
from gateway.upstream.http2.connection import CONNECTION_LOST, NO_CONNECTION, NOT_TAKEN

_Code = grpc.StatusCode
_UNAVAILABLE = _Code.UNAVAILABLE
_EXHAUSTED = _Code.RESOURCE_EXHAUSTED


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of error text means. `says` replaces a text the caller must not read."""

    code: grpc.StatusCode
    pattern: str
    kind: Kind
    replay: Replay
    blame: Blame
    source: str
    says: str | None = None
    origin: Origin = Origin.UPSTREAM

    def matches(self, code: grpc.StatusCode, details: str) -> bool:
        """Whether an error of this code and text is of this kind."""
        return code is self.code and re.search(self.pattern, details) is not None


_NO_CONNECTION = "the server could not be reached"
_LOST = "the connection to the server was lost during the request"
_TOO_LARGE = "the request is larger than a server accepts"
_TOO_LATE = "the deadline of the request has passed"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"

RULES = (
    # The model or version is not there (any more), or the server is going down. Nothing has run.
    Rule(_UNAVAILABLE, r"is not at ready state",
         Kind.NOT_READY, Replay.SAFE, Blame.UNTOLD, "seen 2.51"),
    Rule(_Code.NOT_FOUND, r"Request for unknown model",
         Kind.NOT_READY, Replay.SAFE, Blame.UNTOLD, "seen 2.51"),
    Rule(_UNAVAILABLE, r"Server (exiting|is stopping|not ready)",
         Kind.DRAINING, Replay.SAFE, Blame.UNTOLD, "seen 2.51"),
    Rule(_UNAVAILABLE, r"server is shutting down",
         Kind.DRAINING, Replay.SAFE, Blame.UNTOLD, "read 2.73"),
    # The server is full. Nothing has run.
    Rule(_UNAVAILABLE, r"Exceeds maximum queue size",
         Kind.OVERLOADED, Replay.SAFE, Blame.OVERLOAD, "seen 2.51"),
    Rule(_UNAVAILABLE, r"Request timeout expired",
         Kind.OVERLOADED, Replay.NEVER, Blame.OVERLOAD, "seen 2.51"),
    Rule(_UNAVAILABLE, r"timeout of the corresponding sequence has been expired",
         Kind.OVERLOADED, Replay.NEVER, Blame.OVERLOAD, "read 2.73"),
    # The server does not allow it.
    Rule(_UNAVAILABLE, r"(protocol|API) is restricted",
         Kind.FORBIDDEN, Replay.NEVER, Blame.NOBODY, "seen 2.51",
         says="the server restricts this call and the gateway has no key for it"),
    Rule(_UNAVAILABLE, r"explicit model load / unload",
         Kind.UNSUPPORTED, Replay.NEVER, Blame.NOBODY, "seen 2.51"),
    # The server is ready and yet cannot: it will not pass by itself.
    Rule(_Code.INTERNAL, r"[Ss]tub process .*(not healthy|has been killed|unexpectedly)",
         Kind.FAILED, Replay.NEVER, Blame.FATAL, "read 2.73"),
    Rule(_Code.INTERNAL,
         r"CUDA error|cudaError|device-side assert|illegal memory access|uncorrectable ECC"
         r"|CUDNN_STATUS_|CUBLAS_STATUS_",
         Kind.FAILED, Replay.NEVER, Blame.FATAL, "read 2.73"),
    # The connection: never made, or lost before the server had the whole request. Nothing has run.
    Rule(_UNAVAILABLE, rf"^{NO_CONNECTION} ",
         Kind.UNREACHABLE, Replay.SAFE, Blame.SERVER, "gateway", says=_NO_CONNECTION),
    Rule(_UNAVAILABLE, rf"^{NOT_TAKEN} ",
         Kind.BROKEN, Replay.SAFE, Blame.SERVER, "gateway", says=_LOST),
    Rule(_UNAVAILABLE,
         r"^failed to connect to all addresses|^errors? resolving|^DNS resolution failed",
         Kind.UNREACHABLE, Replay.SAFE, Blame.SERVER, "grpc", says=_NO_CONNECTION),
    # The connection: lost with the request on it.
    Rule(_UNAVAILABLE, rf"^{CONNECTION_LOST} ",
         Kind.BROKEN, Replay.UNSURE, Blame.SERVER, "gateway", says=_LOST),
    Rule(_UNAVAILABLE,
         r"Socket closed|Connection reset|Broken pipe|Stream removed|GOAWAY|Too many pings"
         r"|[Kk]eepalive|transport|recvmsg|sendmsg|Cancelling all calls",
         Kind.BROKEN, Replay.UNSURE, Blame.SERVER, "grpc", says=_LOST),
    # Sizes.
    Rule(_EXHAUSTED, r"^SERVER: Received message larger than max|Sent message larger than max",
         Kind.TOO_LARGE, Replay.NEVER, Blame.NOBODY, "grpc", says=_TOO_LARGE, origin=Origin.CLIENT),
    Rule(_EXHAUSTED, r"Received message larger than max",
         Kind.BROKEN, Replay.NEVER, Blame.NOBODY, "grpc",
         says="the answer of the model is larger than the gateway accepts"),
    Rule(_EXHAUSTED, r"metadata size exceeds",
         Kind.FAILED, Replay.NEVER, Blame.VERSION, "grpc",
         says="the server reported an error whose text is too long to be carried"),
    # Time.
    Rule(_Code.DEADLINE_EXCEEDED, "",
         Kind.DEADLINE, Replay.NEVER, Blame.SLOW, "grpc", says=_TOO_LATE),
    # What the server does not offer.
    Rule(_Code.UNIMPLEMENTED, r"decoupled transaction policy",
         Kind.UNSUPPORTED, Replay.NEVER, Blame.NOBODY, "seen 2.51", says=_DECOUPLED),
    Rule(_Code.UNIMPLEMENTED, r"Method not found",
         Kind.BROKEN, Replay.SAFE, Blame.SERVER, "grpc",
         says="the server does not speak Triton's protocol"),
)  # fmt: skip

_BY_CODE = {
    _Code.INVALID_ARGUMENT: (Kind.INVALID, Replay.NEVER, Blame.NOBODY),
    _Code.NOT_FOUND: (Kind.NOT_FOUND, Replay.NEVER, Blame.NOBODY),
    _Code.ALREADY_EXISTS: (Kind.INVALID, Replay.NEVER, Blame.NOBODY),
    _Code.UNIMPLEMENTED: (Kind.UNSUPPORTED, Replay.NEVER, Blame.NOBODY),
    _Code.INTERNAL: (Kind.FAILED, Replay.NEVER, Blame.VERSION),
    _Code.UNKNOWN: (Kind.REJECTED, Replay.NEVER, Blame.VERSION),
    _Code.CANCELLED: (Kind.REJECTED, Replay.NEVER, Blame.UNTOLD),
    _Code.UNAVAILABLE: (Kind.UNAVAILABLE, Replay.UNSURE, Blame.VERSION),
}
_NOT_TRITON = ("grpc", "gateway")
REFUSALS = (
    r"^(\[request id: .*\] )?("
    r"expected (number of inputs between )?\d+ (inputs|and \d+) but got"
    r"|unexpected (inference (input|output)|shape for input|total byte size for input)"
    r"|inference input '.*' data-type is|input '.*' (already exists|batch size does not match)"
    r"|inference request batch-size must be|inference request (for sequence|to model) "
    r"|input byte size mismatch)"
)
"""What Triton says to requests that do not fit the model: it is the caller's fault."""
_UNKNOWN = (Kind.FAILED, Replay.NEVER, Blame.VERSION)
_COMES_BACK = frozenset({Kind.NOT_READY, Kind.DRAINING, Kind.OVERLOADED, Kind.UNREACHABLE})


def to_fault(code: grpc.StatusCode, details: str | None) -> Fault:
    """Return the fault an error status of a Triton or of the gRPC library stands for."""
    details = details or ""
    for rule in RULES:
        if rule.matches(code, details):
            return _by_rule(rule, details)
    return _by_code(code, details)


def of_text(text: str) -> Fault:
    """Return the fault an error inside a stream stands for, which has no code.

    A text that is not known is the model's own, as if the model had raised it.
    """
    for rule in RULES:
        if rule.source not in _NOT_TRITON and re.search(rule.pattern, text):
            return _by_rule(rule, text)
    refused = re.search(REFUSALS, text)
    return _by_code(_Code.INVALID_ARGUMENT if refused else _Code.INTERNAL, text)


def _by_rule(rule: Rule, details: str) -> Fault:
    return Fault(
        rule.kind,
        rule.says or details,
        origin=rule.origin,
        replay=rule.replay,
        blame=rule.blame,
        detail=details,
        retry_after_s=RETRY_AFTER_S if rule.kind in _COMES_BACK else None,
    )


def _by_code(code: grpc.StatusCode, details: str) -> Fault:
    kind, replay, blame = _BY_CODE.get(code, _UNKNOWN)
    return Fault(
        kind,
        details or code.name,
        origin=Origin.UPSTREAM,
        replay=replay,
        blame=blame,
        detail=f"{code.name}: {details}",
    )
