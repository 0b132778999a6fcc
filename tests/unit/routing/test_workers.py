"""Workers of one host balance like one, and what one of them learns all of them know."""

import json
import math

from routing.balancing.least_request import LeastRequest
from routing.fleet import ModelVersion
from routing.health.breaker import Circuit
from routing.pool import Lease, Pool
from routing.types import Blame, Server
from tests.unit.routing.building import NOW_S, at, pool_of, route, settled
from tests.unit.routing.hosts import Host

ABC = route("a", "b", "c")
FOUR = route("a", "b", "c", "d")


def work(pool: Pool, server: str = "a", model: str = "m") -> float:
    choices = pool.choices(route("a", "b", "c", model=model), NOW_S)
    return next(c.work(NOW_S) for c in choices.all_candidates if c.name == server)


def fail(pool: Pool, server: str = "a", blame: Blame = Blame.VERSION, now_s: float = NOW_S) -> None:
    settled(at(pool, ABC, server, now_s), blame, now_s)


def succeed(pool: Pool, server: str = "a", now_s: float = NOW_S) -> None:
    settled(at(pool, ABC, server, now_s), Blame.NOBODY, now_s)


def circuits(host: Host, of: str = "m/1") -> list[dict[str, Circuit]]:
    """Where each worker sees circuits that are not closed."""
    return [
        {server: breaker.circuit for server, breaker in pool.breakers().get(of, {}).items()}
        for pool in host.pools
    ]


# --- load


def test_the_rows_of_all_workers_count() -> None:
    one, two = Host().pools
    lease = at(one, ABC, "a")
    large = two.pick(ABC, now_s=NOW_S, rows=8)
    assert large.server == "a"
    assert (work(one), work(two)) == (9.0, 9.0)
    assert (work(two, "b"), work(two, "a", "n")) == (0.0, 0.0)
    lease.release()
    large.release()
    assert work(one) == work(two) == 0.0


def test_a_worker_avoids_the_server_that_another_keeps_busy() -> None:
    one, two = Host("ab", balancer=LeastRequest()).pools
    at(one, route("a", "b"), "a")
    assert two.pick(route("a", "b"), now_s=NOW_S).server == "b"


def test_until_a_pair_has_a_slot_a_worker_counts_its_own() -> None:
    host = Host()
    one, two = host.pools
    two.assign({("a", "m"): None})
    held = at(one, ABC, "a"), at(two, ABC, "a")
    assert (work(one), work(two)) == (1.0, 1.0)
    two.assign(host.slots)  # also for what is under way already
    assert (work(one), work(two)) == (2.0, 2.0)
    for lease in held:
        lease.release()
    assert (work(one), work(two)) == (0.0, 0.0)


def test_a_slot_that_is_taken_back_is_left_empty() -> None:
    host = Host()
    at(host.pools[0], ABC, "a").detach()
    slot = host.slots["a", "m"], host.slots["a", None]
    host.pools[0].assign({("a", "m"): None, ("a", None): None})
    table = host.table(1)
    assert (table.rows.total(slot[0] or 0), table.detached.total(slot[1] or 0)) == (0, 0)
    assert table.replies.latest(slot[1] or 0) == 0.0
    assert work(host.pools[0]) == 1.0


def test_slots_of_what_is_not_known_yet_are_remembered() -> None:
    host = Host(models=("m", "later"))
    later = route("a", "b", "c", model="later")
    for pool in host.pools:
        pool.pick(later, now_s=NOW_S)
    assert work(host.pools[0], "a", "later") == 2.0
    host.pools[0].assign({("x", "m"): 1, ("x", None): 1, ("a", "unknown"): 1})


def test_the_work_of_a_dead_worker_vanishes() -> None:
    host = Host()
    at(host.pools[1], ABC, "a").detach()
    host.table(0).clear(1)
    assert work(host.pools[0]) == 0.0


def test_without_a_table_there_is_nothing_to_share() -> None:
    pool = pool_of("abc")
    fail(pool)
    pool.assign({("a", "m"): 0})
    assert (pool.news(), pool.standing_news()) == ([], [])


