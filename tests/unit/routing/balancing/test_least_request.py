"""Of two random servers the one with less work for its capacity is chosen."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from routing.balancing.least_request import LeastRequest


@dataclass(frozen=True)
class Load:
    """What a policy sees of a server."""

    in_flight: int = 0
    capacity: float = 1.0


def drawn(*numbers: float) -> Callable[[], float]:
    draws: Iterable[float] = iter(numbers)
    return lambda: next(iter(draws))


def test_a_single_candidate_is_taken_without_a_draw() -> None:
    assert LeastRequest().pick([Load(99)], drawn()) == 0


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
    ],
)
def test_the_less_loaded_of_the_two_drawn(
    loads: tuple[Load, ...], draws: tuple[float, ...], chosen: int
) -> None:
    assert LeastRequest().pick(loads, drawn(*draws)) == chosen
