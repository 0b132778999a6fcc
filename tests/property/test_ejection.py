"""Of any number of servers only so many are ejected, and none for what is the version's fault."""

from hypothesis import given
from hypothesis import strategies as st

from routing.health.breaker import BreakerSettings, Circuit
from routing.health.ejection import EjectionSettings, Group
from tests.unit.routing.building import NOW_S

FAILURES = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["failure", "fatal", "success"])), max_size=300
)


def group(share: float) -> Group:
    return Group(BreakerSettings(), EjectionSettings(share), lambda: 0.5)


@given(st.integers(1, 12), st.floats(0, 1), FAILURES, st.floats(0, 1))
def test_never_more_than_the_share_and_never_the_last(
    count: int, share: float, failures: list[tuple[int, str]], step_s: float
) -> None:
    some, names, now_s = group(share), [f"s{number}" for number in range(count)], NOW_S
    for number, what in failures:
        now_s += step_s
        name = names[number % count]
        breaker = some.breakers.get(name)
        if breaker is not None and breaker.circuit is Circuit.OPEN and breaker.probe_due(now_s):
            breaker.begin_probe()
        getattr(some, what)(name, names, now_s)
        ejected = len(some.ejected())
        assert ejected <= max(1, int(count * share))
        assert ejected < count


@given(st.integers(2, 8), st.randoms(use_true_random=False), st.sampled_from(["failure", "fatal"]))
def test_when_all_are_suspect_nobody_is_ejected(count: int, order: object, what: str) -> None:
    some, names = group(0.5), [f"s{number}" for number in range(count)]
    failures = names * 5
    order.shuffle(failures)  # type: ignore[attr-defined]
    for name in failures:
        getattr(some, what)(name, names, NOW_S)
    assert some.bad
    assert some.ejected() == {}
