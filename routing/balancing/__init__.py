"""Balancing policies: one a file, each an implementation of `Balancer`."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Loads(Protocol):
    """What a policy may look at: one model on its servers, by place. `now_s` is monotonic seconds.

    `capacity` is relative to the others' and always above 0.
    """

    @property
    def capacity(self) -> Sequence[float]:
        """Return the capacities."""

    def work(self, place: int, now_s: float) -> float:
        """Return the batch rows under way, plus what recent failures count for."""

    def latency_s(self, place: int, now_s: float) -> float | None:
        """Return the peak-sensitive average latency in seconds, None before the first answer."""


class Balancer(Protocol):
    """Chooses one of several places. Never called with an empty sequence of them."""

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        """Return the place that is chosen; `random` yields floats in [0, 1)."""


def two_of(places: Sequence[int], random: Callable[[], float]) -> tuple[int, int]:
    """Draw two different places uniformly; of one place draw it twice.

    Comparing two draws costs the same at any fleet size and avoids the herding of "take the
    minimum" (Mitzenmacher 2001). Of equals take the first, which is as random.
    """
    count = len(places)
    if count == 1:
        return places[0], places[0]
    first = int(random() * count)
    second = int(random() * (count - 1))
    if second >= first:
        second += 1
    return places[first], places[second]
