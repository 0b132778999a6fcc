"""One worker's part in the table of its host: its slots, and the probes it has claimed.

Used by the pool where several workers share a table (see `routing.shared`).
"""

from collections.abc import Sequence

from routing.endpoint import Candidate
from routing.health.breaker import Breaker
from routing.shared import Counts, HostTable, Pair

_CALLS_UNTIL_TOLD = 2

Place = tuple[Counts, int]
"""A row of cells, and a slot in it."""


class Claims:
    """The places of probes this worker holds, one at a time for a slot over all workers.

    A place that was given back stays claimed until the other workers have heard of the outcome,
    two calls of `advance` later: otherwise one of them would send the next probe in ignorance.
    Meanwhile this worker, which knows, may take it again.
    """

    def __init__(self) -> None:
        self._calls_left: dict[Place, int | None] = {}  # None while the probe is under way

    def take(self, place: Place) -> bool:
        """Take a place if nobody has it; return whether that worked."""
        if place not in self._calls_left:
            cells, slot = place
            if not cells.claim(slot):
                return False
        elif self._calls_left[place] is None:
            return False
        self._calls_left[place] = None
        return True

    def is_free(self, place: Place) -> bool:
        """Whether `take` would work at the moment."""
        if place in self._calls_left:
            return self._calls_left[place] is not None
        cells, slot = place
        return cells.total(slot) == 0

    def end(self, place: Place) -> None:
        """Note that the probe is over."""
        if place in self._calls_left:
            self._calls_left[place] = _CALLS_UNTIL_TOLD

    def advance(self) -> None:
        """Note that what happened before the last call has been told by now."""
        for place, left in tuple(self._calls_left.items()):
            if left == 1:
                self.drop(place)
            elif left is not None:
                self._calls_left[place] = left - 1

    def drop(self, place: Place) -> None:
        """Give a place back at once, if it was taken."""
        if place in self._calls_left:
            del self._calls_left[place]
            cells, slot = place
            cells.put(slot, 0)


class HostView:
    """The table as one worker uses it."""

    def __init__(self, table: HostTable) -> None:
        self.table = table
        self._slots: dict[Pair, int] = {}
        self._claims = Claims()
        self._detached = b""

    def assign(self, pair: Pair, slot: int | None) -> None:
        """Take note of the slot of a pair, None if it has none any more."""
        before = self._slots.pop(pair, None)
        if slot is not None:
            self._slots[pair] = slot
        if before not in (None, slot):
            cells = self.table.contacts if pair[1] is None else self.table.probes
            self._claims.drop((cells, before))

    def slot(self, server: str, model: str | None) -> int | None:
        """Return the slot of a pair, None as long as it is not known."""
        return self._slots.get((server, model))

    def claim(
        self, candidate: Candidate, breakers: Sequence[Breaker], contact: Breaker | None
    ) -> bool:
        """Claim a probe for all of `breakers`; return whether all places were free.

        `contact` is the one of them, if any, that judges the server itself.
        """
        taken: list[Place] = []
        for place in self._places(candidate, breakers, contact):
            if not self._claims.take(place):
                for other in taken:
                    self._claims.drop(other)
                return False
            taken.append(place)
        return True

    def may_claim(
        self, candidate: Candidate, breakers: Sequence[Breaker], contact: Breaker | None
    ) -> bool:
        """Whether `claim` would work at the moment."""
        return all(
            self._claims.is_free(place) for place in self._places(candidate, breakers, contact)
        )

    def end_claim(
        self, candidate: Candidate, breakers: Sequence[Breaker], contact: Breaker | None
    ) -> None:
        """Give the places of a probe back, as soon as its outcome has been told."""
        for place in self._places(candidate, breakers, contact):
            self._claims.end(place)

    def advance(self) -> bool:
        """Note another round of news; return whether detached calls of some worker changed."""
        self._claims.advance()
        before, self._detached = self._detached, self.table.detached.image()
        return before != self._detached

    def _places(
        self, candidate: Candidate, breakers: Sequence[Breaker], contact: Breaker | None
    ) -> list[Place]:
        places = []
        for breaker in breakers:
            model = None if breaker is contact else candidate.model.model
            slot = self.slot(candidate.name, model)
            if slot is not None:  # otherwise nobody else can know of it either
                places.append((self.table.contacts if model is None else self.table.probes, slot))
        return places
