"""One breaker: what trips it, how long it is open, and how it closes again."""

import math

import pytest

from routing.health.breaker import Breaker, BreakerSettings, Circuit

NOW_S = 1000.0
LONGEST, SHORTEST = 1.0, 0.0  # what the dice say of the time it is open


def breaker(jitter: float = LONGEST, **settings: float) -> Breaker:
    return Breaker(BreakerSettings(**settings), lambda: jitter)  # type: ignore[arg-type]


def failing(one: Breaker, count: int, now_s: float = NOW_S, weight: float = 1.0) -> list[bool]:
    return [one.failure(now_s, weight=weight) for _ in range(count)]


def half_open(one: Breaker) -> Breaker:
    one.open(NOW_S)
    assert one.probe_due(one.opened_until_s)
    one.begin_probe()
    assert one.circuit is Circuit.HALF_OPEN
    return one


# --- tripping


def test_failures_in_a_row_trip_it() -> None:
    one = breaker()
    assert failing(one, 6) == [False] * 4 + [True] * 2
    assert one.circuit is Circuit.CLOSED  # opening is for others to decide
    assert one.tripped_s == NOW_S
    assert repr(one) == "Breaker(closed, 6 failures in a row)"


def test_a_success_begins_the_row_anew() -> None:
    one = breaker()
    failing(one, 4)
    assert one.success(NOW_S) is False
    assert failing(one, 5) == [False] * 4 + [True]


def test_a_low_success_rate_trips_it_once_there_are_enough_requests() -> None:
    one = breaker()
    trips = [
        one.failure(NOW_S) if number % 3 == 0 else one.success(NOW_S) for number in range(1, 31)
    ]
    assert trips.index(True) == 20  # the first failure with at least 20 requests
    assert one.tripped_s == NOW_S


def test_a_success_rate_at_the_limit_is_good_enough() -> None:
    one = breaker()
    for number in range(1, 201):
        assert not (one.failure(NOW_S) if number % 5 == 0 else one.success(NOW_S))


def test_old_outcomes_count_less_and_less() -> None:
    one = breaker()
    for _ in range(4):
        failing(one, 4)
        one.success(NOW_S)
    assert one.tripped_s == -math.inf  # 16 of 20, but too few at the time
    for _ in range(80):
        one.success(NOW_S + 90.0)
    assert failing(one, 4, NOW_S + 90.0) == [False] * 4


def test_half_failures_trip_by_the_rate_alone() -> None:
    one = breaker()
    assert failing(one, 39, weight=0.5) == [False] * 39
    assert failing(one, 1, weight=0.5) == [True]  # as much as 20 requests
    mixed = breaker()
    for _ in range(60):  # half of the requests too slow: two thirds of the weight is good
        assert not mixed.success(NOW_S)
        mixed.failure(NOW_S, weight=0.5)
    assert mixed.tripped_s == NOW_S


# --- open


@pytest.mark.parametrize(("jitter", "open_s"), [(LONGEST, 5.0), (0.5, 3.75), (SHORTEST, 2.5)])
def test_it_is_open_for_a_time_of_which_up_to_half_is_taken_off(
    jitter: float, open_s: float
) -> None:
    one = breaker(jitter)
    one.open(NOW_S)
    assert one.circuit is Circuit.OPEN
    assert not one.probe_due(NOW_S + open_s - 0.001)
    assert one.probe_due(NOW_S + open_s)


def test_each_time_it_is_open_twice_as_long_up_to_a_bound() -> None:
    one = breaker()
    times = []
    for _ in range(30):
        one.open(NOW_S)
        times.append(one.opened_until_s - NOW_S)
    assert times[:6] == [5.0, 10.0, 20.0, 40.0, 80.0, 120.0]
    assert set(times[5:]) == {120.0}


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    one = breaker()
    one.open(NOW_S)
    until_s = one.opened_until_s
    assert one.success(NOW_S) is False
    assert failing(one, 10) == [False] * 10
    assert (one.circuit, one.opened_until_s) == (Circuit.OPEN, until_s)


# --- half-open


def test_one_probe_at_a_time() -> None:
    one = half_open(breaker())
    assert not one.probe_due(math.inf)
    one.end_probe()  # it told nothing
    assert one.probe_due(one.opened_until_s)
    assert one.circuit is Circuit.HALF_OPEN


def test_three_successes_close_it_and_clear_its_record() -> None:
    one = half_open(breaker())
    assert one.success(NOW_S) is False
    assert one.success(NOW_S) is False
    assert one.success(NOW_S) is True
    assert (one.circuit, one.tripped_s) == (Circuit.CLOSED, -math.inf)
    assert failing(one, 5) == [False] * 4 + [True]


def test_a_failed_probe_opens_it_for_longer() -> None:
    one = half_open(breaker())
    one.success(NOW_S)
    assert one.failure(NOW_S + 5.0) is False
    assert one.circuit is Circuit.OPEN
    assert one.opened_until_s == NOW_S + 15.0
    one.begin_probe()
    assert [one.success(NOW_S) for _ in range(3)] == [False, False, True]  # counted anew


def test_too_slow_a_probe_opens_it_too() -> None:
    one = half_open(breaker())
    one.failure(NOW_S, weight=0.5)
    assert one.circuit is Circuit.OPEN


@pytest.mark.parametrize(("clean_s", "open_s"), [(59.0, 10.0), (61.0, 5.0)])
def test_only_a_clean_minute_is_forgiven(clean_s: float, open_s: float) -> None:
    one = half_open(breaker())
    for _ in range(3):
        one.success(NOW_S)
    one.open(NOW_S + clean_s)
    assert one.opened_until_s - (NOW_S + clean_s) == open_s


def test_a_reset_closes_it_but_does_not_forget_how_often_it_was_open() -> None:
    one = half_open(breaker())
    one.reset()
    assert (one.circuit, one.tripped_s) == (Circuit.CLOSED, -math.inf)
    one.open(NOW_S)
    assert one.opened_until_s == NOW_S + 10.0


@pytest.mark.parametrize(("clean_s", "open_s"), [(59.0, 10.0), (61.0, 5.0)])
def test_after_a_reset_a_clean_minute_is_forgiven_too(clean_s: float, open_s: float) -> None:
    one = breaker()
    one.open(NOW_S - 500.0)
    one.success(NOW_S - 400.0)  # was under way when it opened
    one.reset()
    one.success(NOW_S)
    one.success(NOW_S + 1.0)
    one.open(NOW_S + clean_s)
    assert one.opened_until_s - (NOW_S + clean_s) == open_s
