"""What a policy sees of a model's servers, written down by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from routing.balancing import Balancer


@dataclass(frozen=True)
class FixedLoad:
    """The load of one server, the same at all times."""

    rows: float = 0
    capacity: float = 1.0
    latency: float | None = None

    def work(self, now_s: float) -> float:
        return float(self.rows)


class FixedLoads:
    """These servers' loads, each at its place."""

    def __init__(self, loads: Sequence[FixedLoad]) -> None:
        self._loads = loads

    @property
    def capacity(self) -> Sequence[float]:
        return [load.capacity for load in self._loads]

    def work(self, place: int, now_s: float) -> float:
        return self._loads[place].work(now_s)

    def latency_s(self, place: int, now_s: float) -> float | None:
        return self._loads[place].latency


def pick(
    policy: Balancer, loads: Sequence[FixedLoad], random: Callable[[], float], now_s: float
) -> int:
    """Let a policy choose among all of these."""
    return policy.pick(FixedLoads(loads), range(len(loads)), random, now_s)
