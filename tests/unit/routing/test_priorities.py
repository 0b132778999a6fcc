"""Which class a request gets, and what its server is told of it."""

from dataclasses import replace

import pytest

from routing.classes import CLASSES, CRITICAL, SHEDDABLE, STANDARD, PriorityClass
from routing.priorities import Asked, Entitled, Grant, Objection, Priorities, entitled, spread
from routing.queueing import ENSEMBLE, NO_QUEUES, Queueing

THREE = Queueing("dynamic_batching", levels=3)
TEN = Queueing("dynamic_batching", levels=10)
ALL = Entitled(STANDARD, CRITICAL)
COMMON = Entitled(STANDARD, STANDARD)


def ranked(asked, may=ALL, queueing=THREE, model="m", **fields):
    found = Priorities(configured=True, **fields).rank(asked, may, model, queueing)
    return found.cls, found.level, found.objection


@pytest.mark.parametrize(
    ("classes", "levels", "expected"),
    [
        (3, 3, [1, 2, 3]),
        (3, 1, [1, 1, 1]),
        (3, 2, [1, 2, 2]),
        (3, 10, [1, 6, 10]),
        (2, 5, [1, 5]),
        (4, 2, [1, 1, 2, 2]),
        (5, 3, [1, 2, 2, 3, 3]),
        (1, 3, [0]),
        (3, 0, [0, 0, 0]),
    ],
)
def test_the_first_class_is_level_1_and_the_last_is_the_last(classes, levels, expected):
    assert [spread(rank, classes, levels) for rank in range(classes)] == expected


def test_who_asks_for_nothing_has_the_usual_class():
    assert ranked(Asked()) == (STANDARD, 2, None)
    assert ranked(Asked(), Entitled(SHEDDABLE, CRITICAL)) == (SHEDDABLE, 3, None)


def test_a_class_is_asked_for_by_name():
    assert ranked(Asked("critical")) == (CRITICAL, 1, None)
    assert ranked(Asked("sheddable")) == (SHEDDABLE, 3, None)
    assert ranked(Asked("critical"), COMMON) == (STANDARD, 2, Objection.LOWERED)


@pytest.mark.parametrize("name", ["", "CRITICAL", "vital"])
def test_a_name_that_is_none_is_told(name):
    assert ranked(Asked(name)) == (STANDARD, 2, Objection.UNKNOWN_CLASS)


def test_a_level_is_asked_for_by_number():
    assert ranked(Asked(level=1)) == (CRITICAL, 1, None)
    assert ranked(Asked(level=3)) == (SHEDDABLE, 3, None)
    assert ranked(Asked(level=1), COMMON) == (STANDARD, 2, Objection.LOWERED)
    assert ranked(Asked(level=4)) == (STANDARD, 0, Objection.OUT_OF_RANGE)


def test_levels_between_those_of_classes_are_kept():
    assert ranked(Asked(level=4), queueing=TEN) == (STANDARD, 4, None)
    assert ranked(Asked(level=7), queueing=TEN) == (SHEDDABLE, 7, None)
    # Level 4 is before that of the most important class to be had.
    assert ranked(Asked(level=4), COMMON, TEN) == (STANDARD, 6, Objection.LOWERED)
    assert ranked(Asked(level=7), COMMON, TEN) == (SHEDDABLE, 7, None)


def test_a_level_that_several_classes_share_means_the_usual_one():
    one, two = replace(THREE, levels=1), replace(THREE, levels=2)
    assert ranked(Asked(level=1), queueing=one) == (STANDARD, 1, None)
    assert ranked(Asked(level=2), Entitled(SHEDDABLE, CRITICAL), two) == (SHEDDABLE, 2, None)
    assert ranked(Asked(level=2), Entitled(CRITICAL, CRITICAL), two) == (STANDARD, 2, None)


def test_of_a_class_and_a_level_the_less_important_counts():
    assert ranked(Asked("critical", 3)) == (SHEDDABLE, 3, None)
    assert ranked(Asked("sheddable", 1)) == (SHEDDABLE, 3, None)
    assert ranked(Asked("critical", 1), COMMON) == (STANDARD, 2, Objection.LOWERED)


def test_a_model_without_levels_is_told_nothing():
    assert ranked(Asked("critical"), queueing=NO_QUEUES) == (CRITICAL, 0, None)
    assert ranked(Asked("critical"), COMMON, NO_QUEUES) == (STANDARD, 0, Objection.LOWERED)
    assert ranked(Asked(level=99), queueing=NO_QUEUES) == (STANDARD, 0, None)


