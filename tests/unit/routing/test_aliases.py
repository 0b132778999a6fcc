"""Aliases: shares by weight, the same arm for the same caller, nothing for weight 0."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.aliases import Alias, Aliases, Arm, StickTo


def split(*weights: float, **settings: str) -> Alias:
    arms = [Arm(f"m{at}", at, weight) for at, weight in enumerate(weights, start=1)]
    return Alias("alias", arms, **settings)


def aliases(alias: Alias, point: float = 0.0) -> Aliases:
    return Aliases({alias.name: alias}, lambda: point)


def resolve(known: Aliases, name: str = "alias", version: int | None = None, **headers: str):
    return known.resolve(name, version, tenant="t", header=headers.get)


@pytest.mark.parametrize(
    ("point", "chosen"),
    [(0.0, "m1"), (0.249, "m1"), (0.25, "m2"), (0.999, "m2")],
)
def test_a_request_takes_its_chance(point, chosen):
    assert split(1, 3).choose(None, lambda: point).model == chosen


def test_an_arm_without_weight_gets_nothing_even_where_sums_round():
    for weights in ((0, 0.1, 0.2, 0), (0.1, 0.7, 0.2, 0)):
        arms = {split(*weights).choose(None, lambda p=p: p).weight for p in (0.0, 0.5, 1 - 2**-53)}
        assert 0 not in arms
    assert split(0.1, 0.2, 0).choose(None, lambda: 1.0).model == "m2"


def test_shares_of_sticky_callers_follow_the_weights():
    alias = split(90, 10)
    count = Counter(alias.choose(str(user), random.random).model for user in range(20_000))
    assert abs(count["m2"] / 20_000 - 0.1) < 0.01


def test_more_weight_moves_callers_into_the_arm_and_none_out_of_it():
    before, after = split(90, 10), split(80, 20)
    moved = Counter(
        (before.choose(user, random.random).model, after.choose(user, random.random).model)
        for user in map(str, range(5_000))
    )
    assert moved["m2", "m1"] == 0
    assert moved["m1", "m2"] > 0


def test_salt_and_name_draw_callers_anew():
    users = [str(user) for user in range(200)]

    def drawn(alias: Alias) -> list[str]:
        return [alias.choose(user, random.random).model for user in users]

    same = Alias("other", split(1, 1).arms)
    assert drawn(split(1, 1)) == drawn(split(1, 1))
    assert drawn(split(1, 1)) != drawn(split(1, 1, salt="x"))
    assert drawn(split(1, 1)) != drawn(same)


def test_a_name_that_is_no_alias_means_itself():
    assert resolve(aliases(split(1)), "m", None) == ("m", None)
    assert aliases(split(1)).stand_in("m", None) == ("m", None)


def test_a_request_that_names_a_version_means_the_model():
    assert resolve(aliases(split(1)), "alias", 7) == ("alias", 7)
    assert aliases(split(1)).stand_in("alias", 7) == ("alias", 7)


def test_the_heaviest_arm_answers_questions_and_of_equals_the_first():
    assert aliases(split(1, 3, 3)).stand_in("alias", None) == ("m2", 2)


def test_a_header_sticks_and_without_it_chance_decides():
    alias = split(1, 1, stick_to=StickTo.HEADER, header="X-User")
    by_user = {resolve(aliases(alias, point), **{"X-User": "u"}) for point in (0.0, 0.9)}
    by_chance = {resolve(aliases(alias, point)) for point in (0.0, 0.9)}
    assert (len(by_user), len(by_chance)) == (1, 2)


def test_without_stickiness_the_same_caller_takes_its_chance():
    by_chance = {resolve(aliases(split(1, 1), point), X_User="u") for point in (0.0, 0.9)}
    assert len(by_chance) == 2


def test_a_tenant_sticks():
    alias = split(1, 1, stick_to=StickTo.TENANT)
    assert len({resolve(aliases(alias, point)) for point in (0.0, 0.9)}) == 1


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=6).filter(any),
    st.one_of(st.none(), st.text()),
    st.floats(0, 1, exclude_max=True),
)
def test_whoever_asks_gets_an_arm_that_takes_requests(weights, key, point):
    assert split(*weights).choose(key, lambda: point).weight > 0
