"""Amounts add up, and only so many pairs are told apart."""

from routing.usage import OTHER, UNITS, Amounts, Pairs, add_to


def test_every_unit_is_added() -> None:
    amounts = Amounts(1, 2, 3, 4, 5, 6)
    amounts.add(Amounts(10, 20, 30, 40, 50, 60))
    assert [getattr(amounts, unit) for unit in UNITS] == [11, 22, 33, 44, 55, 66]


def test_totals_share_no_object_with_what_is_added() -> None:
    totals: dict[tuple[str, str], Amounts] = {}
    more = {("a", "m"): Amounts(requests=1)}
    add_to(totals, more)
    add_to(totals, more)
    assert totals == {("a", "m"): Amounts(requests=2)}
    assert more == {("a", "m"): Amounts(requests=1)}


def test_the_models_of_what_comes_too_late_are_one() -> None:
    told = Pairs(2)
    assert told.apart(("a", "m")) == ("a", "m")
    assert told.apart(("b", "m")) == ("b", "m")
    assert told.apart(("a", "late")) == ("a", OTHER)
    assert told.apart(("c", "late")) == ("c", OTHER)
    assert told.apart(("a", "m")) == ("a", "m")
