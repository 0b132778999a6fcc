"""Least request: of two random servers the one with less work for its share.

Envoy's policy of the same name and Finagle's P2C. Needs no history, so it is the default.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Loads, two_of


class LeastRequest:
    """Power of two choices on (work + 1) / capacity."""

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        """Return the less loaded of two places."""
        one, other = two_of(places, random)
        # +1 is the request about to be placed: it makes idle servers differ by capacity.
        work, capacity = loads.work, loads.capacity
        if (work(other, now_s) + 1) / capacity[other] < (work(one, now_s) + 1) / capacity[one]:
            return other
        return one
