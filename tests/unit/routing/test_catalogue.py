"""The default version: settled by a quorum, and never a version nobody has ready."""

import pytest

from routing.catalogue import choose_default


@pytest.mark.parametrize(
    ("ready_on", "holders", "quorum", "previous", "chosen"),
    [
        ({}, 0, 0.5, None, None),
        ({}, 0, 0.5, 3, None),
        ({1: 0, 2: 0}, 0, 0.5, 1, None),
        ({1: 1}, 1, 0.5, None, 1),
        ({1: 4, 2: 2, 10: 2}, 4, 0.5, 1, 10),  # numeric order, and half is enough
        ({1: 4, 2: 1}, 4, 0.5, 1, 1),  # the first server with a new version takes nothing
        ({1: 4, 2: 1}, 4, 0.25, 1, 2),
        ({1: 3, 2: 4}, 4, 1.0, 1, 2),
        ({1: 1, 2: 1, 3: 1}, 3, 0.5, 2, 2),  # no quorum: the previous one stays
        ({1: 1, 2: 0, 3: 1}, 3, 0.5, 2, 3),  # it is gone: the higher of equals
        ({1: 2, 2: 1}, 5, 0.5, 9, 1),  # it is gone: what most servers have
        ({1: 2, 2: 1}, 5, 0.5, None, 1),
    ],
)
def test_the_default_version(
    ready_on: dict[int, int],
    holders: int,
    quorum: float,
    previous: int | None,
    chosen: int | None,
) -> None:
    found = choose_default(ready_on, holders=holders, quorum=quorum, previous=previous)
    assert found == chosen


def test_exactly_the_quorum_is_enough_whatever_the_rounding() -> None:
    assert 0.28 * 25 > 7
    assert choose_default({1: 25, 2: 7}, holders=25, quorum=0.28, previous=1) == 2
