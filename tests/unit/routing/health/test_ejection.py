"""Who of a group is ejected: enough others must be left, and a bad version is nobody's fault."""

from collections.abc import Sequence

import pytest

from routing.health.breaker import BreakerSettings, Circuit
from routing.health.ejection import SUSPICION_S, EjectionSettings, Group
from tests.unit.routing.building import NOW_S

ABC = ("a", "b", "c")
TRIPS = 5


def group(share: float = 0.5, **settings: float) -> Group:
    return Group(BreakerSettings(**settings), EjectionSettings(share), lambda: 1.0)  # type: ignore[arg-type]


def fail(
    some: Group, server: str, holders: Sequence[str], now_s: float = NOW_S, count: int = TRIPS
) -> list[bool]:
    return [some.failure(server, holders, now_s) for _ in range(count)]


def out(some: Group) -> list[str]:
    return sorted(some.ejected())


def recover(some: Group, server: str, holders: Sequence[str], now_s: float) -> list[bool]:
    """Probe an ejected server until it has closed again."""
    told = []
    for _ in range(3):
        some.breakers[server].begin_probe()
        told.append(some.success(server, holders, now_s))
    return told


# --- one server


def test_a_server_that_fails_is_ejected_and_it_is_told_once() -> None:
    some = group()
    assert fail(some, "a", ABC) == [False] * 4 + [True]
    assert out(some) == ["a"]
    assert fail(some, "a", ABC) == [False] * 5  # they were under way
    assert not some.bad


def test_a_success_of_a_server_that_never_failed_is_nothing() -> None:
    some = group()
    assert some.success("a", ABC, NOW_S) is False
    assert some.breakers == {}


def test_probes_that_succeed_bring_it_back() -> None:
    some = group()
    fail(some, "a", ABC)
    assert recover(some, "a", ABC, NOW_S + 5.0) == [False, False, True]
    assert out(some) == []


def test_a_probe_that_fails_is_told() -> None:
    some = group()
    fail(some, "a", ABC)
    some.breakers["a"].begin_probe()
    assert some.failure("a", ABC, NOW_S + 5.0) is True
    assert out(some) == ["a"]
    assert some.breakers["a"].opened_until_s == NOW_S + 15.0


def test_half_failures_count_half() -> None:
    some = group(min_requests=2)
    told = [some.failure("a", ABC, NOW_S, weight=0.5) for _ in range(4)]
    assert told == [False, False, False, True]


# --- how many


