"""Filtering, picking, learning, and places that are given back exactly once."""

import math
from dataclasses import replace

import pytest

from routing.errors import NoReadyEndpoint, PinnedServerGone
from routing.fleet import ModelVersion, VersionRoute
from routing.health.breaker import BreakerSettings, Circuit
from routing.pool import Lease, Pool
from routing.steering import Block, Steering
from routing.types import Blame, Server
from tests.unit.routing.building import NOW_S, First, at, pool_of, route, settled

AB = route("a", "b")
ABC = route("a", "b", "c")
M1 = ModelVersion("m", 1)


@pytest.fixture
def balancer() -> First:
    return First()


@pytest.fixture
def pool(balancer: First) -> Pool:
    servers = [Server("a"), Server("b", capacity=2.0), Server("c")]
    return pool_of(servers, balancer=balancer, random=lambda: 0.0)


def work(pool: Pool, name: str = "a") -> tuple[int, int, int]:
    load = pool.loads[name]
    return load.calls, load.rows, load.detached


def detached(pool: Pool, name: str) -> Lease:
    lease = at(pool, ABC, name)
    lease.detach()
    return lease


def fail(pool: Pool, name: str, blame: Blame = Blame.FATAL, now_s: float = NOW_S) -> None:
    settled(at(pool, ABC, name, now_s), blame, now_s)


def fail_in_both_ways(pool: Pool, name: str) -> None:
    """Eject a server for its connection and for the version."""
    blames = [Blame.SERVER] * 5 + [Blame.FATAL]
    for lease, blame in [(at(pool, ABC, name), blame) for blame in blames]:
        settled(lease, blame)


def chosen(pool: Pool, now_s: float = NOW_S, times: int = 1) -> list[str]:
    """Who gets requests that succeed."""
    servers = []
    for _ in range(times):
        lease = pool.pick(ABC, now_s=now_s)
        servers.append(lease.server)
        settled(lease, Blame.NOBODY, now_s)
    return servers


# --- picking


def test_servers_start_idle(pool: Pool) -> None:
    assert [load.name for load in pool.loads.values()] == ["a", "b", "c"]
    assert work(pool) == (0, 0, 0)
    assert pool.loads["a"].last_reply_s == -math.inf
    assert (pool.breakers(), pool.bad_versions()) == ({}, [])


@pytest.mark.parametrize(
    ("ready", "tried", "candidates"),
    [
        (("a", "b", "c"), (), ["a", "b", "c"]),
        (("b",), (), ["b"]),
        (("a", "b", "c"), {"a"}, ["b", "c"]),
        (("a", "c"), {"a", "b"}, ["c"]),
    ],
)
def test_the_balancer_sees_the_ready_and_untried(
    pool: Pool, balancer: First, ready: tuple[str, ...], tried: set[str], candidates: list[str]
) -> None:
    lease = pool.pick(route(*ready), now_s=NOW_S, tried=tried)
    assert balancer.candidates == candidates
    assert lease.server == candidates[0]


@pytest.mark.parametrize(("ready", "tried"), [((), ()), (("a",), {"a"}), (("a", "b"), {"a", "b"})])
def test_nothing_ready_and_untried_is_refused(
    pool: Pool, ready: tuple[str, ...], tried: set[str]
) -> None:
    with pytest.raises(NoReadyEndpoint, match="no server is ready to take the request") as caught:
        pool.pick(route(*ready), now_s=NOW_S, tried=tried)
    assert not caught.value.saturated


def test_each_model_has_a_balancer_of_its_own() -> None:
    made: dict[str, First] = {}
    pool = pool_of("ab")
    pool._new_balancer = lambda model: made.setdefault(model, First())
    for model in ("m", "n", "m"):
        pool.pick(route("a", "b", model=model), now_s=NOW_S)
    assert set(made) == {"m", "n"}


def test_who_may_be_chosen_is_worked_out_once(pool: Pool) -> None:
    choices = pool.choices(AB, NOW_S)
    settled(pool.pick(AB, now_s=NOW_S))
    assert pool.choices(AB, NOW_S + 1.0) is choices
    assert pool.choices(route("a", "b"), NOW_S) is not choices  # the fleet has changed


# --- leases


def test_a_lease_holds_its_rows_until_it_is_released(pool: Pool) -> None:
    small = pool.pick(AB, now_s=NOW_S)
    large = pool.pick(AB, now_s=NOW_S, rows=8)
    assert (small.server, work(pool)) == ("a", (2, 9, 0))
    large.release()
    assert work(pool) == (1, 1, 0)
    small.release()
    assert work(pool) == (0, 0, 0)


