"""A server that starts slowly takes part in the choice by chance, and more and more often."""

import random
from collections.abc import Callable

import pytest

from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.fleet import VersionRoute
from routing.pool import Pool, PoolSettings
from routing.types import ModelSpec, Server

SLOW_START_S = 30.0
SPEC = ModelSpec("m", 1, (), ())
TWO = VersionRoute(SPEC, ("a", "b"))
THREE = VersionRoute(SPEC, ("a", "b", "c"))
PICKS = 3000


def share_of_c(pool: Pool, now_s: float) -> float:
    """The share of the third server in requests that never meet one another."""
    got = 0
    for _ in range(PICKS):
        lease = pool.pick(THREE, now_s=now_s)
        got += lease.server == "c"
        lease.release()
    return got / PICKS


def new_pool(balancer: Callable[[], Balancer], settings: PoolSettings) -> Pool:
    return Pool(
        [Server(name) for name in "abc"],
        random=random.Random(1).random,
        settings=settings,
        new_balancer=lambda _: balancer(),
    )


@pytest.mark.parametrize("balancer", [LeastRequest, PeakEwma, RoundRobin])
@pytest.mark.parametrize(("passed_s", "ramp"), [(0.0, 0.1), (15.0, 0.5), (30.0, 1.0)])
def test_a_new_server_gets_its_part_even_when_all_are_idle(
    balancer: Callable[[], Balancer], passed_s: float, ramp: float
) -> None:
    pool = new_pool(balancer, PoolSettings(10, slow_start_s=SLOW_START_S))
    pool.pick(TWO, now_s=0.0).release()
    pool.pick(THREE, now_s=100.0).release()
    assert 0.5 * ramp / 3 < share_of_c(pool, 100.0 + passed_s) < 1.7 * ramp / 3


def test_servers_that_all_start_share_the_load() -> None:
    pool = new_pool(LeastRequest, PoolSettings(10, slow_start_s=SLOW_START_S))
    for candidate in pool.choices(THREE, 0.0).candidates:
        candidate.start_slowly(0.0)
    assert share_of_c(pool, 0.0) == pytest.approx(1 / 3, rel=0.1)