def test_what_is_written_of_a_model_counts():
    levels = {"m": {"critical": 1, "standard": 1, "sheddable": 9}}
    assert ranked(Asked(), levels=levels) == (STANDARD, 1, None)
    assert ranked(Asked("sheddable"), levels=levels) == (SHEDDABLE, 3, None)  # there is no 9
    assert ranked(Asked(level=2), levels=levels) == (SHEDDABLE, 2, None)
    assert ranked(Asked(), levels=levels, queueing=NO_QUEUES) == (STANDARD, 0, None)
    assert ranked(Asked(), levels=levels, model="other") == (STANDARD, 2, None)


def test_an_ensemble_hands_on_what_is_written_of_it():
    ensemble = Queueing(ENSEMBLE)
    levels = {"m": {"critical": 1, "standard": 2, "sheddable": 9}}
    assert ranked(Asked(), queueing=ensemble, levels=levels) == (STANDARD, 2, None)
    assert ranked(Asked("sheddable"), queueing=ensemble, levels=levels) == (SHEDDABLE, 9, None)
    lowered = ranked(Asked(level=1), COMMON, queueing=ensemble, levels=levels)
    assert lowered == (STANDARD, 2, Objection.LOWERED)
    assert ranked(Asked(), queueing=ensemble) == (STANDARD, 0, None)


def test_what_is_only_observed_is_had():
    only = {"enforce": False}
    assert ranked(Asked("critical"), COMMON, **only) == (CRITICAL, 1, Objection.LOWERED)
    assert ranked(Asked(level=1), COMMON, **only) == (CRITICAL, 1, Objection.LOWERED)
    assert ranked(Asked("vital"), COMMON, **only) == (STANDARD, 2, Objection.UNKNOWN_CLASS)
    assert ranked(Asked(level=4), COMMON, **only) == (STANDARD, 0, Objection.OUT_OF_RANGE)


def test_a_class_has_a_time_in_the_queue():
    classes = tuple(replace(cls, queue_timeout_us=5 + cls.rank) for cls in CLASSES)
    priorities = Priorities(classes=classes, usual=classes[1], configured=True)
    may = Entitled(classes[1], classes[1])
    assert priorities.rank(Asked(), may, "m", THREE).timeout_us == 6
    assert priorities.rank(Asked("sheddable"), may, "m", NO_QUEUES).timeout_us == 7
    assert priorities.rank(Asked("critical"), may, "m", THREE).timeout_us == 6


@pytest.mark.parametrize(
    ("grants", "usual", "most"),
    [
        ([], STANDARD, STANDARD),
        ([Grant(CRITICAL)], CRITICAL, CRITICAL),
        ([Grant(SHEDDABLE)], SHEDDABLE, SHEDDABLE),
        ([Grant(SHEDDABLE, CRITICAL)], SHEDDABLE, CRITICAL),
        ([Grant(most=CRITICAL)], STANDARD, CRITICAL),
        ([Grant(most=SHEDDABLE)], SHEDDABLE, SHEDDABLE),
        ([Grant(), Grant(CRITICAL)], CRITICAL, CRITICAL),
        ([Grant(SHEDDABLE), Grant(CRITICAL)], SHEDDABLE, SHEDDABLE),
        ([Grant(SHEDDABLE), Grant(STANDARD, CRITICAL)], SHEDDABLE, CRITICAL),
        ([Grant(CRITICAL), Grant(STANDARD, STANDARD)], CRITICAL, CRITICAL),
        ([Grant(most=STANDARD), Grant(CRITICAL, CRITICAL)], STANDARD, STANDARD),
        ([Grant(most=CRITICAL), Grant(SHEDDABLE, SHEDDABLE)], SHEDDABLE, CRITICAL),
    ],
)
def test_the_nearer_word_counts(grants, usual, most):
    assert entitled(grants, STANDARD) == (usual, most)


def test_tenants_and_tiers():
    priorities = Priorities(
        tenants={"a": Grant(most=CRITICAL)}, tiers={"t": Grant(SHEDDABLE)}, configured=True
    )
    assert priorities.entitled("a", "") == (STANDARD, CRITICAL)
    assert priorities.entitled("a", "t") == (SHEDDABLE, CRITICAL)
    assert priorities.entitled("b", "t") == (SHEDDABLE, SHEDDABLE)
    assert priorities.entitled("b", "?") == (STANDARD, STANDARD)
    tiered = replace(priorities, tier_of={"b": "t"})
    assert tiered.entitled("b", "") == (SHEDDABLE, SHEDDABLE)
    assert tiered.entitled("b", "other") == (STANDARD, STANDARD)


def test_where_nothing_is_configured_all_may_ask():
    assert Priorities().entitled("a", "") == (STANDARD, CRITICAL)


def test_a_single_class_leaves_levels_to_the_model():
    only = PriorityClass("only", 0)
    found = Priorities(classes=(only,), usual=only, configured=True)
    assert found.rank(Asked(), Entitled(only, only), "m", THREE) == (only, 0, 0, None)
    assert found.rank(Asked(level=3), Entitled(only, only), "m", THREE) == (only, 3, 0, None)
