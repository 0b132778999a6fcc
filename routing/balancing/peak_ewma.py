"""Peak EWMA: the cheaper of two random servers by latency x work.

The latency is the peak-sensitive, decayed average of Finagle's policy of the same name: a slower
answer counts at once, faster ones gradually. Suits servers of unlike speed behind one model.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Loads, two_of

_UNKNOWN_BUSY_S = 3600.0
"""What an unknown latency costs once a trial is under way: a cold server gets exactly one."""


class PeakEwma:
    """Power of two choices on latency x (work + 1) / capacity."""

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        """Return the cheaper of two places."""
        one, other = two_of(places, random)
        return other if _cost(loads, other, now_s) < _cost(loads, one, now_s) else one


def _cost(loads: Loads, place: int, now_s: float) -> float:
    work = loads.work(place, now_s)
    latency_s = loads.latency_s(place, now_s)
    if latency_s is None:
        latency_s = _UNKNOWN_BUSY_S if work > 0 else 0.0
    return latency_s * (work + 1) / loads.capacity[place]