def test_a_reply_to_any_worker_proves_that_a_server_lives() -> None:
    one, two = Host().pools
    assert two.loads["a"].last_reply_s == -math.inf
    succeed(one, "a", NOW_S)
    assert two.loads["a"].last_reply_s == NOW_S
    assert two.loads["b"].last_reply_s == -math.inf


def test_detached_calls_of_all_workers_saturate_a_server() -> None:
    host = Host(max_detached_calls=2)
    one, two = host.pools
    leases = [at(pool, ABC, "a") for pool in (one, two)]
    for lease in leases:
        lease.detach()
    assert two.pick(ABC, now_s=NOW_S).server == "b"  # it saw the first one
    assert one.pick(ABC, now_s=NOW_S).server == "a"  # not yet
    host.exchange()
    assert one.pick(ABC, now_s=NOW_S).server == "b"
    leases[0].release()
    host.exchange()
    assert [pool.pick(ABC, now_s=NOW_S).server for pool in (one, two)] == ["a", "a"]


def test_a_dead_worker_s_detached_calls_saturate_nothing() -> None:
    host = Host(max_detached_calls=1)
    at(host.pools[1], ABC, "a").detach()
    host.exchange()
    host.table(0).clear(1)
    host.pools[0].news()
    assert host.pools[0].pick(ABC, now_s=NOW_S).server == "a"


# --- ejection


def test_failures_of_all_workers_eject_together() -> None:
    host = Host(workers=5)
    for number, pool in enumerate(host.pools[:4]):
        fail(pool, now_s=NOW_S + number)
    host.exchange(NOW_S + 4)
    assert circuits(host) == [{}] * 5
    fail(host.pools[4], now_s=NOW_S + 5)
    assert circuits(host) == [{}] * 4 + [{"a": Circuit.OPEN}]
    host.exchange(NOW_S + 5)
    assert circuits(host) == [{"a": Circuit.OPEN}] * 5
    assert {pool.pick(ABC, now_s=NOW_S + 5).server for pool in host.pools} == {"b"}
    assert {pool.circuits.group(ModelVersion("m", 1)).breakers["a"].opened_until_s
            for pool in host.pools} == {NOW_S + 7.5}  # fmt: skip


def test_what_is_heard_opens_nothing() -> None:
    host = Host()
    for number in range(4):
        fail(host.pools[0], now_s=NOW_S + number)
        fail(host.pools[1], now_s=NOW_S + number)
    host.exchange(NOW_S + 9)
    assert circuits(host) == [{}, {}]
    fail(host.pools[0], now_s=NOW_S + 10)
    assert circuits(host)[0] == {"a": Circuit.OPEN}


def test_a_failure_elsewhere_is_work_here_for_a_moment() -> None:
    host = Host()
    for pool in host.pools:
        work(pool)  # it has this model
    fail(host.pools[0])
    host.exchange()
    assert work(host.pools[1]) == 1.0


def test_a_success_anywhere_begins_the_row_anew() -> None:
    host = Host(workers=3)
    for number in range(4):
        fail(host.pools[0], now_s=NOW_S + number)
    host.exchange(NOW_S + 4)
    succeed(host.pools[1], now_s=NOW_S + 5)
    host.exchange(NOW_S + 6)
    for pool in (host.pools[2], host.pools[0]):
        fail(pool, now_s=NOW_S + 7)
    assert circuits(host) == [{}] * 3


def test_whoever_had_a_success_since_says_so() -> None:
    """Also one that nobody had been told of, since nothing was held against the server then."""
    host = Host(workers=3)
    work(host.pools[1])
    for number in range(4):
        fail(host.pools[0], now_s=NOW_S + number)
    succeed(host.pools[1], now_s=NOW_S + 5)
    host.exchange(NOW_S + 6, rounds=2)
    fail(host.pools[0], now_s=NOW_S + 7)
    assert circuits(host) == [{}] * 3


