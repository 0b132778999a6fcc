"""Of two random servers the one with less work for its share is chosen."""

import pytest

from routing.balancing.least_request import LeastRequest
from tests.unit.routing.balancing.loads import FixedLoad as Load
from tests.unit.routing.balancing.loads import pick
from tests.unit.routing.building import NOW_S, drawn


def test_a_single_candidate_is_taken_without_a_draw() -> None:
    assert pick(LeastRequest(), [Load(99)], drawn(), NOW_S) == 0


@pytest.mark.parametrize(
    ("loads", "draws", "chosen"),
    [
        ((Load(3), Load(1)), (0.0, 0.0), 1),  # the second draw skips what the first one took
        ((Load(3), Load(1)), (0.99, 0.0), 1),
        ((Load(1), Load(3)), (0.99, 0.0), 0),
        ((Load(2), Load(2)), (0.0, 0.0), 0),  # of equals the first one drawn
        ((Load(2), Load(2)), (0.99, 0.0), 1),
        ((Load(5), Load(9), Load(0)), (0.0, 0.0), 0),  # the third was not drawn
        ((Load(5), Load(9), Load(0)), (0.0, 0.99), 2),
        ((Load(5), Load(9), Load(0)), (0.99, 0.99), 2),
        ((Load(3, 1.0), Load(5, 2.0)), (0.0, 0.0), 1),  # 4 a unit against 3
        ((Load(1, 1.0), Load(4, 2.0)), (0.0, 0.0), 0),  # 2 a unit against 2.5
        ((Load(0, 1.0), Load(0, 2.0)), (0.0, 0.0), 1),  # idle ones differ by capacity
        ((Load(0, 2.0), Load(0, 1.0)), (0.0, 0.0), 0),
        ((Load(0.5), Load(0)), (0.0, 0.0), 1),  # half of a failure is left
        ((Load(1, latency=0.1), Load(0, latency=9.0)), (0.0, 0.0), 1),  # latency is not its matter
    ],
)
def test_the_less_loaded_of_the_two_drawn(
    loads: tuple[Load, ...], draws: tuple[float, ...], chosen: int
) -> None:
    assert pick(LeastRequest(), loads, drawn(*draws), NOW_S) == chosen


def test_the_load_is_looked_at_as_of_now() -> None:
    class Fading(Load):
        def work(self, now_s: float) -> float:
            return 2.0 if now_s < NOW_S + 1 else 0.0

    loads = [Fading(), Load(1)]
    chosen = [pick(LeastRequest(), loads, drawn(0.0, 0.0), NOW_S + s) for s in (0, 1)]
    assert chosen == [1, 0]
