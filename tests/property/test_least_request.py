"""Two random choices: never the worse of the two, and every server as likely as the others."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from routing.balancing.least_request import LeastRequest

DRAWS = st.floats(0, 1, exclude_max=True)


@dataclass(frozen=True)
class Load:
    """What a policy sees of a server."""

    in_flight: int
    capacity: float

    @property
    def pressure(self) -> float:
        return (self.in_flight + 1) / self.capacity


LOADS = st.lists(
    st.builds(Load, st.integers(0, 10_000), st.floats(0.01, 100)), min_size=2, max_size=40
)


def drawn(*numbers: float) -> Callable[[], float]:
    draws = iter(numbers)
    return lambda: next(draws)


def pair(count: int, one: float, other: float) -> tuple[int, int]:
    """The two different indexes that two draws stand for."""
    first = int(one * count)
    rest = [index for index in range(count) if index != first]
    return first, rest[int(other * len(rest))]


@given(LOADS, DRAWS, DRAWS)
def test_never_the_worse_of_the_pair(loads: list[Load], one: float, other: float) -> None:
    chosen = LeastRequest().pick(loads, drawn(one, other))
    first, second = pair(len(loads), one, other)
    assert chosen in (first, second)
    assert loads[chosen].pressure == min(loads[first].pressure, loads[second].pressure)


@given(st.integers(1, 50), DRAWS, DRAWS)
def test_the_index_is_always_one_of_the_candidates(count: int, one: float, other: float) -> None:
    chosen = LeastRequest().pick([Load(1, 1.0)] * count, drawn(one, other))
    assert 0 <= chosen < count


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_equal_servers_are_chosen_equally_often(count: int, seed: int) -> None:
    rounds = 500 * count
    draw = random.Random(seed).random
    loads = [Load(3, 1.0)] * count
    chosen = Counter(LeastRequest().pick(loads, draw) for _ in range(rounds))
    # 500 are expected for each; six standard deviations are at most 6 * sqrt(500).
    assert all(abs(chosen[index] - 500) < 135 for index in range(count)), chosen
