"""All in turn, whatever their work; the smaller ones are skipped now and then."""

import pytest

from routing.balancing.round_robin import RoundRobin
from tests.unit.routing.balancing.loads import FixedLoad as Load
from tests.unit.routing.balancing.loads import pick
from tests.unit.routing.building import NOW_S, drawn


def test_equal_servers_take_turns_whatever_their_work() -> None:
    policy = RoundRobin()
    loads = [Load(50, latency=9.0), Load(0), Load(7)]
    turns = [pick(policy, loads, lambda: 0.999, NOW_S) for _ in range(7)]
    assert turns == [0, 1, 2, 0, 1, 2, 0]


def test_a_smaller_server_is_skipped_as_often_as_its_share_is_smaller() -> None:
    policy = RoundRobin()
    loads = [Load(capacity=1.0), Load(capacity=4.0)]
    # a quarter of the draws is below its share
    dice = drawn(0.24, 0.9, 0.25, 0.9, 0.9, 0.9, 0.0, 0.9)
    assert [pick(policy, loads, dice, NOW_S) for _ in range(5)] == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("left", [1, 2])
def test_fewer_candidates_than_before_are_no_trouble(left: int) -> None:
    policy = RoundRobin()
    loads = [Load() for _ in range(5)]
    for _ in range(4):
        pick(policy, loads, lambda: 0.0, NOW_S)
    turns = {pick(policy, loads[:left], lambda: 0.0, NOW_S) for _ in range(left)}
    assert turns == set(range(left))
