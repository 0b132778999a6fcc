"""Fault -> HTTP: the only place where status codes are decided.

Errors have Triton's shape, one JSON object with the key `error`. Triton's mapping of its own codes
(protocol: 2.42 and later) is kept; what only a gateway can run into has the usual meaning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import randrange

import orjson

from gateway.faults import Fault, Kind, Origin

STATUS = {
    Kind.INVALID: 400,
    Kind.REJECTED: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.NOT_ALLOWED: 405,
    Kind.LOST: 409,
    Kind.TOO_LARGE: 413,
    Kind.LIMITED: 429,
    Kind.CLIENT_GONE: 499,  # nobody reads it; it is for the log
    Kind.FAILED: 500,
    Kind.INTERNAL: 500,
    Kind.UNSUPPORTED: 501,
    Kind.BROKEN: 502,
    Kind.NOT_READY: 503,
    Kind.DRAINING: 503,
    Kind.OVERLOADED: 503,
    Kind.UNREACHABLE: 503,
    Kind.UNAVAILABLE: 503,
    Kind.SHUTDOWN: 503,
    Kind.DEADLINE: 504,
}
_SLOW_CLIENT = 408
SHED_SPREAD_S = 2
"""Callers that are shed together are told times up to so much later, not to come back together."""
JSON = "application/json"
SERVER = "triton-gateway"


@dataclass(slots=True)
class Answer:
    """One HTTP answer, its body in pieces. `close` ends the connection behind it."""

    status: int = 200
    parts: Sequence[bytes] = ()
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False

    @property
    def length(self) -> int:
        """The length of the body in bytes."""
        return sum(map(len, self.parts))


def json_answer(value: object, *, status: int = 200) -> Answer:
    """Return a JSON answer; its type is exactly `application/json`, as Triton's tests demand."""
    return Answer(status, (orjson.dumps(value),), {"Content-Type": JSON})


def fault_answer(fault: Fault) -> Answer:
    """Return the answer that tells the caller of a fault."""
    status = STATUS[fault.kind]
    if fault.kind is Kind.DEADLINE and fault.origin is Origin.CLIENT:
        status = _SLOW_CLIENT
    answer = Answer(status, (error_body(fault.message),), {"Content-Type": JSON})
    if fault.kind is Kind.UNAUTHENTICATED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if fault.retry_after_s is not None:
        spread_s = randrange(SHED_SPREAD_S + 1) if fault.kind is Kind.OVERLOADED else 0
        answer.headers["Retry-After"] = str(fault.retry_after_s + spread_s)
    return answer


def error_body(message: str) -> bytes:
    """Return `{"error": message}`; text that is not valid Unicode is made printable."""
    return orjson.dumps({"error": message.encode(errors="backslashreplace").decode()})