def test_releasing_twice_counts_once(pool: Pool) -> None:
    first, second = (pool.pick(AB, now_s=NOW_S) for _ in range(2))
    first.release()
    first.release()
    assert work(pool) == (1, 1, 0)
    second.release()
    assert work(pool) == (0, 0, 0)


def test_a_settled_call_keeps_its_place_until_it_is_released(pool: Pool) -> None:
    lease = pool.pick(AB, now_s=NOW_S)
    lease.settle(Blame.NOBODY, NOW_S)
    assert work(pool) == (1, 1, 0)


def test_a_detached_call_keeps_its_rows(pool: Pool) -> None:
    lease = pool.pick(AB, now_s=NOW_S, rows=3)
    lease.detach()
    lease.detach()
    assert work(pool) == (1, 3, 1)
    assert repr(pool.loads["a"]) == "ServerLoad(a: 1 calls, 3 rows, 1 detached)"
    lease.release()
    assert work(pool) == (0, 0, 0)


def test_what_was_given_back_has_no_effect_any_more(pool: Pool) -> None:
    lease = pool.pick(AB, now_s=NOW_S)
    lease.release()
    lease.detach()
    for _ in range(9):
        lease.settle(Blame.FATAL, NOW_S)
    assert work(pool) == (0, 0, 0)
    assert pool.breakers() == {}


def test_a_model_s_work_is_its_own_and_all_its_versions(pool: Pool, balancer: First) -> None:
    pool.pick(AB, now_s=NOW_S, rows=5)
    (v2, *_), (other, *_) = (
        pool.choices(route("a", "b", **which), NOW_S).candidates
        for which in ({"version": 2}, {"model": "n"})  # type: ignore[arg-type]
    )
    assert (v2.work(NOW_S), other.work(NOW_S)) == (5.0, 0.0)


# --- saturation


def test_a_server_full_of_detached_calls_gets_no_new_ones(pool: Pool, balancer: First) -> None:
    ended = [detached(pool, "a") for _ in range(2)]
    pool.pick(AB, now_s=NOW_S)
    assert balancer.candidates == ["b"]
    ended[0].release()
    pool.pick(AB, now_s=NOW_S)
    assert balancer.candidates == ["a", "b"]


@pytest.mark.parametrize(
    ("ready", "tried", "saturated"),
    [
        (("a",), (), True),
        (("a", "b"), {"b"}, True),
        (("a", "b"), {"a", "b"}, False),  # it was tried, so its bound is not what is missing
        ((), (), False),
        (("b",), {"b"}, False),
    ],
)
def test_a_refusal_tells_whether_a_bound_is_the_reason(
    pool: Pool, ready: tuple[str, ...], tried: set[str], saturated: bool
) -> None:
    for _ in range(2):
        detached(pool, "a")
    with pytest.raises(NoReadyEndpoint) as caught:
        pool.pick(route(*ready), now_s=NOW_S, tried=tried)
    assert caught.value.saturated is saturated
    assert ("saturated" in str(caught.value)) is saturated


# --- sequences


def placed(pool: Pool, *, held: dict[str, int] | None = None, now_s: float = NOW_S) -> set[str]:
    """Where each of many sequences would begin."""
    return {pool.place_sequence(ABC, f"key {n}", held or {}, now_s=now_s) for n in range(50)}


def test_sequences_begin_on_every_server_that_may_be_chosen(pool: Pool) -> None:
    assert placed(pool) == {"a", "b", "c"}
    pool.steer(Steering(frozenset({"b"})))
    for _ in range(2):
        detached(pool, "a")
    assert placed(pool) == {"c"}
    assert work(pool, "c") == (0, 0, 0)


def test_a_sequence_begins_elsewhere_when_its_server_has_more_than_its_part(pool: Pool) -> None:
    usual = pool.place_sequence(ABC, "key", {}, now_s=NOW_S)
    held = {name: 30 if name == usual else 4 for name in "abc"}
    assert pool.place_sequence(ABC, "key", held, now_s=NOW_S) != usual


def test_nothing_ready_for_a_sequence_is_refused(pool: Pool) -> None:
    with pytest.raises(NoReadyEndpoint):
        pool.place_sequence(route(), "key", {}, now_s=NOW_S)


