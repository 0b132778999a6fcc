"""Servers come and go in the pool and in the table, and leave nothing behind."""

import pytest

from routing.endpoint import SLOW_START_FLOOR
from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.fleet import FleetTable, ModelVersion
from routing.health.breaker import BreakerSettings
from routing.types import Blame, Server
from tests.unit.routing.building import NOW_S, at, pool_of, route, settled

M1, M2 = ModelVersion("m", 1), ModelVersion("m", 2)


def table_of(*names: str) -> FleetTable:
    table = FleetTable(map(Server, names), quorum=0.5, recently_ready_s=50.0)
    for name in names:
        ready(table, name)
    return table


def ready(table: FleetTable, name: str, *keys: ModelVersion) -> None:
    table.observe_ready(name, keys or (M1,), asked_s=NOW_S, now_s=NOW_S)
    table.server_up(name, server_id=name, triton_version="2.58.0", now_s=NOW_S)


def holders(table: FleetTable, version: int | None = None) -> tuple[str, ...]:
    return table.snapshot.resolve("m", version, NOW_S).servers


# --- the table


def test_a_new_server_is_unknown_until_it_was_seen_and_its_model_ready() -> None:
    table = table_of("a")
    table.add(Server("b"), now_s=NOW_S)
    assert table.snapshot.servers["b"].reason == "not probed yet"
    assert holders(table) == ("a",)
    table.server_up("b", server_id="b", triton_version="2.58.0", now_s=NOW_S)
    assert holders(table) == ("a",)
    ready(table, "b")
    assert holders(table) == ("a", "b")


def test_a_fleet_may_begin_without_servers() -> None:
    table = FleetTable((), quorum=0.5, recently_ready_s=50.0)
    with pytest.raises(NoReadyEndpoint, match="no server of the fleet has answered yet"):
        table.snapshot.resolve("m", None, NOW_S)
    table.add(Server("a"), now_s=NOW_S)
    ready(table, "a")
    assert holders(table) == ("a",)


def test_a_server_that_leaves_gets_nothing_although_it_has_the_model_ready() -> None:
    table = table_of("a", "b")
    table.leave("b", now_s=NOW_S)
    found = table.snapshot.resolve("m", None, NOW_S)
    assert found.servers == ("a",)
    assert found.left_out == {"b": "it is leaving the fleet"}
    assert table.snapshot.servers["b"].leaving
    assert table.snapshot.staying() == ["a"]
    ready(table, "b")  # its prober goes on
    assert holders(table) == ("a",)


def test_the_default_version_is_never_one_that_only_a_leaving_server_has() -> None:
    table = table_of("a")
    table.add(Server("b"), now_s=NOW_S)
    ready(table, "b", M1, M2)
    assert table.snapshot.resolve("m", None, NOW_S).spec.version == 2
    table.leave("b", now_s=NOW_S)
    assert table.snapshot.resolve("m", None, NOW_S).spec.version == 1


def test_a_server_that_was_leaving_stays_when_it_is_wanted_again() -> None:
    table = table_of("a", "b")
    table.leave("b", now_s=NOW_S)
    table.update(Server("b"), now_s=NOW_S)
    assert holders(table) == ("a", "b")
    assert not table.snapshot.servers["b"].leaving


def test_what_a_server_is_used_for_can_change() -> None:
    table = table_of("a", "b")
    table.update(Server("b", serve=("other",)), now_s=NOW_S)
    assert holders(table) == ("a",)
    table.update(Server("b"), now_s=NOW_S)
    assert holders(table) == ("a", "b")


def test_a_removed_server_is_forgotten_and_its_models_expected_for_a_while() -> None:
    table = table_of("a")
    table.remove("a", now_s=NOW_S)
    assert table.snapshot.servers == {}
    with pytest.raises(NoReadyEndpoint, match="not at ready state"):
        table.snapshot.resolve("m", 1, NOW_S)
    table.add(Server("b"), now_s=NOW_S + 51)
    table.server_up("b", server_id="b", triton_version="2.58.0", now_s=NOW_S + 51)
    with pytest.raises(NoSuchModel):
        table.snapshot.resolve("m", 1, NOW_S + 51)


