import pytest

from config.priority_checks import check_priorities
from config.yaml_lines import parse


def _check(text: str) -> list[str]:
    root, problems = parse(f"{text}\n".encode(), "f")
    assert problems == []
    return [str(problem) for problem in check_priorities(root)]


@pytest.mark.parametrize(
    "text",
    [
        "servers: []",
        "priority: {}",
        "priority: {default: critical}",
        "priority: {classes: [{name: standard}]}",
        "priority: {classes: [{name: a, ceiling: 1.0}, {name: b}, {name: c, ceiling: 0.5}],"
        " default: b}",
        "tenants: {a: {priority_class: critical, max_priority_class: critical}}",
        "tiers: {a: {priority_class: standard, max_priority_class: critical}}",
        "tiers: {a: {max_priority_class: sheddable}}",
        "models: {m: {priority_levels: {critical: 1, standard: 1, sheddable: 4}}}",
        "models: {m: {priority_levels: {}}}",
    ],
)
def test_what_makes_sense(text):
    assert _check(text) == []


def test_a_class_is_written_once():
    text = "priority:\n  default: a\n  classes:\n  - {name: a}\n  - {name: a}"
    assert _check(text) == [
        "f:5: priority.classes[1]: 'a' is in line 4 already - write it once",
    ]


def test_ceilings_fall():
    text = "priority: {classes: [{name: standard, ceiling: 0.5}, {name: b, ceiling: 0.6}]}"
    assert _check(text) == [
        "f:1: priority.classes[1].ceiling: 0.6 is above the ceiling of a more important class"
        " (0.5) - lower it, or put the classes in order, the most important first"
    ]


def test_the_usual_class_is_there():
    assert _check("priority: {classes: [{name: a}]}") == [
        "f:1: priority.classes: none of them is 'standard', so nothing says which one callers have"
        " of whom nothing is written - name it as `priority.default`"
    ]
    assert _check("priority: {default: standart}") == [
        "f:1: priority.default: there is no priority class 'standart' - did you mean 'standard'?"
    ]


def test_classes_of_tenants_and_tiers_are_there():
    told = "there is no priority class 'x' - there are: critical, standard, sheddable"
    assert _check("{tenants: {a: {priority_class: x}}, tiers: {b: {max_priority_class: x}}}") == [
        f"f:1: tenants.a.priority_class: {told}",
        f"f:1: tiers.b.max_priority_class: {told}",
    ]


def test_nobody_has_more_than_he_may_ask_for():
    assert _check("tiers: {a: {priority_class: critical, max_priority_class: sheddable}}") == [
        "f:1: tiers.a.max_priority_class: 'sheddable' is less important than priority_class"
        " ('critical'), which its requests have without asking - raise it, or lower priority_class"
    ]


def test_levels_are_of_all_classes_and_rise():
    assert _check("models: {m: {priority_levels: {critical: 1, x: 2}}}") == [
        "f:1: models.m.priority_levels.x: there is no priority class 'x' - correct it or remove it",
        "f:1: models.m.priority_levels: says nothing of standard, sheddable - write the level of"
        " every class, or of none",
    ]
    assert _check("models: {m: {priority_levels: {sheddable: 1, standard: 2, critical: 2}}}") == [
        "f:1: models.m.priority_levels.sheddable: sheddable has level 1, and the more important"
        " standard has 2 - 1 is served first, so let the levels rise"
    ]