def test_an_ejected_server_is_tried_with_a_new_sequence_and_comes_back(pool: Pool) -> None:
    """There may be no other requests that would probe it."""
    fail(pool, "a")
    assert placed(pool) == {"b", "c"}
    for _ in range(3):
        server = pool.place_sequence(ABC, "key", {}, now_s=NOW_S + 5.0)
        assert server == "a"
        lease = pool.pick_pinned(ABC, server, now_s=NOW_S + 5.0)
        assert "a" not in placed(pool, now_s=NOW_S + 5.0)  # one at a time
        settled(lease, Blame.NOBODY, NOW_S + 5.0)
    assert pool.breakers() == {}


@pytest.mark.parametrize("name", ["cordoned", "saturated", "ejected"])
def test_a_running_sequence_goes_on_where_none_may_begin(pool: Pool, name: str) -> None:
    if name == "cordoned":
        pool.steer(Steering(frozenset({"a"})))
    elif name == "ejected":
        fail(pool, "a")
    else:
        for _ in range(2):
            detached(pool, "a")
    assert not pool.takes_sequences(ABC, "a", NOW_S)
    assert pool.takes_sequences(ABC, "b", NOW_S)
    before = work(pool, "a")
    assert pool.pick_pinned(ABC, "a", now_s=NOW_S, rows=5).server == "a"
    assert work(pool, "a") == (before[0] + 1, before[1] + 5, before[2])


def test_a_running_sequence_goes_nowhere_else(pool: Pool) -> None:
    with pytest.raises(PinnedServerGone):
        pool.pick_pinned(AB, "c", now_s=NOW_S)
    pool.steer(Steering(blocks=frozenset({Block("m", server="a")})))
    with pytest.raises(PinnedServerGone):
        pool.pick_pinned(AB, "a", now_s=NOW_S)
    assert pool.pick_pinned(AB, "b", now_s=NOW_S).server == "b"


# --- what an outcome teaches


def test_an_answer_proves_that_a_server_lives_and_how_fast_it_is(pool: Pool) -> None:
    lease = pool.pick(AB, now_s=NOW_S)
    settled(lease, Blame.NOBODY, NOW_S + 0.25)
    assert pool.loads["a"].last_reply_s == NOW_S + 0.25
    assert lease.candidate.latency_s(NOW_S + 0.25) == 0.25


def test_the_first_part_of_an_answer_says_how_fast_a_server_is(pool: Pool) -> None:
    """... and every part that it lives, long before the whole answer is there."""
    lease = pool.pick(AB, now_s=NOW_S)
    for after_s in (0.25, 10.0):
        lease.heard(NOW_S + after_s)
        assert pool.loads["a"].last_reply_s == NOW_S + after_s
    settled(lease, Blame.NOBODY, NOW_S + 20.0)
    assert lease.candidate.latency_s(NOW_S + 20.0) == 0.25


def test_answers_that_come_in_parts_and_are_lost_together_are_one_failure(pool: Pool) -> None:
    leases = [pool.pick(route("a"), now_s=NOW_S) for _ in range(20)]
    for lease in leases:
        lease.heard(NOW_S + 1.0)
        settled(lease, Blame.SERVER, NOW_S + 20.0)
    assert pool.breakers() == {}


@pytest.mark.parametrize("blame", [blame for blame in Blame if blame is not Blame.NOBODY])
def test_nothing_but_an_answer_proves_that_a_server_lives(pool: Pool, blame: Blame) -> None:
    settled(pool.pick(AB, now_s=NOW_S), blame)
    assert pool.loads["a"].last_reply_s == -math.inf


def test_what_was_abandoned_teaches_nothing(pool: Pool) -> None:
    for _ in range(20):
        lease = pool.pick(AB, now_s=NOW_S)
        settled(lease, Blame.UNTOLD, NOW_S + 60.0)
    assert pool.breakers() == {}
    assert (lease.candidate.work(NOW_S), lease.candidate.latency_s(NOW_S)) == (0.0, None)


def test_a_full_server_is_load_and_no_fault(pool: Pool) -> None:
    for _ in range(50):
        lease = at(pool, AB, "a")
        settled(lease, Blame.OVERLOAD)
    assert pool.breakers() == {}
    assert lease.candidate.work(NOW_S) == 50.0


