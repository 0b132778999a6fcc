"""Quotas in memory beyond what all stores have in common (see tests/stores)."""

from routing import quota
from routing.quota import Ask, Charge, Place, Quotas

SECOND = 1_000_000


def charge(key="k", cost=1, burst=2, **rest):
    return Charge(key, cost * SECOND, burst * SECOND, **rest)


def test_what_is_not_in_use_takes_no_memory(monkeypatch):
    monkeypatch.setattr(quota, "_SWEEP_FROM", 10)
    quotas = Quotas()
    quotas._sweep_at = 10
    for number in range(5):
        quotas.decide(Ask((charge(f"r{number}"),), (Place(f"p{number}", 1, "h"),), 1000), 0)
    assert len(quotas) == 10  # all in use
    for number in range(10):
        quotas.decide(Ask((charge(f"x{number}"),)), 2 * SECOND)
    assert len(quotas) == 10  # only the new ones are


def test_a_clock_that_was_set_back_costs_one_burst_at_the_most():
    quotas = Quotas()
    quotas.decide(Ask((charge(cost=2),)), 1000 * SECOND)
    answer = quotas.decide(Ask((charge(),)), 10 * SECOND)
    assert answer.refused
    assert answer.charges[0].used == 2 * SECOND


def test_looking_leaves_nothing_behind():
    quotas = Quotas()
    answer = quotas.decide(Ask((charge(cost=0),), (Place("p", 0, "h", enforce=False),)), 0)
    assert not answer.refused
    assert answer.charges[0].used == 0
    assert answer.places[0].used == 0
    assert len(quotas) == 0


def test_what_is_over_and_only_observed_changes_nothing():
    quotas = Quotas()
    quotas.decide(Ask((charge(cost=2),), (Place("p", 1, "h"),)), 0)
    answer = quotas.decide(
        Ask((charge(enforce=False),), (Place("p", 1, "i", enforce=False),)), SECOND // 2
    )
    assert not answer.refused
    assert [counted.over for counted in (*answer.charges, *answer.places)] == [True, True]
    assert (answer.charges[0].used, answer.places[0].used) == (SECOND * 3 // 2, 1)


def test_what_is_given_back_is_there_again():
    quotas = Quotas()
    quotas.decide(Ask((charge(cost=2),), (Place("p", 1, "h"),)), 0)
    quotas.give_back("k", SECOND, 0)
    quotas.give_back("unknown", SECOND, 0)
    quotas.free("p", "h")
    assert not quotas.decide(Ask((charge(),), (Place("p", 1, "i"),)), 0).refused
    quotas.give_back("k", 100 * SECOND, SECOND)
    assert not quotas.decide(Ask((charge(cost=2),)), SECOND).refused
    quotas.forget("k")
    quotas.forget("p")
    assert not quotas.decide(Ask((charge(cost=2),), (Place("p", 1, "j"),)), SECOND).refused


def test_places_are_held_until_their_time_whatever_the_limit():
    quotas = Quotas()
    assert quotas.hold("p", "h", until_us=10, now_us=0) == 1
    assert quotas.hold("p", "i", until_us=20, now_us=0) == 2
    assert quotas.decide(Ask((), (Place("p", 1, "j"),)), 9).refused
    assert quotas.hold("p", "i", until_us=20, now_us=10) == 1
    assert not quotas.decide(Ask((), (Place("p", 1, "j"),)), 20).refused


def test_only_whole_costs_are_charged_ahead():
    (counted,) = Quotas().decide(Ask((charge(cost=2, burst=5, extra_us=SECOND * 9),)), 0).charges
    assert (counted.used, counted.extra_us) == (4 * SECOND, 2 * SECOND)
