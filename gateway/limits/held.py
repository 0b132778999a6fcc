"""What this process holds in the store of quotas: places, and its own name among the gateways.

Decides when that is renewed and given back. A place is a lease: it is renewed while the request, or
its call on a server, goes on, and ends by itself when the process is killed. What the store could
not be told is told when it is back. Run by `gateway.limits.limiter`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from gateway.ports import Clock, QuotaStore, StoreDown
from gateway.tasks import spawn, stop

_MOST_TOGETHER = 200
_GATEWAYS = "limit:gateways"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long places are given for, how often they are renewed, and how often is looked."""

    lease_s: float = 30.0
    renew_s: float = 10.0
    tick_s: float = 0.25


class Held:
    """The places this process holds, and the watch over them. `me` names the process.

    `sweep` is called now and then, for what of the limits is in memory only.
    """

    def __init__(
        self,
        store: QuotaStore,
        *,
        me: str,
        sweep: Callable[[float], None],
        down: Callable[[], str | None],
        times: LeaseTimes,
        clock: Clock,
    ) -> None:
        self.gateways = 1
        """How many gateways there were when that was last known."""
        self.places: set[tuple[str, str]] = set()
        self._freed: dict[tuple[str, str], float] = {}
        self._store = store
        self._me = me
        self._sweep = sweep
        self._down = down
        self._times = times
        self._clock = clock
        self._renew_at_s = 0.0
        self._was_down = False
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after what is held, unless that is done already."""
        if self._watch is None:
            self._watch = spawn(self._look_after(), name="watch over limits")

    async def close(self) -> None:
        """Give everything back, as far as the store can be reached."""
        if self._watch is None:
            return
        await stop(self._watch)
        for place in self.places:
            self._freed[place] = self._clock()
        self.places.clear()
        with contextlib.suppress(StoreDown):
            await self._free()
            await self._store.free([(_GATEWAYS, self._me)])

    def take(self, place: tuple[str, str]) -> None:
        """Keep a place that was given."""
        self.places.add(place)

    def free(self, place: tuple[str, str], *, at_once: bool = True) -> None:
        """Give a place back, if not at once then with the next look."""
        self.places.discard(place)
        self._freed[place] = self._clock() + self._times.lease_s
        if at_once and len(self._freed) == 1:
            spawn(self._free_now(), name="places given back")

    async def _free_now(self) -> None:
        await asyncio.sleep(0)  # those of one turn of the loop go together
        with contextlib.suppress(StoreDown):
            await self._free()

    async def _free(self) -> None:
        while self._freed:
            some = list(self._freed.items())[:_MOST_TOGETHER]
            await self._store.free([place for place, _ in some])
            for place, until_s in some:
                if self._freed.get(place) == until_s:
                    del self._freed[place]

    async def _look_after(self) -> None:
        while True:
            with contextlib.suppress(StoreDown):
                await self._look()
            await asyncio.sleep(self._times.tick_s)

    async def _look(self) -> None:
        now_s = self._clock()
        self._sweep(now_s)
        for place in [place for place, until_s in self._freed.items() if until_s <= now_s]:
            del self._freed[place]  # gone by itself
        is_down = self._down() is not None
        came_back, self._was_down = self._was_down and not is_down, is_down
        if came_back or now_s >= self._renew_at_s:
            await self._renew(now_s)
        await self._free()

    async def _renew(self, now_s: float) -> None:
        places = [(_GATEWAYS, self._me), *self.places]
        for first in range(0, len(places), _MOST_TOGETHER):
            some = places[first : first + _MOST_TOGETHER]
            taken = await self._store.hold(some, ttl_s=self._times.lease_s)
            if first == 0:
                self.gateways = taken[0]
            # What was freed meanwhile has been taken again.
            for place in some[1 if first == 0 else 0 :]:
                if place not in self.places:
                    self._freed[place] = now_s + self._times.lease_s
        self._renew_at_s = now_s + self._times.renew_s