def test_failures_after_the_last_success_still_count() -> None:
    host = Host()
    for number in range(4):
        fail(host.pools[0], now_s=NOW_S + number)
    host.exchange(NOW_S + 4)
    succeed(host.pools[1], now_s=NOW_S + 1.5)  # older than two of the failures
    host.exchange(NOW_S + 5)
    for number in range(2):
        fail(host.pools[0], now_s=NOW_S + 6 + number)
    assert circuits(host)[0] == {}
    fail(host.pools[0], now_s=NOW_S + 8)
    assert circuits(host)[0] == {"a": Circuit.OPEN}


def test_the_success_rate_is_that_of_all_workers() -> None:
    host = Host(workers=4)
    now_s, outcomes = NOW_S, 0
    while not any(circuits(host)):
        pool, now_s = host.pools[outcomes % 4], now_s + 0.01
        if outcomes % 3:
            succeed(pool, now_s=now_s)
        else:
            fail(pool, now_s=now_s)
        outcomes += 1
        host.exchange(now_s)
    assert 20 <= outcomes <= 25  # of each worker only a quarter
    assert circuits(host) == [{"a": Circuit.OPEN}] * 4


def test_a_rate_that_is_good_enough_over_all_workers_ejects_nobody() -> None:
    host = Host(workers=4)
    now_s = NOW_S
    for _ in range(30):
        for pool in host.pools:
            now_s += 0.01
            if pool is host.pools[0]:
                fail(pool, now_s=now_s)  # half of its own fail
                now_s += 0.01
            for _ in range(2 if pool is not host.pools[0] else 1):
                succeed(pool, now_s=now_s)
        host.exchange(now_s)
    assert circuits(host) == [{}] * 4


def test_a_connection_that_all_workers_lose_is_one_failure() -> None:
    host = Host(workers=8)
    leases = [at(pool, ABC, "a") for pool in host.pools]
    for number, lease in enumerate(leases):
        settled(lease, Blame.SERVER, NOW_S + 1 + number / 1000)
    host.exchange(NOW_S + 2)
    fail(host.pools[0], "a", Blame.SERVER, NOW_S + 3)
    host.exchange(NOW_S + 3)
    assert circuits(host, "server") == [{}] * 8
    for number in range(4, 7):
        fail(host.pools[number], "a", Blame.SERVER, NOW_S + number)
        host.exchange(NOW_S + number)
    assert circuits(host, "server") == [{"a": Circuit.OPEN}] * 8


def test_a_fatal_error_ejects_everywhere() -> None:
    host = Host()
    fail(host.pools[1], "a", Blame.FATAL)
    host.exchange()
    assert circuits(host) == [{"a": Circuit.OPEN}] * 2


def test_workers_that_open_too_many_at_once_close_the_latest() -> None:
    host = Host("abcd", workers=4)
    for number, pool in enumerate(host.pools[:3]):
        settled(at(pool, FOUR, "abc"[number]), Blame.FATAL, NOW_S + number)
    host.exchange(NOW_S + 3, rounds=3)
    assert circuits(host) == [{"a": Circuit.OPEN, "b": Circuit.OPEN}] * 4


def test_a_version_that_all_servers_fail_is_bad_for_all_workers() -> None:
    host = Host(workers=3)
    for number, pool in enumerate(host.pools):
        for _ in range(5):
            fail(pool, "abc"[number])
    host.exchange(rounds=3)
    assert circuits(host) == [{}] * 3
    assert [pool.bad_versions() for pool in host.pools] == [[ModelVersion("m", 1)]] * 3


def test_of_two_that_open_at_once_the_longer_time_holds() -> None:
    dice = iter([1.0, 0.0])
    host = Host(random=lambda: next(dice, 0.0))
    for pool in host.pools:
        fail(pool, "a", Blame.FATAL)
    host.exchange()
    breakers = [pool.breakers()["m/1"]["a"] for pool in host.pools]
    assert [breaker.opened_until_s for breaker in breakers] == [NOW_S + 5.0] * 2


# --- recovery