def test_a_server_that_comes_back_under_its_name_is_unknown_again() -> None:
    table = table_of("a", "b")
    table.remove("b", now_s=NOW_S)
    table.add(Server("b"), now_s=NOW_S)
    assert holders(table) == ("a",)
    assert table.snapshot.servers["b"].triton_version == ""


# --- the pool


def test_a_new_server_starts_slowly() -> None:
    pool = pool_of(["a"], slow_start_s=30.0)
    settled(pool.pick(route("a"), now_s=NOW_S))
    pool.add(Server("b"))
    by_name = {c.name: c for c in pool.choices(route("a", "b"), NOW_S).candidates}
    assert by_name["a"].ramp(NOW_S) == 1.0
    assert by_name["b"].ramp(NOW_S) == SLOW_START_FLOOR


def test_a_capacity_can_change_while_work_goes_on() -> None:
    pool = pool_of(["a", "b"])
    where = route("a", "b")
    lease = at(pool, where, "b")
    settled(at(pool, where, "a"))
    pool.update(Server("b", capacity=4.0, zone="z", model_capacity={"m": 8.0}))
    [a, b] = pool.choices(where, NOW_S).candidates
    assert (a.capacity, b.capacity) == (1.0, 8.0)
    assert b.server.zone == "z"
    assert b.work(NOW_S) == 1
    lease.release()
    assert b.work(NOW_S) == 0


def test_a_removed_server_is_neither_listed_nor_chosen() -> None:
    pool = pool_of(["a", "b"])
    settled(at(pool, route("a", "b"), "b"))
    pool.remove("b")
    assert list(pool.loads) == ["a"]
    assert pool.pick(route("a"), now_s=NOW_S).server == "a"


def test_what_ends_on_a_removed_server_counts_for_nothing() -> None:
    pool = pool_of(["a", "b"], breaker=BreakerSettings(consecutive_failures=1))
    where = route("a", "b")
    leases = [at(pool, where, "b") for _ in range(3)]
    pool.remove("b")
    for lease in leases:
        lease.settle(Blame.FATAL, NOW_S)
        lease.detach()
        lease.release()
    assert pool.breakers() == {}
    pool.add(Server("b"))
    assert pool.pick(where, now_s=NOW_S, tried={"a"}).server == "b"
    assert pool.loads["b"].calls == 1


def test_a_server_that_comes_back_has_a_clean_record() -> None:
    pool = pool_of(["a", "b", "c"], breaker=BreakerSettings(consecutive_failures=1))
    where = route("a", "b", "c")
    failing = [(at(pool, where, "b"), blame) for blame in (Blame.VERSION, Blame.SERVER)]
    for lease, blame in failing:
        settled(lease, blame)
    lease = at(pool, where, "c")
    lease.detach()
    at(pool, where, "c").detach()
    assert set(pool.choices(where, NOW_S).excluded) == {"b", "c"}
    for name in ("b", "c"):
        pool.remove(name)
        pool.add(Server(name))
    assert pool.choices(where, NOW_S).excluded == {}
    lease.release()
    assert pool.loads["c"].detached == 0


def test_its_old_work_does_not_weigh_on_a_server_that_comes_back() -> None:
    pool = pool_of(["a", "b"])
    where = route("a", "b")
    old = at(pool, where, "b")
    pool.remove("b")
    pool.add(Server("b"))
    new = at(pool, where, "b")
    assert new.candidate.work(NOW_S) == 1
    old.release()
    assert (new.candidate.work(NOW_S), pool.loads["b"].calls) == (1, 1)


def test_the_slow_start_of_others_goes_on_when_a_server_is_removed() -> None:
    pool = pool_of(["a", "b"], slow_start_s=30.0)
    settled(pool.pick(route("a", "b"), now_s=NOW_S))
    pool.add(Server("c"))
    pool.choices(route("a", "b", "c"), NOW_S)
    pool.remove("b")
    by_name = {c.name: c for c in pool.choices(route("a", "c"), NOW_S + 15).candidates}
    assert by_name["c"].ramp(NOW_S + 15) == 0.5
