"""In whatever order things are told: compute time is shared out once, and never too much of it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.shares import GRACE_S, Executed, Shares, split
from routing.types import ModelVersion

KEY = ModelVersion("m", 1)
ROWS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 50), max_size=3)
STEPS = st.lists(
    st.tuples(
        st.floats(0, 2 * GRACE_S),  # time passes,
        st.lists(ROWS, max_size=3),  # requests end,
        st.integers(0, 60),  # the server counts rows
        st.integers(0, 10**6),  # and compute time,
        st.booleans(),  # or is loaded anew
    ),
    max_size=40,
)


@given(STEPS)
def test_nobody_is_charged_what_was_not_spent(
    steps: list[tuple[float, list[dict[str, int]], int, int, bool]],
) -> None:
    shares, now_s = Shares(), 0.0
    rows = compute_us = spent_us = 0
    charged: Counter[str] = Counter()
    tenants: set[str] = set()
    list(shares.observed("s", {KEY: Executed(0, 0)}, now_s))
    for after_s, ran, more_rows, more_us, is_new in steps:
        now_s += after_s
        for each in ran:
            shares.ran("s", KEY, each, now_s)
            tenants |= {tenant for tenant, number in each.items() if number}
        if is_new:
            rows = compute_us = 0
        rows, compute_us = rows + more_rows, compute_us + more_us
        spent_us += compute_us if is_new else more_us
        for _, found in shares.observed("s", {KEY: Executed(rows, compute_us)}, now_s):
            assert min(found.values()) >= 0
            charged.update(found)
    assert sum(charged.values()) <= spent_us
    assert {tenant for tenant, us in charged.items() if us} <= tenants


@given(st.lists(st.tuples(ROWS, st.integers(0, 10**6), st.booleans()), max_size=30))
def test_alone_on_a_server_everything_is_charged_sooner_or_later(
    steps: list[tuple[dict[str, int], int, bool]],
) -> None:
    """The server counts a request at once; it is told before the next look, or behind it."""
    shares, now_s = Shares(), 0.0
    rows = compute_us = spent_us = charged_us = 0
    late: list[dict[str, int]] = []
    list(shares.observed("s", {KEY: Executed(0, 0)}, now_s))
    for ran, more_us, is_late in [*steps, ({}, 0, False), ({}, 0, False)]:
        for each in late:
            shares.ran("s", KEY, each, now_s)
        late = [ran] if is_late else []
        if not is_late:
            shares.ran("s", KEY, ran, now_s)
        if any(ran.values()):
            rows, compute_us = rows + sum(ran.values()), compute_us + more_us
            spent_us += more_us
        now_s += 1.0
        found = list(shares.observed("s", {KEY: Executed(rows, compute_us)}, now_s))
        charged_us += sum(sum(shared.values()) for _, shared in found)
    assert charged_us == spent_us


@given(st.integers(0, 10**12), st.dictionaries(st.text(max_size=2), st.integers(0, 10**9)))
def test_parts_add_up(amount: int, weights: dict[str, int]) -> None:
    parts = split(amount, weights)
    total = sum(weights.values())
    assert sum(parts.values()) == (amount if total else 0)
    for name, part in parts.items():
        assert abs(part - amount * weights[name] / total) <= 1 + amount * 1e-9
        assert part <= weights[name] or amount > total