@pytest.mark.parametrize(
    ("holders", "share", "ejected"),
    [
        (1, 0.5, 0),  # never the last
        (1, 1.0, 0),
        (2, 0.0, 1),  # one always may
        (2, 1.0, 1),
        (3, 0.67, 1),  # a third one of three would be two: more than two thirds are bad anyway
        (5, 0.5, 2),
        (8, 0.25, 2),
        (8, 0.1, 1),
    ],
)
def test_at_most_a_share_is_ejected(holders: int, share: float, ejected: int) -> None:
    some = group(share)
    names = [f"s{number}" for number in range(holders)]
    for name in names[: (holders + 1) // 2]:
        fail(some, name, names)
    assert len(out(some)) == ejected


def test_who_was_not_ejected_is_once_there_is_room() -> None:
    some = group()
    fail(some, "a", ABC)
    fail(some, "b", ABC, NOW_S + SUSPICION_S)
    assert out(some) == ["a"]
    recover(some, "a", ABC, NOW_S + SUSPICION_S)
    assert fail(some, "b", ABC, NOW_S + SUSPICION_S, count=1) == [True]
    assert out(some) == ["b"]


def test_the_ejected_ones_of_other_versions_servers_do_not_count() -> None:
    some = group()
    fail(some, "a", ("a", "z"))
    fail(some, "b", ("b", "c"))  # `a` does not have it any more
    assert out(some) == ["a", "b"]


# --- a bad version


def test_when_most_fail_the_version_is_bad_and_nobody_more_is_ejected() -> None:
    some = group()
    fail(some, "a", ABC)
    assert not some.bad
    fail(some, "b", ABC)
    assert some.bad
    assert out(some) == ["a"]


def test_half_of_the_servers_are_not_most() -> None:
    some = group()
    for name in "ab":
        fail(some, name, "abcd")
    assert not some.bad
    assert out(some) == ["a", "b"]


def test_when_all_fail_nobody_stays_ejected() -> None:
    some = group()
    for name in "ab":
        fail(some, name, ABC)
    assert fail(some, "c", ABC) == [False] * 4 + [True]
    assert out(some) == []
    assert some.bad
    assert {breaker.circuit for breaker in some.breakers.values()} == {Circuit.CLOSED}
    fail(some, "a", ABC, count=20)
    assert out(some) == []  # and nobody is ejected again


def test_when_all_fail_and_nobody_is_out_nothing_changes() -> None:
    some = group()
    for name in "abc":
        fail(some, name, ABC)
    assert fail(some, "a", ABC, NOW_S + 1.0, count=20) == [False] * 20


def test_a_healthy_server_keeps_the_ejected_ones_out() -> None:
    """Two of three are bad: a success of one of the bad does not bring the other one back."""
    some = group()
    fail(some, "a", ABC)
    fail(some, "b", ABC)
    assert some.success("b", ABC, NOW_S + 1.0) is False
    assert some.success("c", ABC, NOW_S + 1.0) is False
    assert out(some) == ["a"]
    assert some.bad


def test_a_version_is_no_longer_bad_when_fewer_fail() -> None:
    some = group()
    fail(some, "a", ABC)
    fail(some, "b", ABC)
    some.success("c", ABC, NOW_S + SUSPICION_S - 1.0)
    assert some.bad
    some.success("c", ABC, NOW_S + SUSPICION_S)
    assert not some.bad


def test_servers_that_do_not_have_it_any_more_say_nothing_of_a_version() -> None:
    some = group()
    fail(some, "a", ABC)
    fail(some, "b", ABC)
    some.success("c", ("c", "d"), NOW_S)
    assert not some.bad


# --- fatal errors


def test_a_fatal_error_ejects_at_once() -> None:
    some = group()
    assert some.fatal("a", ABC, NOW_S) is True
    assert out(some) == ["a"]


def test_fatal_errors_that_were_under_way_do_not_make_it_longer() -> None:
    some = group()
    some.fatal("a", ABC, NOW_S)
    assert [some.fatal("a", ABC, NOW_S) for _ in range(20)] == [False] * 20
    assert some.breakers["a"].opened_until_s == NOW_S + 5.0


def test_a_fatal_probe_opens_it_again() -> None:
    some = group()
    some.fatal("a", ABC, NOW_S)
    some.breakers["a"].begin_probe()
    assert some.fatal("a", ABC, NOW_S + 5.0) is True
    assert some.breakers["a"].opened_until_s == NOW_S + 15.0


def test_the_last_server_is_not_ejected_for_a_fatal_error_either() -> None:
    some = group()
    assert some.fatal("a", ("a",), NOW_S) is False
    assert out(some) == []
    some.fatal("a", ("a", "b"), NOW_S)
    assert [some.fatal("b", ("a", "b"), NOW_S) for _ in range(5)] == [False] * 4 + [True]
    assert some.bad
    assert out(some) == []  # both fail: both are used


# --- resets


def test_a_reset_of_one_server() -> None:
    some = group()
    for name in "ab":
        fail(some, name, ABC)
    some.reset("a")
    assert out(some) == []
    assert some.bad


def test_a_reset_of_all() -> None:
    some = group()
    for name in "abc":
        fail(some, name, ABC)
    some.reset()
    assert not some.bad
    assert fail(some, "a", ABC) == [False] * 4 + [True]
