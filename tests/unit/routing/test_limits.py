"""Whom a rule concerns, what a request costs, and where that is counted."""

import pytest

from routing import limits
from routing.limits import Applied, Cost, Dimension, Per, Rule, RuleBook


def rule(**fields):
    return Rule(**{"name": "r", "dimension": Dimension.REQUESTS, "most": 2, "per_s": 4.0} | fields)


def test_patterns_all_have_to_fit():
    only = rule(tenants=("a*", "b"), tiers=("free",), models=("llm-?",))
    assert only.concerns("abc", "free", "llm-1")
    assert only.concerns("b", "free", "llm-1")
    assert not only.concerns("c", "free", "llm-1")
    assert not only.concerns("a", "paid", "llm-1")
    assert not only.concerns("a", "free", "llm-10")
    assert not only.concerns("A", "free", "llm-1")
    assert rule().concerns("", "", "")


def test_every_quota_has_a_key_of_its_own():
    keys = [
        rule(per=Per.GLOBAL).key("a", "m"),
        rule(per=Per.TENANT).key("a", "m"),
        rule(per=Per.TENANT).key("m", "a"),
        rule(per=Per.TENANT_MODEL).key("a", "m"),
        rule(per=Per.TENANT_MODEL).key("a:m", ""),
        rule(per=Per.TENANT_MODEL).key("a", ":m"),
        rule(dimension=Dimension.CONCURRENT).key("a", "m"),
        rule(name="r2").key("a", "m"),
    ]
    assert len(set(keys)) == len(keys)
    assert rule(per=Per.GLOBAL).key("a", "m") == rule(per=Per.GLOBAL).key("b", "n")
    assert rule(per=Per.TENANT).key("a", "m") == rule(per=Per.TENANT).key("a", "n")
    assert not set("{}") & set(rule().key("{a}", "{m}"))


@pytest.mark.parametrize(
    ("dimension", "units"),
    [
        (Dimension.REQUESTS, 1),
        (Dimension.ROWS, 7),
        (Dimension.INPUT_BYTES, 80),
        (Dimension.ELEMENTS, 20),
        (Dimension.CONCURRENT, 1),
    ],
)
def test_each_dimension_counts_its_own(dimension, units):
    assert Cost(rows=7, input_bytes=80, elements=20).units(dimension) == units


def test_costs_are_times_rounded_up():
    third = rule(per_s=3.0, most=2)
    assert (third.cost_us(1), third.cost_us(3), third.burst_us) == (333_334, 1_000_000, 666_668)
    assert [third.remaining(used) for used in (0, 2, 333_334, 666_667, 10**9)] == [2, 1, 1, 0, 0]
    assert not third.counts_places


def test_a_book_says_what_applies_and_remembers_only_so_much(monkeypatch):
    free, everyone = rule(name="free", tiers=("free",)), rule(name="all")
    book = RuleBook([free, everyone])
    monkeypatch.setattr(limits, "_MOST_REMEMBERED", 2)
    for _ in range(2):
        first = book.applied("a", "free", "m")
        assert first == (
            Applied(free, free.key("a", "m")),
            Applied(everyone, everyone.key("a", "m")),
        )
        assert book.applied("a", "free", "m") is first
        for tier in ("paid", ""):
            assert [each.rule.name for each in book.applied("a", tier, "m")] == ["all"]


def test_without_rules_nothing_applies():
    assert RuleBook([]).applied("a", "", "m") == ()
