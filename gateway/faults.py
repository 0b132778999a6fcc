"""What can go wrong, in terms of the domain: kind x origin x replay safety.

Adapters translate foreign exceptions into a `Fault` at their border; the edge alone turns a fault
into an HTTP status. Nothing here knows HTTP or gRPC numbers.
"""

from enum import Enum
from typing import Self

from routing.errors import NoReadyEndpoint, NoSuchModel, RoutingError
from routing.types import Blame, Replay

__all__ = ["RETRY_AFTER_S", "Blame", "Fault", "Kind", "Origin", "Replay"]

RETRY_AFTER_S = 1
"""What callers are told to wait when a model or server may be back soon: one probe interval."""


class Kind(Enum):
    """What happened. The values are used as metric labels, so the set is closed."""

    INVALID = "invalid"  # the request itself is wrong
    UNAUTHENTICATED = "unauthenticated"  # who calls is not known
    NOT_FOUND = "not_found"  # no such model, version or route
    NOT_ALLOWED = "not_allowed"  # the route exists, but not for this method
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"  # understood, but not offered
    NOT_READY = "not_ready"  # the model exists but nothing can serve it now
    DRAINING = "draining"  # the server is going down and takes nothing new
    OVERLOADED = "overloaded"
    LIMITED = "limited"  # the caller has used up a limit of its own
    LOST = "lost"  # the state of a sequence is gone: it has to begin again
    DEADLINE = "deadline"  # the time allowed for the request ran out
    SHUTDOWN = "shutdown"  # the gateway went down before the answer was there
    CLIENT_GONE = "client_gone"
    UNREACHABLE = "unreachable"  # no connection to the server could be made
    BROKEN = "broken"  # the connection broke, or the answer could not be carried
    FAILED = "failed"  # the model or the server reported an internal error
    UNAVAILABLE = "unavailable"  # the server said it cannot, in words that are not known
    REJECTED = "rejected"  # the server said no with an unspecific code
    INTERNAL = "internal"  # a fault of the gateway itself


class Origin(Enum):
    """Who caused it."""

    CLIENT = "client"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class Fault(Exception):
    """An expected failure on its way to the caller.

    `message` is what the caller reads: it never names an upstream address. `detail` is for the log
    only. `blame` says whom a failed attempt speaks against. `retry_after_s` is a hint in whole
    seconds, or None.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        origin: Origin,
        replay: Replay = Replay.NEVER,
        blame: Blame = Blame.UNTOLD,
        detail: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.origin = origin
        self.replay = replay
        self.blame = blame
        self.detail = detail
        self.retry_after_s = retry_after_s

    def __repr__(self) -> str:
        return (
            f"Fault({self.kind.value}, {self.message!r}, origin={self.origin.value}, "
            f"replay={self.replay.value})"
        )

    def without_frames(self) -> Self:
        """Drop the frames the fault came through, to keep it without what they hold (bodies)."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    @classmethod
    def invalid(cls, message: str) -> Self:
        """Build the fault of a request the gateway itself can judge malformed."""
        return cls(Kind.INVALID, message, origin=Origin.CLIENT)

    @classmethod
    def too_large(cls, message: str) -> Self:
        """Build the fault of a request over one of the configured sizes."""
        return cls(Kind.TOO_LARGE, message, origin=Origin.CLIENT)

    @classmethod
    def unsupported(cls, message: str) -> Self:
        """Build the fault of a request for something that is not offered."""
        return cls(Kind.UNSUPPORTED, message, origin=Origin.CLIENT)

    @classmethod
    def deadline_passed(cls) -> Self:
        """Build the fault of a request whose time is over."""
        message = "the deadline of the request has passed"
        return cls(Kind.DEADLINE, message, origin=Origin.GATEWAY)

    @classmethod
    def of_routing(cls, error: RoutingError) -> Self:
        """Build the fault of routing's refusal to choose."""
        if isinstance(error, NoSuchModel):
            return cls(Kind.NOT_FOUND, str(error), origin=Origin.CLIENT)
        saturated = isinstance(error, NoReadyEndpoint) and error.saturated
        return cls(
            Kind.OVERLOADED if saturated else Kind.NOT_READY,
            str(error),
            origin=Origin.GATEWAY,
            retry_after_s=RETRY_AFTER_S,
        )
