"""Peak EWMA: the cheaper of two random servers by latency x work.

The latency is the peak-sensitive, decayed average of Finagle's policy of the same name: a slower
answer counts at once, faster ones gradually. Suits servers of unlike speed behind one model.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Load, two_choices

_UNKNOWN_BUSY_S = 3600.0
"""What an unknown latency costs once a trial is under way: a cold server gets exactly one."""


class PeakEwma:
    """Power of two choices on latency x (work + 1) / share."""

    def pick(self, candidates: Sequence[Load], random: Callable[[], float], now_s: float) -> int:
        """Return the index of the cheaper of two candidates."""
        return two_choices(candidates, random, lambda load: _cost(load, now_s))


def _cost(load: Load, now_s: float) -> float:
    work = load.work(now_s)
    latency_s = load.latency_s(now_s)
    if latency_s is None:
        latency_s = _UNKNOWN_BUSY_S if work > 0 else 0.0
    return latency_s * (work + 1) / load.share(now_s)
