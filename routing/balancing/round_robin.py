"""Round robin: every server in turn, skipped as often as its share is below the largest.

Looks at no load at all; for models whose requests all cost the same on servers nobody else uses.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Loads


class RoundRobin:
    """Turns through the places. One instance a model: it remembers whose turn it is."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        """Return the next place that is not skipped."""
        count, capacity = len(places), loads.capacity
        largest = max(capacity[place] for place in places)
        while True:  # the one with the largest capacity is never skipped
            self._turn = (self._turn + 1) % count
            place = places[self._turn]
            if random() * largest < capacity[place]:
                return place
