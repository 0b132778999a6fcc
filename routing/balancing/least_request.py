"""Power of two choices: of two random servers the one with less work for its capacity.

Two draws cost the same at any fleet size and avoid the herding of "take the minimum"
(Mitzenmacher 2001; Envoy's least-request policy, Finagle's P2C).
"""

from collections.abc import Callable, Sequence

from routing.balancing import Load


class LeastRequest:
    """Power of two choices on (rows in flight + 1) / capacity."""

    def pick(self, candidates: Sequence[Load], random: Callable[[], float]) -> int:
        """Draw two different candidates uniformly and return the index of the less loaded one."""
        count = len(candidates)
        if count == 1:
            return 0
        first = int(random() * count)
        second = int(random() * (count - 1))
        if second >= first:
            second += 1
        if _pressure(candidates[second]) < _pressure(candidates[first]):
            return second
        return first


def _pressure(load: Load) -> float:
    # +1 is the request about to be placed: it makes idle servers differ by capacity.
    return (load.in_flight + 1) / load.capacity
