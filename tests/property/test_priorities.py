"""Classes and levels: nobody gets more than he may have, and none gets less for asking for more."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from routing.classes import PriorityClass
from routing.priorities import Asked, Entitled, Objection, Priorities, spread
from routing.queueing import Queueing

NAMES = ("a", "b", "c", "d", "e")
QUEUES = st.integers(0, 12).map(lambda levels: Queueing("dynamic_batching", levels=levels))
ASKED = st.builds(Asked, st.none() | st.sampled_from((*NAMES, "?")), st.integers(0, 14))


def priorities(count: int, *, enforce: bool = True) -> Priorities:
    classes = tuple(PriorityClass(name, rank) for rank, name in enumerate(NAMES[:count]))
    return Priorities(classes=classes, usual=classes[-1], enforce=enforce, configured=True)


PRIORITIES = st.integers(1, len(NAMES)).map(priorities)


def may_of(found: Priorities, data: st.DataObject) -> Entitled:
    one, other = (data.draw(st.sampled_from(found.classes)) for _ in range(2))
    return Entitled(max(one, other, key=rank), min(one, other, key=rank))


def rank(cls: PriorityClass) -> int:
    return cls.rank


@given(st.integers(2, 20), st.integers(1, 40))
def test_levels_rise_with_ranks_from_the_first_to_the_last(classes: int, levels: int) -> None:
    found = [spread(rank, classes, levels) for rank in range(classes)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, levels)
    if levels >= classes:
        assert len(set(found)) == classes
    steps = [after - before for before, after in pairwise(found)]
    assert max(steps) - min(steps) <= 1


@given(PRIORITIES, QUEUES, ASKED, st.data())
def test_nobody_gets_more_than_he_may_have(
    found: Priorities, queueing: Queueing, asked: Asked, data: st.DataObject
) -> None:
    may = may_of(found, data)
    got = found.rank(asked, may, "m", queueing)
    assert got.cls.rank >= may.most.rank
    assert 0 <= got.level <= queueing.levels
    if got.level:
        assert got.level >= found.level(may.most, "m", queueing)
        assert got.level >= asked.level  # what was asked for is never bettered
    named = found.named(asked.name or "")
    if named is not None:
        assert got.cls.rank >= named.rank
    if asked == Asked() or (asked.name is None and not queueing.levels):
        assert got.cls is may.usual
        assert got.objection is None


@given(PRIORITIES, QUEUES, st.integers(1, 11), st.data())
def test_asking_for_less_gives_no_more(
    found: Priorities, queueing: Queueing, level: int, data: st.DataObject
) -> None:
    may = may_of(found, data)
    more, less = (found.rank(Asked(None, at), may, "m", queueing) for at in (level, level + 1))
    if less.objection is not Objection.OUT_OF_RANGE and queueing.levels:
        assert more.level <= less.level
        # The usual class is that of its level, also where a more important one has the same.
        assert more.cls.rank <= less.cls.rank or more.cls is may.usual


@given(st.integers(1, len(NAMES)), QUEUES, ASKED, st.data())
def test_what_is_observed_is_what_would_be_done(
    count: int, queueing: Queueing, asked: Asked, data: st.DataObject
) -> None:
    strict, lenient = priorities(count), priorities(count, enforce=False)
    may = may_of(strict, data)
    done, seen = (p.rank(asked, may, "m", queueing) for p in (strict, lenient))
    assert done.objection is seen.objection
    assert seen.cls.rank <= done.cls.rank
    if done.objection is None:
        assert done == seen
