"""One attempt on one server: whom its outcome speaks against, and when its place is free again.

Decides blame and settlement, the same for unary calls and streams. Refuses to know which server is
chosen and whether there is another attempt: the pipeline does. Called by it and by streams.
"""

from types import TracebackType
from typing import Self

from gateway.exchange import Exchange
from gateway.faults import Blame, Fault, Kind, Origin, Replay
from gateway.ports import Clock, Fleet, UpstreamCall, UpstreamStream
from routing.fleet import ModelVersion
from routing.pool import Lease
from routing.types import ModelSpec


class Attempt:
    """Holds a lease from the pick until the work on the server has ended.

    As a context manager it is over at the end of the block, with whatever that raises; a
    TimeoutError becomes a Fault. A stream calls `over` itself.
    """

    def __init__(
        self, exchange: Exchange, spec: ModelSpec, lease: Lease, *, fleet: Fleet, clock: Clock
    ) -> None:
        self.lease = lease
        self.upstream: UpstreamCall | UpstreamStream | None = None
        self._exchange = exchange
        self._spec = spec
        self._fleet = fleet
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        match error:
            case None:
                self.over(Blame.NOBODY)
            case TimeoutError():
                self.over(self._unless_asked(Blame.SLOW))
                raise Fault.deadline_passed() from None
            case Fault():
                self.over(self._unless_asked(error.blame), error)
            case _:
                self.over(Blame.UNTOLD)

    def remaining_s(self) -> float:
        """Return the seconds left until the deadline. Raises Fault when there are none."""
        remaining_s = self._exchange.remaining_s()
        if remaining_s <= 0:
            raise Fault.deadline_passed()
        return remaining_s

    def over(self, blame: Blame, fault: Fault | None = None) -> None:
        """Settle: the server is judged, what it ran into is reported, its place given back."""
        if fault is not None:
            self._note_failure(fault)
        elif blame is Blame.NOBODY:
            self._exchange.server = self.lease.server
        self.lease.settle(blame, self._clock())
        self._give_back()

    def _give_back(self) -> None:
        # A place is free only when the work on the server is over, not when the caller is gone.
        upstream, lease = self.upstream, self.lease
        if upstream is None or upstream.ended:
            lease.release()
        elif upstream.abandon(self._exchange.until_ended(lease.release)):
            lease.detach()
            self._exchange.detached += (lease,)

    def _note_failure(self, fault: Fault) -> None:
        server = self.lease.server
        self._exchange.tried.add(server)
        self._exchange.unsure += fault.replay is Replay.UNSURE
        if fault.origin is not Origin.UPSTREAM:
            return
        if fault.kind is Kind.UNREACHABLE:
            self._fleet.unreachable(server, fault.detail or fault.message)
        elif fault.kind is Kind.DRAINING:
            self._fleet.exiting(server, fault.message)
        elif fault.blame is Blame.SERVER:
            self._fleet.broken(server)
        elif fault.kind is Kind.NOT_READY:
            key = ModelVersion(self._spec.model, self._spec.version)
            self._fleet.not_ready(server, key, fault.message)

    def _unless_asked(self, blame: Blame) -> Blame:
        """Return `blame`, unless the caller asked for the deadline: that tells nothing of it."""
        asked_s = self._exchange.timeout_s
        started_s, deadline_s = self._exchange.started_s, self._exchange.deadline_s
        if asked_s is None or started_s + asked_s > deadline_s:
            return blame
        return Blame.UNTOLD if blame is Blame.SLOW else blame
