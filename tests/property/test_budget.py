"""Whatever the traffic, retries stay within their share of it and the free ones."""

from hypothesis import given
from hypothesis import strategies as st

from routing.budget import RetryBudget

STEPS = st.lists(
    st.tuples(st.sampled_from(["request", "retry", "retry"]), st.floats(0, 30)), max_size=200
)


@given(STEPS, st.floats(0, 1), st.floats(0, 5), st.floats(0.1, 60))
def test_retries_are_at_most_their_share_and_the_free_ones(
    steps: list[tuple[str, float]], ratio: float, min_per_s: float, ttl_s: float
) -> None:
    budget = RetryBudget(ratio=ratio, min_per_s=min_per_s, ttl_s=ttl_s)
    now_s, requests, retries = 1000.0, 0, 0
    for step, passed_s in steps:
        now_s += passed_s
        if step == "request":
            budget.deposit(now_s)
            requests += 1
        else:
            retries += budget.withdraw(now_s)
        saved_up = max(1.0, min_per_s * ttl_s) if min_per_s else 0.0
        free = saved_up + min_per_s * (now_s - 1000.0)
        assert retries <= ratio * requests + free + 1e-6
        assert budget._earned >= 0
        assert budget._free >= 0


@given(STEPS, st.floats(0.01, 1))
def test_the_order_of_late_notes_does_not_matter(
    steps: list[tuple[str, float]], ratio: float
) -> None:
    """Requests are noted with the time they began at, which may be before the last retry."""
    budget = RetryBudget(ratio=ratio, min_per_s=0.0)
    now_s, requests, retries = 1000.0, 0, 0
    for step, age_s in steps:
        now_s += 0.1
        if step == "request":
            budget.deposit(now_s - age_s)
            requests += 1
        else:
            retries += budget.withdraw(now_s)
        assert retries <= ratio * requests + 1e-6
        assert budget._earned >= 0
