"""What is known not to have run is tried again; what may have run once, if it may run twice."""

from typing import Any

import pytest

from routing.budget import RetryBudget
from routing.retry import RetryPolicy
from routing.types import Replay

NOW_S = 1000.0


def allows(replay: Replay, policy: RetryPolicy | None = None, **state: Any) -> bool:
    """Ask the policy about a first failure with time left; `state` says what is different."""
    usual = {
        "attempts": 1,
        "unsure": int(replay is Replay.UNSURE),
        "idempotent": True,
        "remaining_s": 60.0,
        "budget": RetryBudget(ratio=0.0, min_per_s=1.0),
        "now_s": NOW_S,
    }
    return (policy or RetryPolicy()).allows(replay, **(usual | state))


@pytest.mark.parametrize(
    ("replay", "state", "allowed"),
    [
        (Replay.SAFE, {}, True),
        (Replay.SAFE, {"idempotent": False}, True),
        (Replay.SAFE, {"attempts": 2}, True),
        (Replay.SAFE, {"attempts": 3}, False),
        (Replay.SAFE, {"remaining_s": 0.001}, True),
        (Replay.SAFE, {"remaining_s": 0.0}, False),
        (Replay.SAFE, {"remaining_s": -1.0}, False),
        (Replay.SAFE, {"attempts": 2, "unsure": 1}, True),  # it has run once at most
        (Replay.SAFE, {"attempts": 2, "unsure": 1, "idempotent": False}, False),
        (Replay.UNSURE, {}, True),
        (Replay.UNSURE, {"idempotent": False}, False),
        (Replay.UNSURE, {"attempts": 2}, True),  # the first one had not run
        (Replay.UNSURE, {"attempts": 2, "unsure": 2}, False),
        (Replay.UNSURE, {"attempts": 3}, False),
        (Replay.UNSURE, {"remaining_s": 0.0}, False),
        (Replay.NEVER, {}, False),
    ],
)
def test_one_more_attempt(replay: Replay, state: dict[str, Any], allowed: bool) -> None:
    assert allows(replay, **state) is allowed


def test_the_number_of_attempts_is_the_policys() -> None:
    policy = RetryPolicy(max_attempts=4)
    attempts = [n for n in range(1, 7) if allows(Replay.SAFE, policy, attempts=n)]
    assert attempts == [1, 2, 3]


def test_only_what_may_have_run_costs_a_token() -> None:
    budget = RetryBudget(ratio=0.0, min_per_s=0.2)  # two tokens
    policy = RetryPolicy()
    for _ in range(20):
        assert allows(Replay.SAFE, budget=budget)
        policy.spend(Replay.SAFE, budget, NOW_S)
        assert not allows(Replay.NEVER, budget=budget)
        assert not allows(Replay.UNSURE, budget=budget, idempotent=False)
    paid = 0
    while allows(Replay.UNSURE, budget=budget):
        policy.spend(Replay.UNSURE, budget, NOW_S)
        paid += 1
    assert paid == 2
    assert allows(Replay.SAFE, budget=budget)


def test_a_retry_for_which_no_server_is_found_costs_nothing() -> None:
    budget = RetryBudget(ratio=0.0, min_per_s=0.2)
    assert all(allows(Replay.UNSURE, budget=budget) for _ in range(20))
