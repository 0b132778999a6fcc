"""Filtering, picking, and places that are given back exactly once."""

from collections.abc import Callable, Sequence

import pytest

from routing.balancing import Load
from routing.errors import NoReadyEndpoint
from routing.pool import Lease, Pool
from routing.types import Server


class First:
    """A balancer that takes the first candidate, and remembers who they were."""

    def __init__(self) -> None:
        self.candidates: list[str] = []

    def pick(self, candidates: Sequence[Load], random: Callable[[], float]) -> int:
        self.candidates = [load.name for load in candidates]  # type: ignore[attr-defined]
        return 0


@pytest.fixture
def balancer() -> First:
    return First()


@pytest.fixture
def pool(balancer: First) -> Pool:
    servers = [Server("a"), Server("b", capacity=2.0), Server("c")]
    return Pool(servers, balancer=balancer, random=lambda: 0.0, max_detached_calls=2)


def work(pool: Pool, name: str = "a") -> tuple[int, int, int]:
    load = pool.loads[name]
    return load.calls, load.in_flight, load.detached


def detached(pool: Pool, name: str) -> Lease:
    lease = pool.pick([name])
    lease.detach()
    return lease


def test_servers_start_idle_with_their_capacity(pool: Pool) -> None:
    assert [(load.name, load.capacity) for load in pool.loads.values()] == [
        ("a", 1.0),
        ("b", 2.0),
        ("c", 1.0),
    ]
    assert work(pool) == (0, 0, 0)
    assert pool.loads["a"].last_reply_s == float("-inf")


@pytest.mark.parametrize(
    ("ready", "tried", "candidates"),
    [
        (["a", "b", "c"], (), ["a", "b", "c"]),
        (["b"], (), ["b"]),
        (["a", "b", "c"], {"a"}, ["b", "c"]),
        (["a", "c"], {"a", "b"}, ["c"]),
    ],
)
def test_the_balancer_sees_the_ready_and_untried(
    pool: Pool, balancer: First, ready: list[str], tried: set[str], candidates: list[str]
) -> None:
    lease = pool.pick(ready, tried=tried)
    assert balancer.candidates == candidates
    assert lease.server == candidates[0]


@pytest.mark.parametrize(("ready", "tried"), [([], ()), (["a"], {"a"}), (["a", "b"], {"a", "b"})])
def test_nothing_ready_and_untried_is_refused(
    pool: Pool, ready: list[str], tried: set[str]
) -> None:
    with pytest.raises(NoReadyEndpoint, match="no server is ready to take the request") as caught:
        pool.pick(ready, tried=tried)
    assert not caught.value.saturated


def test_a_lease_holds_its_rows_until_it_is_released(pool: Pool) -> None:
    small, large = pool.pick(["a"]), pool.pick(["a"], rows=8)
    assert work(pool) == (2, 9, 0)
    large.release()
    assert work(pool) == (1, 1, 0)
    small.release()
    assert work(pool) == (0, 0, 0)


def test_releasing_twice_counts_once(pool: Pool) -> None:
    first, second = pool.pick(["a"]), pool.pick(["a"])
    first.release()
    first.release()
    assert work(pool) == (1, 1, 0)
    second.release()
    assert work(pool) == (0, 0, 0)


def test_a_detached_call_keeps_its_rows(pool: Pool) -> None:
    lease = pool.pick(["a"], rows=3)
    lease.detach()
    lease.detach()
    assert work(pool) == (1, 3, 1)
    assert repr(pool.loads["a"]) == "ServerLoad(a: 1 calls, 3 rows, 1 detached)"
    lease.release()
    assert work(pool) == (0, 0, 0)


def test_detaching_what_was_given_back_has_no_effect(pool: Pool) -> None:
    lease = pool.pick(["a"])
    lease.release()
    lease.detach()
    assert work(pool) == (0, 0, 0)


def test_a_server_full_of_detached_calls_gets_no_new_ones(pool: Pool, balancer: First) -> None:
    ended = [detached(pool, "a") for _ in range(2)]
    pool.pick(["a", "b"])
    assert balancer.candidates == ["b"]
    ended[0].release()
    pool.pick(["a", "b"])
    assert balancer.candidates == ["a", "b"]


@pytest.mark.parametrize(
    ("ready", "tried", "saturated"),
    [
        (["a"], (), True),
        (["a", "b"], {"b"}, True),
        (["a", "b"], {"a", "b"}, False),  # it was tried, so its bound is not what is missing
        ([], (), False),
        (["b"], {"b"}, False),
    ],
)
def test_a_refusal_tells_whether_a_bound_is_the_reason(
    pool: Pool, ready: list[str], tried: set[str], saturated: bool
) -> None:
    for _ in range(2):
        detached(pool, "a")
    with pytest.raises(NoReadyEndpoint) as caught:
        pool.pick(ready, tried=tried)
    assert caught.value.saturated is saturated
    assert ("saturated" in str(caught.value)) is saturated


def test_pinned_requests_meet_on_one_server_whatever_its_load(pool: Pool) -> None:
    for _ in range(2):
        detached(pool, "a")
    leases = [pool.pick_pinned(ready) for ready in (["c", "a", "b"], ["b", "a"])]
    assert {lease.server for lease in leases} == {"a"}
    assert pool.pick_pinned(["c", "b"], rows=5).server == "b"
    assert work(pool, "b") == (1, 5, 0)


def test_nothing_ready_for_a_pinned_request_is_refused(pool: Pool) -> None:
    with pytest.raises(NoReadyEndpoint) as caught:
        pool.pick_pinned([])
    assert not caught.value.saturated
