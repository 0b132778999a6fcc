"""Policies: never the worse of two choices, every server as likely as its share says."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from tests.unit.routing.balancing.loads import FixedLoad, pick
from tests.unit.routing.building import NOW_S, drawn

DRAWS = st.floats(0, 1, exclude_max=True)
LOADS = st.lists(
    st.builds(
        FixedLoad,
        st.floats(0, 10_000),
        st.floats(0.01, 100),
        st.none() | st.floats(0, 1000),
    ),
    min_size=2,
    max_size=40,
)


def pair(count: int, one: float, other: float) -> tuple[int, int]:
    """The two different indexes that two draws stand for."""
    first = int(one * count)
    rest = [index for index in range(count) if index != first]
    return first, rest[int(other * len(rest))]


def pressure(load: FixedLoad) -> float:
    return (load.rows + 1) / load.capacity


def cost(load: FixedLoad) -> float:
    """Latency x work for the share; an unknown latency is free for one request at a time."""
    unknown_s = 3600.0 if load.rows else 0.0
    latency_s = unknown_s if load.latency is None else load.latency
    return latency_s * (load.rows + 1) / load.capacity


@given(LOADS, DRAWS, DRAWS)
def test_least_request_never_picks_the_busier_of_the_pair(
    loads: list[FixedLoad], one: float, other: float
) -> None:
    chosen = pick(LeastRequest(), loads, drawn(one, other), NOW_S)
    first, second = pair(len(loads), one, other)
    assert chosen in (first, second)
    assert pressure(loads[chosen]) == min(pressure(loads[first]), pressure(loads[second]))


@given(LOADS, DRAWS, DRAWS)
def test_peak_ewma_never_picks_the_more_costly_of_the_pair(
    loads: list[FixedLoad], one: float, other: float
) -> None:
    chosen = pick(PeakEwma(), loads, drawn(one, other), NOW_S)
    first, second = pair(len(loads), one, other)
    assert chosen in (first, second)
    assert cost(loads[chosen]) == min(cost(loads[first]), cost(loads[second]))


POLICIES = st.sampled_from([LeastRequest, PeakEwma, RoundRobin])


@given(POLICIES, LOADS, st.integers(0, 2**32))
def test_the_index_is_always_one_of_the_candidates(
    policy: type[Balancer], loads: list[FixedLoad], seed: int
) -> None:
    balancer, draw = policy(), random.Random(seed).random
    for count in (len(loads), 1, len(loads) // 2 or 1, len(loads)):
        assert 0 <= pick(balancer, loads[:count], draw, NOW_S) < count


@given(POLICIES, st.integers(2, 8), st.integers(0, 2**32))
def test_equal_servers_are_chosen_equally_often(
    policy: type[Balancer], count: int, seed: int
) -> None:
    balancer, draw = policy(), random.Random(seed).random
    loads = [FixedLoad(3, latency=0.1)] * count
    chosen = Counter(pick(balancer, loads, draw, NOW_S) for _ in range(500 * count))
    # 500 are expected for each; six standard deviations are at most 6 * sqrt(500).
    assert all(abs(chosen[index] - 500) < 135 for index in range(count)), chosen


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(0, 2**32))
def test_round_robin_is_fair_by_share(shares: list[float], seed: int) -> None:
    policy, draw = RoundRobin(), random.Random(seed).random
    loads = [FixedLoad(number, share) for number, share in enumerate(shares)]
    rounds = 3000
    chosen = Counter(pick(policy, loads, draw, NOW_S) for _ in range(rounds))
    for index, share in enumerate(shares):
        expected = rounds * share / sum(shares)
        assert abs(chosen[index] - expected) < 6 * (rounds * 0.25) ** 0.5 + 1, chosen


@given(st.integers(1, 8), st.integers(1, 50))
def test_round_robin_gives_equal_servers_exactly_the_same(count: int, rounds: int) -> None:
    policy = RoundRobin()
    loads = [FixedLoad(number) for number in range(count)]
    chosen = Counter(pick(policy, loads, lambda: 0.999, NOW_S) for _ in range(rounds * count))
    assert set(chosen.values()) == {rounds}
