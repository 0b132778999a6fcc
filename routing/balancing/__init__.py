"""Balancing policies: one a file, each an implementation of `Balancer`."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Load(Protocol):
    """What a policy may look at. `now_s` is monotonic seconds."""

    def work(self, now_s: float) -> float:
        """Return the batch rows under way, plus what recent failures count for."""

    def share(self, now_s: float) -> float:
        """Return the capacity relative to the others'. Always above 0."""

    def latency_s(self, now_s: float) -> float | None:
        """Return the peak-sensitive average latency in seconds, None before the first answer."""


class Balancer(Protocol):
    """Chooses one of several candidates. Never called with an empty sequence."""

    def pick(self, candidates: Sequence[Load], random: Callable[[], float], now_s: float) -> int:
        """Return the index of the chosen candidate; `random` yields floats in [0, 1)."""


def two_choices(
    candidates: Sequence[Load], random: Callable[[], float], cost: Callable[[Load], float]
) -> int:
    """Draw two different candidates uniformly and return the index of the cheaper one.

    Two draws cost the same at any fleet size and avoid the herding of "take the minimum"
    (Mitzenmacher 2001). Of equals it is the first drawn, which is as random.
    """
    count = len(candidates)
    if count == 1:
        return 0
    first = int(random() * count)
    second = int(random() * (count - 1))
    if second >= first:
        second += 1
    return second if cost(candidates[second]) < cost(candidates[first]) else first
