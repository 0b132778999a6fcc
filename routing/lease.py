"""A place on a server: taken by a pick, given back when the work there has really ended.

Made by `routing.pool`, settled and released by whoever sends the request.
"""

from typing import TYPE_CHECKING

from routing.choices import Choices
from routing.endpoint import Candidate, ServerLoad
from routing.health.breaker import Breaker
from routing.types import Blame

if TYPE_CHECKING:
    from routing.pool import Pool


class Lease:
    """One server's place, held from the pick until the work there has really ended.

    A call nobody waits for any more but which still runs on the server is *detached*: it keeps its
    rows in flight, so that hanging up is no way round the load of a server.
    """

    __slots__ = (
        "_detached", "_heard_s", "_pool", "choices", "place", "probe", "rows", "since_s",
    )  # fmt: skip

    def __init__(
        self,
        pool: "Pool",
        choices: Choices,
        place: int,
        rows: int,
        now_s: float,
        *,
        probe: tuple[Breaker, ...] = (),
    ) -> None:
        self._pool: Pool | None = pool
        self.rows = rows
        self.since_s = now_s
        self._heard_s: float | None = None
        self._detached = False
        self.choices = choices
        self.place = place
        self.probe = probe
        pool.leases += 1
        self._add(rows, 1)

    @property
    def load(self) -> ServerLoad:
        """The load of the server this place is on."""
        return self.choices.loads.servers[self.place]

    @property
    def server(self) -> str:
        """The name of the server this place is on."""
        return self.choices.loads.servers[self.place].name

    @property
    def candidate(self) -> Candidate:
        """The one that was chosen."""
        return next(c for c in self.choices.all_candidates if c.place == self.place)

    @property
    def held(self) -> bool:
        """Whether it has not been given back."""
        return self._pool is not None

    def heard(self, now_s: float) -> None:
        """Note a part of an answer that comes in parts: the first one says how fast it was."""
        self.load.replied(now_s)
        if self._heard_s is None:
            self._heard_s = now_s

    def settle(self, blame: Blame, now_s: float) -> None:
        """Say how the attempt ended. The place is given back by `release`.

        A probe's place is given back at once: the call may run on detached for a long time.
        """
        pool = self._pool
        if pool is not None:
            answered_s = now_s if self._heard_s is None else self._heard_s
            pool.learn(self, blame, answered_s - self.since_s, now_s)
            if self.probe:
                pool.end_probe(self)

    def detach(self) -> None:
        """Note that nobody waits for this call any more although it still runs."""
        if self._pool is not None and not self._detached:
            self._detached = True
            self._pool.detached_changed(self.load, 1)

    def release(self) -> None:
        """Give the place back. Only the first call has an effect."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if self.probe:
            pool.end_probe(self)
        pool.leases -= 1
        self._add(-self.rows, -1)
        if self._detached:
            pool.detached_changed(self.load, -1)
        for on_room in self.choices.loads.on_room:
            on_room()

    def _add(self, rows: int, calls: int) -> None:
        loads, place = self.choices.loads, self.place
        loads.rows[place] += rows
        if loads.table is not None:
            loads.tell(place)
        load = loads.servers[place]
        load.calls += calls
        load.rows += rows
