"""Requests stay in their zone as long as it can carry them, and leave it in proportion."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routing.choices import spill
from routing.steering import Steering
from routing.types import Server
from tests.unit.routing.building import NOW_S, pool_of, route

COUNTS = st.integers(1, 6)
SEEDS = st.integers(0, 2**32)


def two_zones(here: int, there: int, seed: int) -> tuple[list[Server], object]:
    servers = [Server(f"here{n}", zone="z") for n in range(here)]
    servers += [Server(f"there{n}", zone="y") for n in range(there)]
    return servers, random.Random(seed).random


@given(COUNTS, COUNTS, SEEDS)
def test_an_idle_zone_keeps_everything(here: int, there: int, seed: int) -> None:
    servers, dice = two_zones(here, there, seed)
    pool = pool_of(servers, zone="z", random=dice)  # type: ignore[arg-type]
    where = route(*(server.name for server in servers))
    for _ in range(50):
        lease = pool.pick(where, now_s=NOW_S)
        assert lease.server.startswith("here")
        lease.release()


@given(COUNTS, COUNTS, st.integers(0, 6), SEEDS)
def test_what_the_rest_of_a_zone_cannot_carry_leaves_it(
    here: int, there: int, out: int, seed: int
) -> None:
    servers, dice = two_zones(here, there, seed)
    pool = pool_of(servers, zone="z", random=dice)  # type: ignore[arg-type]
    pool.steer(Steering(frozenset(f"here{n}" for n in range(min(out, here)))))
    where = route(*(server.name for server in servers))
    left, rounds, stayed = max(0, here - out), 1000, Counter[bool]()
    for _ in range(rounds):
        lease = pool.pick(where, now_s=NOW_S)
        stayed[lease.server.startswith("here")] += 1
        lease.release()
    expected = rounds * min(1.0, 1.4 * left / here)
    assert abs(stayed[True] - expected) <= 6 * (rounds * 0.25) ** 0.5


@given(COUNTS, COUNTS, st.integers(0, 40), st.integers(0, 40), SEEDS)
def test_a_zone_is_left_only_when_it_is_more_than_twice_as_busy(
    here: int, there: int, rows_here: int, rows_there: int, seed: int
) -> None:
    servers, dice = two_zones(here, there, seed)
    pool = pool_of(servers, zone="z")
    choices = pool.choices(route(*(server.name for server in servers)), NOW_S)
    for candidate in choices.all_candidates:
        here_or_there = rows_here if candidate.name.startswith("here") else rows_there
        candidate.model.rows[candidate.place] = here_or_there
    leaves = spill(choices, dice, NOW_S) is choices.remote  # type: ignore[arg-type]
    assert leaves == (rows_here + 1 > 2 * (rows_there + 1))
