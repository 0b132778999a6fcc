"""Places are taken where there is room; several workers share the limit of a server."""

import math

import pytest

from routing.admission.limits import Room, Shape, Waits
from routing.balancing.least_request import LeastRequest
from routing.errors import NoReadyEndpoint, NoRoom
from routing.pool import Lease, Pool
from routing.types import Blame, Server
from tests.unit.routing.building import NOW_S, at, pool_of, route
from tests.unit.routing.hosts import Host

AB = route("a", "b")
TWO = {"m": 2}


def pick(pool: Pool, room: float | None = 1.0, rows: int = 1) -> Lease:
    return pool.pick(AB, now_s=NOW_S, room=room, rows=rows)


def told(pool: Pool, **instances: int) -> None:
    for server, count in instances.items():
        pool.observe_waits(server, {"m": Waits(Shape(count))}, NOW_S)


def test_a_place_is_taken_where_there_is_room_whatever_the_policy_prefers() -> None:
    pool = pool_of("ab", limits=TWO)  # the policy takes the first
    assert [pick(pool).server for _ in range(4)] == ["a", "a", "b", "b"]
    with pytest.raises(NoRoom):
        pick(pool)
    assert pick(pool, None).server == "a", "who does not ask gets one all the same"


def test_a_share_of_the_limit_may_be_filled() -> None:
    pool = pool_of("ab", limits={"m": 10})
    taken = [pick(pool, 0.7) for _ in range(14)]
    with pytest.raises(NoRoom):
        pick(pool, 0.7)
    assert pick(pool, 0.9).server == "a"
    for lease in taken:
        lease.release()
    assert pick(pool, 0.1).server == "b"


def test_the_last_one_may_have_more_rows_than_there_is_room_for() -> None:
    pool = pool_of("a", limits=TWO)
    where = route("a")
    pool.pick(where, now_s=NOW_S, room=1.0, rows=100)
    with pytest.raises(NoRoom):
        pool.pick(where, now_s=NOW_S, room=1.0)


def test_room_elsewhere_counts_whatever_the_zone() -> None:
    servers = [Server("a", zone="here"), Server("b", zone="there")]
    pool = pool_of(servers, limits=TWO, zone="here")
    assert [pick(pool).server for _ in range(4)] == ["a", "a", "b", "b"]


def test_a_server_that_starts_slowly_takes_what_the_others_cannot() -> None:
    pool = pool_of("a", limits=TWO, slow_start_s=30.0, random=lambda: 0.99)
    pool.choices(route("a"), NOW_S)
    pool.add(Server("b"))
    assert [pick(pool).server for _ in range(4)] == ["a", "a", "b", "b"]


def test_those_that_were_tried_have_no_room() -> None:
    pool = pool_of("ab", limits=TWO)
    for _ in range(2):
        at(pool, AB, "b")
    with pytest.raises(NoRoom):
        pool.pick(AB, now_s=NOW_S, tried={"a"}, room=1.0)
    with pytest.raises(NoReadyEndpoint):
        pool.pick(AB, now_s=NOW_S, tried={"a", "b"}, room=1.0)


def test_a_limit_follows_what_a_server_tells_and_ends_with_the_model() -> None:
    pool = pool_of("ab", balancer=LeastRequest())
    assert pool.limits() == {}
    told(pool, a=1, b=3, gone=1)
    assert pool.limits() == {("a", "m"): Room(2, 0), ("b", "m"): Room(6, 0)}
    taken = [pick(pool) for _ in range(8)]
    assert sorted(lease.server for lease in taken) == ["a"] * 2 + ["b"] * 6
    assert pool.limits()["b", "m"] == Room(6, 6)
    pool.observe_waits("b", {"m": None}, NOW_S)
    assert pool.limits() == {("a", "m"): Room(2, 2)}
    assert pick(pool).server == "b", "of what nothing is known, nothing is held back"


def test_a_queue_that_is_full_shrinks_the_limit_at_once() -> None:
    pool = pool_of("a")
    told(pool, a=10)
    lease = pool.pick(route("a"), now_s=NOW_S)
    lease.settle(Blame.OVERLOAD, NOW_S)
    assert pool.limits()["a", "m"].limit == 14


def test_news_are_what_differs_from_the_start() -> None:
    pool = pool_of("ab")
    told(pool, a=10, b=10)
    assert pool.limits(news_only=True) == {}
    lease = at(pool, AB, "b")
    assert pool.limits(news_only=True) == {("b", "m"): Room(20, 1)}
    lease.settle(Blame.OVERLOAD, NOW_S)
    lease.release()
    assert pool.limits(news_only=True) == {("b", "m"): Room(14, 0)}


def test_what_is_laid_down_changes_with_the_configuration() -> None:
    before = pool_of("ab", limits=TWO)
    told(before, a=1)
    after = pool_of("ab", limits={"m": 5})
    after.take_over(before, {"a", "b"})
    assert after.limits() == {("a", "m"): Room(5, 0)}
    last = pool_of("ab")
    last.take_over(after, {"a", "b"})
    assert last.limits() == {("a", "m"): Room(2, 0)}
    assert last.model("m").limits.rows[1] == math.inf


# --- workers


def test_workers_count_together_and_each_has_its_part() -> None:
    one, two = Host("a", limits={"m": 4}).pools
    where = route("a")

    def take(pool: Pool) -> Lease:
        return pool.pick(where, now_s=NOW_S, room=1.0)

    taken = [take(one) for _ in range(4)]
    with pytest.raises(NoRoom):
        take(one)
    others = [take(two) for _ in range(2)]  # its own part, although the server is full
    with pytest.raises(NoRoom):
        take(two)
    taken[0].release()
    for pool in (one, two):
        with pytest.raises(NoRoom):
            take(pool)
    for lease in taken[1:]:
        lease.release()
    assert len([take(two) for _ in range(2)]) == 2, "a worker alone may have all of it"
    with pytest.raises(NoRoom):
        take(two)
    for lease in others:
        lease.release()


def test_without_a_row_in_the_table_each_worker_has_its_part() -> None:
    host = Host("a", limits={"m": 4})
    host.pools[0].assign({("a", "m"): None})
    for _ in range(2):
        host.pools[0].pick(route("a"), now_s=NOW_S, room=1.0)
    with pytest.raises(NoRoom):
        host.pools[0].pick(route("a"), now_s=NOW_S, room=1.0)
