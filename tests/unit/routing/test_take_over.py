"""A table and a pool go on from others: for the servers that are kept, as if nothing had been."""

from collections.abc import Mapping

import pytest

from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.fleet import FleetTable, ModelRow, ModelRules, ModelVersion
from routing.health.breaker import BreakerSettings
from routing.pool import Pool
from routing.steering import Steering
from routing.types import Blame, ModelSpec, Server, State
from tests.unit.routing.building import NOW_S, at, pool_of, route, settled

M1, M2 = ModelVersion("m", 1), ModelVersion("m", 2)
AB, ABC = route("a", "b"), route("a", "b", "c")


def table_of(*servers: Server | str, rules: Mapping[str, ModelRules] | None = None) -> FleetTable:
    named = [Server(server) if isinstance(server, str) else server for server in servers]
    return FleetTable(named, quorum=0.5, recently_ready_s=300.0, rules=rules)


def up(table: FleetTable, name: str, *ready: ModelVersion, batch: int = 0) -> None:
    table.observe_ready(name, ready, asked_s=NOW_S, now_s=NOW_S)
    for key in ready:
        spec = ModelSpec(key.model, key.version, inputs=(), outputs=(), max_batch_size=batch)
        table.learn_spec(name, spec, now_s=NOW_S)
    table.server_up(name, server_id=f"id-{name}", triton_version="2.58.0", now_s=NOW_S)


def servers(table: FleetTable, version: int | None = None) -> tuple[str, ...]:
    return table.snapshot.resolve("m", version, NOW_S).servers


# --- the table


def test_what_is_known_of_kept_servers_is_known_at_once() -> None:
    old, new = table_of("a", "b"), table_of("b", "a", "c")
    up(old, "a", M1)
    old.observe_index("a", {M2: ModelRow(State.UNAVAILABLE, "why")}, ["idle"], now_s=NOW_S)
    old.server_down("b", "it burns", now_s=NOW_S)
    new.take_over(old, {"a", "b"}, now_s=NOW_S)
    assert list(new.snapshot.servers) == ["b", "a", "c"]
    for name in "ab":
        assert new.snapshot.servers[name] == old.snapshot.servers[name]
    assert new.snapshot.servers["c"].reason == "not probed yet"
    assert new.snapshot.models == old.snapshot.models
    assert servers(new) == ("a",)


def test_the_two_go_their_own_ways_afterwards() -> None:
    old, new = table_of("a", "b"), table_of("a", "b")
    for name in "ab":
        up(old, name, M1)
    new.take_over(old, {"a", "b"}, now_s=NOW_S)
    old.suspect("a", M1, "it said so", now_s=NOW_S)
    new.server_down("b", "gone", now_s=NOW_S)
    assert (servers(old), servers(new)) == (("b",), ("a",))


def test_a_server_that_is_not_kept_has_to_answer_first() -> None:
    old, new = table_of("a", "b"), table_of("a", "b")
    for name in "ab":
        up(old, name, M1)
    new.take_over(old, {"a"}, now_s=NOW_S)
    assert servers(new) == ("a",)
    up(new, "b", M1)
    assert servers(new) == ("a", "b")


def test_new_rules_count_for_kept_servers() -> None:
    rules = {"m": ModelRules(pool="x", default_version=1)}
    old, new = table_of("a", "b"), table_of("a", Server("b", pool="x"), rules=rules)
    for name in "ab":
        up(old, name, M1, M2)
    new.take_over(old, {"a", "b"}, now_s=NOW_S)
    assert servers(old, 2) == ("a", "b")
    assert servers(new, 2) == ("b",)
    assert (old.snapshot.models["m"].default, new.snapshot.models["m"].default) == (2, 1)


def test_equal_signatures_of_kept_and_new_servers_are_one() -> None:
    old, new = table_of("a", "b"), table_of("a", "b", "c")
    for name in "ab":
        up(old, name, M1, batch=4)
    up(new, "c", M1, batch=4)
    new.take_over(old, {"a", "b"}, now_s=NOW_S)
    assert servers(new) == ("a", "b", "c")


def test_a_new_server_with_a_new_version_alone_does_not_make_it_the_default() -> None:
    old, new = table_of("a", "b", "d"), table_of("a", "b", "d", "c")
    for name in "abd":
        up(old, name, M1)
    up(new, "c", M1, M2)
    new.take_over(old, {"a", "b", "d"}, now_s=NOW_S)
    assert new.snapshot.models["m"].default == 1


def test_what_has_just_gone_with_its_server_is_expected_back_for_a_while() -> None:
    old, new = table_of("a"), table_of("b")
    up(old, "a", M1)
    up(new, "b", ModelVersion("other", 1))
    new.take_over(old, (), now_s=NOW_S)
    with pytest.raises(NoReadyEndpoint):
        new.snapshot.resolve("m", 1, NOW_S)
    with pytest.raises(NoSuchModel):
        new.snapshot.resolve("m", 1, NOW_S + 301)


# --- the pool


def eject(pool: Pool, name: str) -> None:
    settled(at(pool, ABC, name), Blame.FATAL)


def chosen(pool: Pool, now_s: float = NOW_S) -> str:
    lease = pool.pick(ABC, now_s=now_s)
    settled(lease, Blame.NOBODY, now_s)
    return lease.server


def taken_over(old: Pool, new: Pool, kept: str = "ab") -> Pool:
    new.take_over(old, set(kept))
    return new