@pytest.mark.parametrize(
    ("blame", "times", "where"),
    [
        (Blame.VERSION, 5, "m/1"),
        (Blame.SLOW, 40, "m/1"),
        (Blame.FATAL, 1, "m/1"),
        (Blame.SERVER, 5, "server"),
    ],
)
def test_enough_failures_eject(pool: Pool, blame: Blame, times: int, where: str) -> None:
    for _ in range(times - 1):
        fail(pool, "a", blame)
    assert pool.breakers() == {}
    fail(pool, "a", blame)
    ((of, by_server),) = pool.breakers().items()
    assert (of, set(by_server)) == (where, {"a"})
    assert set(chosen(pool, times=5)) == {"b"}


def test_a_version_that_fails_leaves_the_others_alone(pool: Pool, balancer: First) -> None:
    fail(pool, "a")
    for other in (route("a", "b", version=2), route("a", "b", model="n")):
        assert pool.pick(other, now_s=NOW_S).server == "a"


def test_a_server_that_cannot_be_reached_is_out_for_all_models(pool: Pool) -> None:
    for _ in range(5):
        fail(pool, "a", Blame.SERVER)
    assert pool.pick(route("a", "b", model="n"), now_s=NOW_S).server == "b"


def test_the_only_server_of_a_version_is_never_ejected(pool: Pool) -> None:
    for _ in range(50):
        settled(pool.pick(route("a"), now_s=NOW_S), Blame.FATAL)
    assert pool.pick(route("a"), now_s=NOW_S).server == "a"


def test_a_version_that_all_servers_fail_is_bad_and_nobody_is_ejected(pool: Pool) -> None:
    for name in "abc":
        for _ in range(5):
            fail(pool, name, Blame.VERSION)
    assert pool.bad_versions() == [M1]
    assert pool.breakers() == {}
    assert pool.choices(ABC, NOW_S).excluded == {}


def test_when_all_that_are_left_are_ejected_they_are_used(pool: Pool) -> None:
    fail(pool, "a")
    for _ in range(5):
        settled(at(pool, AB, "b"), Blame.SERVER)
    assert {pool.pick(AB, now_s=NOW_S).server} == {"a"}
    assert set(pool.choices(AB, NOW_S).excluded) == {"a", "b"}


# --- probes


def test_a_probe_goes_out_when_it_is_due_one_at_a_time(pool: Pool) -> None:
    fail(pool, "a")
    due_s = NOW_S + 2.5  # the dice take half off
    assert pool.pick(ABC, now_s=due_s - 0.1).server == "b"
    probe = pool.pick(ABC, now_s=due_s)
    assert probe.server == "a"
    assert {pool.pick(ABC, now_s=due_s).server for _ in range(5)} == {"b"}
    settled(probe, Blame.NOBODY, due_s)
    assert pool.pick(ABC, now_s=due_s).server == "a"  # the next probe


def test_the_first_ejected_server_that_is_due_is_probed() -> None:
    five = route(*"abcde")
    pool = pool_of("abcde", breaker=BreakerSettings(consecutive_failures=1))
    settled(at(pool, five, "a"), Blame.VERSION, NOW_S)
    settled(at(pool, five, "b"), Blame.VERSION, NOW_S + 1.0)
    assert pool.pick(five, now_s=NOW_S + 2.4).server == "c"
    servers = [pool.pick(five, now_s=NOW_S + 5.0).server for _ in range(3)]
    assert servers == ["a", "b", "c"]


def test_a_second_attempt_is_never_a_probe(pool: Pool) -> None:
    fail(pool, "a")
    assert pool.pick(ABC, now_s=NOW_S + 5.0, tried={"b"}).server == "c"


def test_three_probes_that_succeed_bring_a_server_back(pool: Pool) -> None:
    fail(pool, "a")
    assert chosen(pool, NOW_S + 5.0, times=3) == ["a", "a", "a"]
    assert pool.breakers() == {}
    assert pool.choices(ABC, NOW_S + 5.0).excluded == {}


@pytest.mark.parametrize("blame", [Blame.VERSION, Blame.SLOW, Blame.FATAL])
def test_a_probe_that_fails_ends_the_probing(pool: Pool, blame: Blame) -> None:
    fail(pool, "a")
    settled(pool.pick(ABC, now_s=NOW_S + 2.5), blame, NOW_S + 2.5)
    assert pool.pick(ABC, now_s=NOW_S + 7.4).server == "b"
    assert pool.pick(ABC, now_s=NOW_S + 7.5).server == "a"