def opened(workers: int = 3, **settings: object) -> Host:
    """Return workers that all have ejected server a."""
    host = Host(workers=workers, **settings)  # type: ignore[arg-type]
    for pool in host.pools:
        work(pool)
    fail(host.pools[0], "a", Blame.FATAL)
    host.exchange()
    return host


DUE_S = NOW_S + 5.0


def picks(host: Host, now_s: float = DUE_S) -> list[Lease]:
    return [pool.pick(ABC, now_s=now_s) for pool in host.pools]


def test_one_worker_probes_at_a_time() -> None:
    host = opened()
    leases = picks(host)
    assert [lease.server for lease in leases] == ["a", "b", "b"]
    assert [lease.server for lease in picks(host)] == ["b"] * 3


def test_a_server_out_for_two_reasons_is_probed_for_both_or_not_at_all() -> None:
    host = Host(workers=3)
    leases = [at(host.pools[0], ABC, "a") for _ in range(6)]
    for lease, blame in zip(leases, [Blame.FATAL, *[Blame.SERVER] * 5], strict=True):
        settled(lease, blame)
    host.exchange()
    table, model, server = host.table(2), host.slots["a", "m"] or 0, host.slots["a", None] or 0
    table.probes.put(model, 1)  # the third worker probes the version,
    assert [pool.pick(ABC, now_s=DUE_S).server for pool in host.pools[:2]] == ["b", "b"]
    assert table.contacts.total(server) == 0
    table.probes.put(model, 0)
    table.contacts.put(server, 1)  # or the server
    assert [pool.pick(ABC, now_s=DUE_S).server for pool in host.pools[:2]] == ["b", "b"]
    assert table.probes.total(model) == 0
    table.contacts.put(server, 0)
    assert [pool.pick(ABC, now_s=DUE_S).server for pool in host.pools[:2]] == ["a", "b"]


def test_no_slot_no_claim() -> None:
    host = opened()
    for pool in host.pools:
        pool.assign({("a", "m"): None})
    assert [lease.server for lease in picks(host)] == ["a"] * 3


def test_a_slot_that_is_taken_back_gives_up_its_claims() -> None:
    host = opened()
    probe = host.pools[0].pick(ABC, now_s=DUE_S)
    host.pools[0].assign({("a", "m"): None})
    assert host.pools[1].pick(ABC, now_s=DUE_S).server == "a"
    settled(probe, Blame.NOBODY, DUE_S)


def test_one_worker_tries_an_ejected_server_with_a_sequence() -> None:
    host = opened()
    one, two = host.pools[:2]
    assert two.place_sequence(ABC, "key", {}, now_s=DUE_S) == "a"
    probe = one.pick_pinned(ABC, "a", now_s=DUE_S)
    assert probe.probe
    assert {pool.place_sequence(ABC, "key", {}, now_s=DUE_S) for pool in (one, two)} <= {"b", "c"}
    assert not two.pick_pinned(ABC, "a", now_s=DUE_S).probe  # what has begun goes on
    settled(probe, Blame.NOBODY, DUE_S)
    assert one.place_sequence(ABC, "key", {}, now_s=DUE_S) == "a"  # it knows how it went
    assert two.place_sequence(ABC, "key", {}, now_s=DUE_S) != "a"


def test_successes_of_probes_of_all_workers_close_the_circuit_everywhere() -> None:
    host = opened(slow_start_s=30.0)
    for number in range(3):
        probe = host.pools[number].pick(ABC, now_s=DUE_S)
        assert probe.server == "a"
        settled(probe, Blame.NOBODY, DUE_S)
        host.exchange(DUE_S, rounds=2)
    assert circuits(host) == [{}] * 3
    for pool in host.pools:
        candidates = pool.choices(ABC, DUE_S).candidates
        assert [candidate.ramp(DUE_S) for candidate in candidates] == [0.1, 1.0, 1.0]


