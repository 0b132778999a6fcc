"""Retries are a share of the requests; a few a second are free."""

import math

import pytest

from routing.budget import RetryBudget

NOW_S = 1000.0


def deposited(budget: RetryBudget, count: int, now_s: float = NOW_S) -> RetryBudget:
    for _ in range(count):
        budget.deposit(now_s)
    return budget


def taken(budget: RetryBudget, now_s: float = NOW_S) -> int:
    """Take tokens until there are none; return how many there were."""
    count = 0
    while budget.withdraw(now_s):
        count += 1
        assert count < 10_000
    return count


@pytest.mark.parametrize(("requests", "retries"), [(0, 0), (9, 0), (10, 1), (55, 5)])
def test_requests_earn_a_share_of_a_retry(requests: int, retries: int) -> None:
    assert taken(deposited(RetryBudget(ratio=0.1001, min_per_s=0), requests)) == retries


def test_what_was_earned_is_worth_less_and_less() -> None:
    budget = deposited(RetryBudget(ratio=1.0, min_per_s=0), 100)
    assert taken(budget, NOW_S + 10.0) == int(100 / math.e)


def test_after_a_long_time_nothing_earned_is_left() -> None:
    assert taken(deposited(RetryBudget(ratio=1.0, min_per_s=0), 100), NOW_S + 1000.0) == 0


def test_earning_goes_on_from_what_is_left() -> None:
    budget = deposited(RetryBudget(ratio=1.0, min_per_s=0, ttl_s=1.0), 10)
    deposited(budget, 1, NOW_S + 1.0)
    assert taken(budget, NOW_S + 1.0) == int(10 / math.e + 1)


def test_some_are_free_from_the_start_and_come_back_with_time() -> None:
    budget = RetryBudget(ratio=0.0, min_per_s=0.5)
    assert taken(budget) == 5  # as many as ten seconds give
    assert taken(budget) == 0
    assert taken(budget, NOW_S + 1.9) == 0
    assert taken(budget, NOW_S + 4.0) == 2
    assert taken(budget, NOW_S + 1000.0) == 5  # and are not saved up


def test_a_small_free_rate_saves_up_one() -> None:
    budget = RetryBudget(ratio=0.0, min_per_s=0.01)
    assert taken(budget) == 1
    assert taken(budget, NOW_S + 99.0) == 0
    assert taken(budget, NOW_S + 101.0) == 1


def test_what_was_earned_is_spent_before_what_is_free() -> None:
    budget = deposited(RetryBudget(ratio=1.0, min_per_s=0.2), 3)
    assert [budget.withdraw(NOW_S) for _ in range(6)] == [True] * 5 + [False]
    assert taken(deposited(budget, 1)) == 1


def test_asking_what_can_be_afforded_spends_nothing() -> None:
    budget = RetryBudget(ratio=0.0, min_per_s=0.2)
    assert all(budget.affords(NOW_S) for _ in range(20))
    assert taken(budget) == 2
    assert not budget.affords(NOW_S)


def test_a_request_that_began_earlier_earns_as_much_as_then() -> None:
    """Requests are noted with the time they began at, so time goes back at times."""
    later_first, in_order = (RetryBudget(ratio=1.0, min_per_s=0) for _ in range(2))
    later_first.deposit(NOW_S + 5.0)
    deposited(later_first, 20)
    deposited(in_order, 20)
    in_order.deposit(NOW_S + 5.0)
    assert taken(later_first, NOW_S + 6.0) == taken(in_order, NOW_S + 6.0) > 0