def test_what_is_under_way_counts_in_both() -> None:
    old = pool_of("ab")
    lease = at(old, AB, "a")
    new = taken_over(old, pool_of([Server("a", capacity=3.0), "b", "c"]))
    assert new.loads["a"].calls == 1
    assert new.loads["a"].server.capacity == 3.0
    assert (old.leases, new.leases) == (1, 0)
    choice = new.choices(ABC, NOW_S)
    assert {c.name: (c.work(NOW_S), c.capacity) for c in choice.candidates} == {
        "a": (1.0, 3.0),
        "b": (0.0, 1.0),
        "c": (0.0, 1.0),
    }
    lease.release()
    assert new.loads["a"].calls == 0
    assert old.leases == 0


def test_a_server_that_is_not_kept_starts_empty() -> None:
    old = pool_of("abc")
    lease = at(old, ABC, "a")
    eject(old, "a")
    new = taken_over(old, pool_of("abc"), kept="bc")
    assert new.loads["a"].calls == 0
    assert new.breakers() == {}
    lease.release()
    assert new.loads["a"].calls == 0


def test_breakers_stay_open_and_recover_by_the_new_settings() -> None:
    old = pool_of("abc", slow_start_s=0.0)
    eject(old, "a")
    old.transport.fatal("b", "abc", NOW_S)
    new = pool_of("abc", breaker=BreakerSettings(close_after=1))
    taken_over(old, new, kept="abc")
    found = {of: list(breakers) for of, breakers in new.breakers().items()}
    assert found == {"m/1": ["a"], "server": ["b"]}
    late_s = NOW_S + 1000
    probe = new.pick(ABC, now_s=late_s)
    assert probe.server == "a"
    settled(probe, Blame.NOBODY, late_s)
    assert "m/1" not in new.breakers()


def test_a_version_that_is_bad_stays_bad() -> None:
    old = pool_of("abc")
    for name in "abc":
        for _ in range(5):
            settled(at(old, ABC, name), Blame.VERSION)
    assert old.bad_versions() == [M1]
    assert taken_over(old, pool_of("abc"), "abc").bad_versions() == [M1]


def test_the_outcome_of_an_old_request_is_felt_at_once() -> None:
    old = pool_of("abc", slow_start_s=0.0)
    lease = at(old, ABC, "a")
    eject(old, "a")
    new = taken_over(old, pool_of("abc", slow_start_s=0.0), "abc")
    assert chosen(new) == "b"
    late_s = NOW_S + 1000
    for _ in range(3):
        probe = old.pick(ABC, now_s=late_s)
        settled(probe, Blame.NOBODY, late_s)
    assert chosen(new, late_s) == "a"
    lease.release()


def test_a_call_that_is_detached_later_saturates_in_the_newest_pool() -> None:
    old = pool_of("ab", max_detached_calls=1)
    lease = at(old, AB, "a")
    middle = taken_over(old, pool_of("ab", max_detached_calls=1))
    new = taken_over(middle, pool_of("ab", max_detached_calls=1))
    assert new.pick(AB, now_s=NOW_S).server == "a"
    lease.detach()
    assert new.choices(AB, NOW_S).excluded == {"a": "saturated with detached calls"}
    lease.release()
    assert new.choices(AB, NOW_S).excluded == {}


def test_a_call_detached_on_a_server_that_was_removed_concerns_nobody() -> None:
    old = pool_of("ab", max_detached_calls=1)
    lease = at(old, AB, "a")
    new = taken_over(old, pool_of("ab", max_detached_calls=1), kept="b")
    lease.detach()
    assert new.choices(AB, NOW_S).excluded == {}
    lease.release()


def test_a_lower_bound_of_detached_calls_counts_at_once() -> None:
    old = pool_of("ab", max_detached_calls=2)
    lease = at(old, AB, "a")
    lease.detach()
    new = taken_over(old, pool_of("ab", max_detached_calls=1))
    assert new.choices(AB, NOW_S).excluded == {"a": "saturated with detached calls"}


def test_steering_is_taken_over() -> None:
    old = pool_of("ab")
    old.steer(Steering(frozenset({"a"})))
    new = taken_over(old, pool_of("ab"))
    assert new.pick(AB, now_s=NOW_S).server == "b"


def test_only_servers_that_are_new_start_slowly() -> None:
    old = pool_of("ab", slow_start_s=10.0)
    chosen_before = old.choices(AB, NOW_S)
    assert chosen_before.slow_until_s <= NOW_S
    new = taken_over(old, pool_of("abc", slow_start_s=20.0))
    starting = {c.name: c.slow_until_s for c in new.choices(ABC, NOW_S).candidates}
    assert starting["c"] == NOW_S + 20
    assert max(starting["a"], starting["b"]) <= NOW_S


def test_felt_latency_and_lost_connections_are_taken_over() -> None:
    old = pool_of("ab")
    first, second = at(old, AB, "a"), at(old, AB, "a")
    lease = at(old, AB, "b")
    settled(lease, Blame.NOBODY, NOW_S + 2)
    settled(first, Blame.SERVER, NOW_S + 1)
    new = taken_over(old, pool_of("ab"))
    by_name = {c.name: c for c in new.choices(AB, NOW_S + 2).candidates}
    assert by_name["b"].latency_s(NOW_S + 2) == 2.0
    assert new.circuits._lost_s == {"a": NOW_S + 1}
    second.release()