@pytest.mark.parametrize("blame", [Blame.UNTOLD, Blame.OVERLOAD])
def test_a_probe_that_told_nothing_gives_its_place_to_the_next(pool: Pool, blame: Blame) -> None:
    fail(pool, "a")
    settled(pool.pick(ABC, now_s=NOW_S + 5.0), blame, NOW_S + 5.0)
    assert pool.pick(ABC, now_s=NOW_S + 5.0).server == "a"


def test_a_probe_that_was_never_settled_gives_its_place_back_too(pool: Pool) -> None:
    fail(pool, "a")
    pool.pick(ABC, now_s=NOW_S + 5.0).release()
    assert pool.pick(ABC, now_s=NOW_S + 5.0).server == "a"


def test_a_probe_whose_caller_left_does_not_block_the_next_while_it_runs_on(pool: Pool) -> None:
    fail(pool, "a")
    probe = pool.pick(ABC, now_s=NOW_S + 5.0)
    probe.settle(Blame.UNTOLD, NOW_S + 5.0)
    probe.detach()
    second = pool.pick(ABC, now_s=NOW_S + 5.0)
    assert second.server == "a"
    probe.release()
    assert pool.pick(ABC, now_s=NOW_S + 5.0).server == "b"  # the second is still under way


def test_a_server_out_for_two_reasons_proves_both_at_once(pool: Pool) -> None:
    fail_in_both_ways(pool, "a")
    assert set(pool.breakers()) == {"m/1", "server"}
    assert chosen(pool, NOW_S + 5.0, times=3) == ["a", "a", "a"]
    assert pool.breakers() == {}


# --- slow start


def ramps(pool: Pool, now_s: float, where: VersionRoute = ABC) -> dict[str, float]:
    """How often each server takes part in the choice."""
    everyone = pool.choices(where, now_s).everyone()
    return {candidate.name: round(candidate.ramp(now_s), 3) for candidate in everyone}


def test_a_server_that_joins_starts_slowly() -> None:
    pool = pool_of("abc", slow_start_s=30.0)
    assert ramps(pool, NOW_S, AB) == {"a": 1.0, "b": 1.0}  # all new: nobody else could carry it
    assert ramps(pool, NOW_S + 1.0) == {"a": 1.0, "b": 1.0, "c": 0.1}
    assert ramps(pool, NOW_S + 16.0) == {"a": 1.0, "b": 1.0, "c": 0.5}
    assert ramps(pool, NOW_S + 31.0) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_when_most_are_new_nobody_starts_slowly() -> None:
    pool = pool_of("abc", slow_start_s=30.0)
    ramps(pool, NOW_S, route("a"))
    assert ramps(pool, NOW_S + 1.0) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_a_server_that_was_gone_starts_slowly_again() -> None:
    pool = pool_of("abc", slow_start_s=30.0)
    for where, now_s in ((ABC, NOW_S), (AB, NOW_S + 100.0)):
        ramps(pool, now_s, where)
    assert ramps(pool, NOW_S + 200.0) == {"a": 1.0, "b": 1.0, "c": 0.1}


@pytest.mark.parametrize("blame", [Blame.FATAL, Blame.SERVER])
def test_a_server_that_is_healthy_again_starts_slowly(blame: Blame) -> None:
    pool = pool_of("abc", slow_start_s=30.0)
    while not pool.breakers():
        fail(pool, "a", blame)
    chosen(pool, NOW_S + 5.0, times=3)
    assert ramps(pool, NOW_S + 5.0) == {"a": 0.1, "b": 1.0, "c": 1.0}


@pytest.mark.parametrize(
    ("blame", "others_too"), [(Blame.FATAL, False), (Blame.SERVER, True)], ids=["version", "server"]
)
def test_a_server_that_can_be_reached_again_starts_slowly_with_all_it_has(
    blame: Blame, others_too: bool
) -> None:
    pool = pool_of("abc", slow_start_s=30.0)
    asked_before, asked_later = (route(*"abc", model="n", version=v) for v in (1, 2))
    ramps(pool, NOW_S, asked_before)
    while not pool.breakers():
        fail(pool, "a", blame)
    chosen(pool, NOW_S + 5.0, times=3)
    ramp = 0.1 if others_too else 1.0
    for where in (asked_before, asked_later):
        assert ramps(pool, NOW_S + 6.0, where) == {"a": ramp, "b": 1.0, "c": 1.0}


