"""Round robin: every server in turn, skipped as often as its share is below the largest.

Looks at no load at all; for models whose requests all cost the same on servers nobody else uses.
"""

from collections.abc import Callable, Sequence

from routing.balancing import Load


class RoundRobin:
    """Turns through the candidates. One instance a model: it remembers whose turn it is."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, candidates: Sequence[Load], random: Callable[[], float], now_s: float) -> int:
        """Return the index of the next candidate that is not skipped."""
        count = len(candidates)
        largest = max(load.share(now_s) for load in candidates)
        while True:  # the one with the largest share is never skipped
            self._turn = (self._turn + 1) % count
            if random() * largest < candidates[self._turn].share(now_s):
                return self._turn
