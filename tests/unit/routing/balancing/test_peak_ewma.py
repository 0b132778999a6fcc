"""Of two random servers the one where latency x work for its share is less is chosen."""

import pytest

from routing.balancing.peak_ewma import PeakEwma
from tests.unit.routing.balancing.loads import FixedLoad as Load
from tests.unit.routing.balancing.loads import pick
from tests.unit.routing.building import NOW_S, drawn


def test_a_single_candidate_is_taken_without_a_draw() -> None:
    assert pick(PeakEwma(), [Load(99)], drawn(), NOW_S) == 0


@pytest.mark.parametrize(
    ("loads", "draws", "chosen"),
    [
        ((Load(0, latency=0.2), Load(0, latency=0.1)), (0.0, 0.0), 1),
        ((Load(0, latency=0.2), Load(1, latency=0.1)), (0.0, 0.0), 0),  # equal: the first drawn
        ((Load(0, latency=0.2), Load(2, latency=0.1)), (0.0, 0.0), 0),
        ((Load(0, 1.0, 0.1), Load(0, 2.0, 0.1)), (0.0, 0.0), 1),
        ((Load(0, latency=0.1), Load(0)), (0.0, 0.0), 1),  # a cold server gets one trial
        ((Load(0, latency=0.1), Load(1)), (0.0, 0.0), 0),  # and no second one meanwhile
        ((Load(50, latency=60.0), Load(1)), (0.0, 0.0), 0),
        ((Load(1), Load(1)), (0.99, 0.0), 1),
        ((Load(0, latency=0.1), Load(0, latency=0.9), Load(0)), (0.0, 0.0), 0),
    ],
)
def test_the_cheaper_of_the_two_drawn(
    loads: tuple[Load, ...], draws: tuple[float, ...], chosen: int
) -> None:
    assert pick(PeakEwma(), loads, drawn(*draws), NOW_S) == chosen