def test_a_server_that_starts_slowly_takes_part_by_chance(balancer: First) -> None:
    dice = iter([0.0, 0.0, 0.11, 0.0, 0.0, 0.09, 0.6, 0.0])
    pool = pool_of("abc", slow_start_s=30.0, balancer=balancer, random=lambda: next(dice, 0.7))
    ramps(pool, NOW_S, AB)
    seen = []
    for _ in range(2):
        pool.pick(ABC, now_s=NOW_S)
        seen.append(balancer.candidates)
    assert seen == [["a", "b"], ["a", "b", "c"]]
    pool.pick(ABC, now_s=NOW_S, tried={"a", "b"})
    assert balancer.candidates == ["c"]  # rather than nobody
    pool.pick(ABC, now_s=NOW_S + 30.0)
    assert balancer.candidates == ["a", "b", "c"]


# --- zones


def test_the_zone_of_the_gateway_is_preferred(balancer: First) -> None:
    servers = [Server("a", zone="y"), Server("b", zone="z"), Server("c", zone="z")]
    pool = pool_of(servers, zone="z", balancer=balancer)
    pool.pick(ABC, now_s=NOW_S)
    assert balancer.candidates == ["b", "c"]
    pool.pick(ABC, now_s=NOW_S, tried={"b"})
    assert balancer.candidates == ["c"]
    pool.pick(ABC, now_s=NOW_S, tried={"b", "c"})  # better far away than not at all
    assert balancer.candidates == ["a"]


def test_servers_of_the_zone_that_are_down_count_as_lost() -> None:
    servers = [Server(name, zone="z", model_capacity={"m": 2.0}) for name in "abcd"]
    pool = pool_of([*servers, Server("r", zone="y"), Server("s", zone="y")], zone="z")
    where = replace(route("a", "r"), lost=frozenset("bcds"))
    assert pool.choices(where, NOW_S).local_share == pytest.approx(1.4 / 4)
    assert pool.choices(route("a", "r"), NOW_S).local_share == 1.0  # the others never had it


# --- operators


def test_a_cordoned_server_gets_nothing_new(pool: Pool) -> None:
    held = at(pool, ABC, "a")
    pool.steer(Steering().cordon("a"))
    assert set(chosen(pool, times=5)) == {"b"}
    assert pool.choices(ABC, NOW_S).excluded == {"a": "cordoned by an operator"}
    assert work(pool) == (1, 1, 0)
    settled(held)
    pool.steer(Steering())
    assert chosen(pool) == ["a"]


def test_a_blocked_version_is_not_served_there(pool: Pool) -> None:
    pool.steer(Steering().block(Block("m", version=1, server="a")))
    assert chosen(pool) == ["b"]
    assert pool.pick(route("a", "b", version=2), now_s=NOW_S).server == "a"


def test_a_model_blocked_everywhere_is_refused(pool: Pool) -> None:
    pool.steer(Steering().block(Block("m")))
    with pytest.raises(NoReadyEndpoint):
        pool.pick(ABC, now_s=NOW_S)


@pytest.mark.parametrize(
    ("server", "model", "version", "left"),
    [
        (None, None, None, set()),
        ("a", None, None, set()),
        ("b", None, None, {"m/1", "server"}),
        ("a", "m", None, {"server"}),
        ("a", "m", 1, {"server"}),
        (None, "m", 2, {"m/1", "server"}),
        (None, "n", None, {"m/1", "server"}),
    ],
)
def test_what_a_reset_closes(
    pool: Pool, server: str | None, model: str | None, version: int | None, left: set[str]
) -> None:
    fail_in_both_ways(pool, "a")
    pool.reset_breakers(server, model, version)
    assert set(pool.breakers()) == left
    assert chosen(pool) == (["a"] if not left else ["b"])


def test_the_breakers_that_are_not_closed_are_shown(pool: Pool) -> None:
    fail(pool, "a")
    assert pool.breakers()["m/1"]["a"].circuit is Circuit.OPEN
    pool.pick(ABC, now_s=NOW_S + 5.0)
    assert pool.breakers()["m/1"]["a"].circuit is Circuit.HALF_OPEN


def test_all_calls_on_a_lost_connection_are_one_failure(pool: Pool) -> None:
    """Many calls at once on one connection must not eject a server that is there again."""
    leases = [at(pool, ABC, "a") for _ in range(20)]
    for number, lease in enumerate(leases):
        settled(lease, Blame.SERVER, NOW_S + 1 + number / 1000)
    assert pool.breakers() == {}
    for number in range(4):
        fail(pool, "a", Blame.SERVER, NOW_S + 2 + number)
    assert set(pool.breakers()) == {"server"}
