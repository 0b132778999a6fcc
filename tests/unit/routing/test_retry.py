"""Only what is known not to have run is tried again, at most once, and only in time."""

import pytest

from routing.retry import RetryPolicy
from routing.types import Replay


@pytest.mark.parametrize(
    ("replay", "attempts", "remaining_s", "allowed"),
    [
        (Replay.SAFE, 1, 0.001, True),
        (Replay.SAFE, 2, 60.0, False),
        (Replay.SAFE, 1, 0.0, False),
        (Replay.SAFE, 1, -1.0, False),
        (Replay.UNSURE, 1, 60.0, False),
        (Replay.NEVER, 1, 60.0, False),
    ],
)
def test_one_more_attempt(replay: Replay, attempts: int, remaining_s: float, allowed: bool) -> None:
    policy = RetryPolicy()
    assert policy.allows(replay, attempts=attempts, remaining_s=remaining_s) is allowed


def test_the_number_of_attempts_is_the_policys() -> None:
    policy = RetryPolicy(max_attempts=4)
    attempts = [n for n in range(1, 7) if policy.allows(Replay.SAFE, attempts=n, remaining_s=1)]
    assert attempts == [1, 2, 3]
