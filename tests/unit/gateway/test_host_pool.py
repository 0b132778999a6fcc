"""The supervisor's pool: what it tells workers of queues, and shows of the servers' limits."""

from typing import Any

from gateway.workers.host import HostPool
from gateway.workers.messages import ServerWaits, View
from routing.admission.limits import Room, Shape, Waits
from routing.balancing.least_request import LeastRequest
from routing.pool import PoolSettings
from routing.types import Server

WAITS = {"m": Waits(Shape(instances=2), 10, 0.0, 0.1)}


def pool_of(*servers: str) -> HostPool:
    return HostPool(
        [Server(name) for name in servers],
        random=lambda: 0.0,
        settings=PoolSettings(max_detached_calls=1),
        new_balancer=lambda _: LeastRequest(),
    )


def view(limits: dict[tuple[str, str], Room]) -> View:
    return View(0, {}, (), (), {}, limits)


def test_workers_are_told_of_waits_and_new_ones_can_catch_up() -> None:
    pool, told = pool_of("a", "b"), list[Any]()
    pool.tell = told.append  # type: ignore[method-assign]
    pool.observe_waits("a", WAITS, 1.0)
    assert told == [ServerWaits("a", WAITS)]
    shapes = {"m": Waits(Shape(instances=2))}
    assert pool.told_waits == {"a": shapes}
    successor = pool_of("a", "c")
    successor.take_over(pool, {"a"})
    assert successor.told_waits == {"a": shapes}
    successor.observe_waits("a", {"m": None, "n": WAITS["m"]}, 2.0)
    assert successor.told_waits == {"a": {"m": None, "n": Waits(Shape(instances=2))}}
    pool.remove("a")
    assert pool.told_waits == {}


def test_limits_are_those_of_the_workers_where_they_know_better() -> None:
    pool = pool_of("a", "b")
    for server in "ab":
        pool.observe_waits(server, WAITS, 1.0)
    assert pool.limits() == {("a", "m"): Room(4, 0), ("b", "m"): Room(4, 0)}
    pool.take([view({("a", "m"): Room(7.5, 3)}), view({("a", "m"): Room(6.0, 2)})])
    assert pool.limits() == {("a", "m"): Room(7.5, 5), ("b", "m"): Room(4, 0)}
    pool.take([])
    assert pool.limits()["a", "m"] == Room(4, 0)
