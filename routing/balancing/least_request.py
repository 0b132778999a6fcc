"""Least request: of two random servers the one with less work for its share.

Envoy's policy of the same name and Finagle's P2C. Needs no history, so it is the default.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Load, two_choices


class LeastRequest:
    """Power of two choices on (work + 1) / share."""

    def pick(self, candidates: Sequence[Load], random: Callable[[], float], now_s: float) -> int:
        """Return the index of the less loaded of two candidates."""

        def pressure(load: Load) -> float:
            # +1 is the request about to be placed: it makes idle servers differ by capacity.
            return (load.work(now_s) + 1) / load.share(now_s)

        return two_choices(candidates, random, pressure)
