"""Rates: never more than burst + rate x time, and a wait that is told is enough."""

from hypothesis import given
from hypothesis import strategies as st

from routing.limits import SECOND_US, Dimension, Rule
from routing.quota import Ask, Charge, Quotas

RATES = st.floats(0.01, 1e6)
BURSTS = st.integers(1, 50)
STEPS = st.lists(st.tuples(st.integers(0, 2 * SECOND_US), st.integers(1, 5)), max_size=60)


def ask(rule: Rule, units: int) -> Ask:
    return Ask((Charge("k", rule.cost_us(units), rule.burst_us),))


@given(RATES, BURSTS, STEPS)
def test_in_no_time_more_than_burst_and_rate_allow(
    per_s: float, most: int, steps: list[tuple[int, int]]
) -> None:
    rule, quotas = Rule("r", Dimension.ROWS, most, per_s), Quotas()
    now_us, admitted = 10**15, list[tuple[int, int]]()
    for wait_us, units in steps:
        now_us += wait_us
        if not quotas.decide(ask(rule, units), now_us).refused:
            admitted.append((now_us, units))
    slack_us = rule.burst_us - most * SECOND_US / per_s
    assert slack_us <= 1 + rule.burst_us / 100
    if all(units == 1 for _, units in admitted):
        slack_us = 1
    for index, (since_us, _) in enumerate(admitted):
        total = 0
        for until_us, units in admitted[index:]:
            total += units
            allowed = most + per_s * (until_us - since_us + slack_us) / SECOND_US
            assert total <= allowed * (1 + 1e-9)


@given(st.floats(0.01, 10_000), BURSTS)
def test_a_whole_burst_is_let_through_at_once(per_s: float, most: int) -> None:
    rule, quotas = Rule("r", Dimension.ROWS, most, per_s), Quotas()
    refused = [quotas.decide(ask(rule, 1), 10**15).refused for _ in range(most + 1)]
    assert refused == [False] * most + [True]


@given(RATES, BURSTS, STEPS, st.integers(1, 50))
def test_who_waits_as_long_as_told_is_let_through(
    per_s: float, most: int, steps: list[tuple[int, int]], units: int
) -> None:
    rule, quotas = Rule("r", Dimension.ROWS, most, per_s), Quotas()
    now_us = 10**15
    for wait_us, earlier in steps:
        now_us += wait_us
        quotas.decide(ask(rule, earlier), now_us)
    units = min(units, most)
    answer = quotas.decide(ask(rule, units), now_us)
    if answer.refused:
        wait_us = rule.cost_us(units) + answer.charges[0].used - rule.burst_us
        assert wait_us > 0
        assert quotas.decide(ask(rule, units), now_us + wait_us - 1).refused
        assert not quotas.decide(ask(rule, units), now_us + wait_us).refused


@given(RATES, BURSTS, STEPS)
def test_what_is_charged_ahead_is_within_the_limit(
    per_s: float, most: int, steps: list[tuple[int, int]]
) -> None:
    """Whether or not it is given back later, all that was ever usable was charged."""
    rule, quotas = Rule("r", Dimension.ROWS, most, per_s), Quotas()
    began_us = now_us = 10**15
    usable_us = 0
    for wait_us, units in steps:
        now_us += wait_us
        cost_us = rule.cost_us(units)
        charge = Charge("k", cost_us, rule.burst_us, extra_us=3 * cost_us)
        (counted,) = quotas.decide(Ask((charge,)), now_us).charges
        if not counted.over:
            usable_us += cost_us + counted.extra_us
            quotas.give_back("k", counted.extra_us // 2, now_us)
            usable_us -= counted.extra_us // 2
        assert usable_us <= rule.burst_us + now_us - began_us