def test_a_probe_that_fails_sends_all_away_for_longer() -> None:
    host = opened()
    settled(host.pools[2].pick(ABC, now_s=DUE_S), Blame.VERSION, DUE_S)
    assert [lease.server for lease in picks(host)] == ["b"] * 3  # before anyone was told
    host.exchange(DUE_S, rounds=2)
    assert [lease.server for lease in picks(host, DUE_S + 4.9)] == ["b"] * 3
    assert picks(host, DUE_S + 5.0)[0].server == "a"


def test_a_worker_that_dies_with_a_probe_leaves_it_to_the_others() -> None:
    host = opened()
    assert host.pools[0].pick(ABC, now_s=DUE_S).server == "a"
    newcomer = host.replace(0)
    assert circuits(host) == [{"a": Circuit.OPEN}] * 3
    assert host.pools[1].pick(ABC, now_s=DUE_S).server == "a"
    assert newcomer.pick(ABC, now_s=DUE_S).server == "b"


def test_a_server_whose_connection_works_again_starts_slowly_in_all_its_versions() -> None:
    host = Host(slow_start_s=30.0)
    for number in range(5):
        fail(host.pools[0], "a", Blame.SERVER, NOW_S + number / 10)
    host.pools[1].choices(route("a", "b", "c", model="n"), NOW_S)
    host.exchange()
    for _ in range(3):
        settled(host.pools[0].pick(ABC, now_s=DUE_S), Blame.NOBODY, DUE_S)
    host.exchange(DUE_S)
    other = host.pools[1].choices(route("a", "b", "c", model="n"), DUE_S)
    assert [candidate.ramp(DUE_S) for candidate in other.all_candidates] == [0.1, 1.0, 1.0]


def test_a_reset_by_hand_holds_for_all() -> None:
    host = opened()
    host.pools[2].reset_breakers("a", None, None)
    host.exchange()
    assert circuits(host) == [{}] * 3
    assert [lease.server for lease in picks(host, NOW_S)] == ["a"] * 3


# --- news


def test_healthy_servers_make_no_news() -> None:
    host = Host()
    for number in range(100):
        for pool in host.pools:
            succeed(pool, "abc"[number % 3], NOW_S + number)
    assert host.exchange() == 0


def test_a_single_failure_is_soon_no_news_any_more() -> None:
    host = Host()
    fail(host.pools[0])
    rows = []
    for number in range(1, 200):
        for pool in host.pools:
            succeed(pool, now_s=NOW_S + number / 50)
        rows.append(host.exchange(NOW_S + number / 50))
    assert max(rows) <= 3
    assert sum(rows[50:]) == 0


def test_an_opening_is_passed_on_once_by_each() -> None:
    host = opened(workers=5)
    assert [host.exchange() for _ in range(3)] == [4, 0, 0]


def test_nothing_is_lost_with_a_worker_that_dies() -> None:
    host = Host(workers=3)
    fail(host.pools[0], "a", Blame.FATAL)
    host.pools[1].learn_foreign(host.pools[0].news(), NOW_S)  # the third is not reached any more
    host.replace(0)
    host.exchange(rounds=2)
    assert circuits(host) == [{"a": Circuit.OPEN}] * 3


def test_news_can_travel_as_plain_json() -> None:
    host = Host()
    for number in range(5):
        fail(host.pools[0], now_s=NOW_S + number)
    rows = json.loads(json.dumps(host.pools[0].news()))
    host.pools[1].learn_foreign(rows, NOW_S + 5)
    assert circuits(host) == [{"a": Circuit.OPEN}] * 2


def test_news_of_servers_that_are_not_known_here_are_ignored() -> None:
    host = Host()
    fail(host.pools[0])
    host.pools[1].remove("a")
    host.exchange()
    assert host.pools[1].breakers() == {}


def test_a_worker_that_joins_learns_where_all_breakers_stand() -> None:
    host = opened()
    host.replace(2)
    assert circuits(host) == [{"a": Circuit.OPEN}] * 3
    assert host.pools[0].standing_news()[0].failures == ()


def test_what_is_told_to_a_newcomer_is_still_told_to_the_others() -> None:
    host = Host()
    for number in range(4):
        fail(host.pools[0], now_s=NOW_S + number)
    host.pools[0].standing_news()
    host.exchange(NOW_S + 4)
    fail(host.pools[1], now_s=NOW_S + 5)
    assert circuits(host)[1] == {"a": Circuit.OPEN}


def test_news_of_an_earlier_turn_are_history() -> None:
    host = opened()
    late = host.pools[1].standing_news()
    host.pools[0].reset_breakers(None, None, None)
    host.pools[0].learn_foreign(late, NOW_S)
    assert circuits(host)[0] == {}
    assert [news.turn for news in host.pools[0].news()] == [late[0].turn + 1]  # and are answered


# --- servers that come and go


def test_a_server_that_is_taken_in_has_no_work_and_no_history() -> None:
    host = Host("ab", max_detached_calls=1)
    pool = host.pools[0]
    held = pool.pick(route("a"), now_s=NOW_S, rows=3)
    settled(at(pool, route("a", "b"), "a"), Blame.FATAL)
    pool.remove("a")
    assert pool.breakers() == {}
    pool.add(Server("a", capacity=2.0))
    assert pool.loads["a"].rows == 0
    (candidate, _) = pool.choices(route("a", "b"), NOW_S).all_candidates
    assert (candidate.work(NOW_S), candidate.latency_s(NOW_S), candidate.capacity) == (0.0, None, 2)
    held.settle(Blame.FATAL, NOW_S)  # of the old one
    held.detach()
    held.release()
    assert (pool.breakers(), candidate.work(NOW_S)) == ({}, 0.0)
    assert pool.pick(route("a", "b"), now_s=NOW_S).server == "a"


def test_a_place_is_used_again_when_the_last_call_there_has_ended() -> None:
    pool = pool_of("ab")
    held = pool.pick(route("a"), now_s=NOW_S)
    settled(pool.pick(route("a"), now_s=NOW_S), Blame.VERSION, NOW_S + 1.0)
    pool.remove("a")
    pool.add(Server("c"))
    held.release()
    pool.add(Server("d"))
    assert [pool.loads[name].place for name in "bcd"] == [1, 2, 0]
    (candidate,) = pool.choices(route("d"), NOW_S).all_candidates
    assert (candidate.work(NOW_S), candidate.latency_s(NOW_S)) == (0.0, None)


def test_a_server_that_returns_has_its_slot_again() -> None:
    host = Host()
    one, two = host.pools
    one.remove("a")
    one.add(Server("a"))
    for pool in host.pools:
        at(pool, ABC, "a").detach()
    assert work(one) == work(two) == 2.0
    assert one.loads["a"].host_detached == 2


def test_a_pool_that_takes_over_from_another_is_the_same_worker() -> None:
    host = Host(max_detached_calls=2)
    old, other = host.pools
    fail(old)
    leases = [at(old, ABC, "a") for _ in range(2)]
    leases[1].detach()
    new = pool_of("abcx", table=host.table(0), max_detached_calls=2)
    new.take_over(old, set("abc"))
    host.pools[0] = new
    assert work(new) == 3.0  # the failure counts, too
    assert work(other) == 2.0
    held = at(other, ABC, "a")
    held.detach()
    host.exchange()
    assert new.choices(ABC, NOW_S).excluded == {"a": "saturated with detached calls"}
    settled(leases[0], Blame.FATAL)  # what an old request learns is told by the new pool
    held.release()
    leases[1].release()
    host.exchange()
    assert circuits(host) == [{"a": Circuit.OPEN}] * 2
    assert work(other, "b") == 0.0
    new.pick(route("x"), now_s=NOW_S)
    assert host.table(1).rows.total(0) == 0


def test_what_is_learnt_of_a_server_that_is_not_kept_is_not_told() -> None:
    host = Host()
    old = host.pools[0]
    leases = [at(old, ABC, name) for name in "ab"]
    fail(old, "b")
    new = pool_of("abc", table=host.table(0))
    new.take_over(old, set("bc"))
    for lease in leases:
        settled(lease, Blame.FATAL)
    assert [news.server for news in new.news()] == ["b"]
