"""What the simulation has shown must stay so: orderings, with fixed seeds, never times."""

import functools
from dataclasses import replace

import pytest

from tests.bench import routing_cost, simulate
from tests.bench.simulate import (
    EQUAL,
    FAILING,
    FRESH_LEAST,
    LEAST_REQUEST,
    PEAK_EWMA,
    RANDOM,
    SLOW,
    STALE_LEAST,
    STALE_TWO,
    TURNS,
    as_host,
    blind,
    breaking,
    spread,
)
from tests.bench.simulation import SERVERS, Outcome, Policy, Scenario

FAIR = 1 / SERVERS


@functools.cache
def run(scenario: Scenario, policy: Policy) -> Outcome:
    return simulate.run(scenario, policy, seconds=10.0, seeds=(1,))


def slowest_s(scenario: Scenario, policy: Policy) -> float:
    return run(scenario, policy).quantile_s(0.99)


def test_a_polled_minimum_herds_and_chance_does_not() -> None:
    by_chance = slowest_s(EQUAL, RANDOM)
    assert slowest_s(EQUAL, STALE_LEAST) > 4 * slowest_s(EQUAL, FRESH_LEAST) > 4 * by_chance
    assert slowest_s(EQUAL, STALE_TWO) > by_chance


def test_two_choices_on_what_is_known_beat_chance_and_turns() -> None:
    busy = replace(EQUAL, utilisation=0.9)
    ours = slowest_s(busy, LEAST_REQUEST)
    assert ours < slowest_s(busy, TURNS) < slowest_s(busy, RANDOM)


@pytest.mark.parametrize("policy", [LEAST_REQUEST, PEAK_EWMA], ids=lambda policy: policy.name)
def test_a_server_that_fails_fast_is_a_sinkhole_only_if_failures_do_not_count(
    policy: Policy,
) -> None:
    assert run(FAILING, blind(policy)).odd_share > 1.5 * FAIR
    assert run(FAILING, policy).odd_share < 0.5 * FAIR
    assert run(FAILING, breaking(policy)).failed_share <= run(FAILING, policy).failed_share


def test_peak_ewma_is_the_best_for_a_slow_server_above_all_in_pools_apart() -> None:
    together = slowest_s(SLOW, PEAK_EWMA), slowest_s(SLOW, LEAST_REQUEST)
    apart = slowest_s(SLOW, spread(PEAK_EWMA, 24)), slowest_s(SLOW, spread(LEAST_REQUEST, 24))
    assert together[0] < together[1] < slowest_s(SLOW, TURNS)
    assert apart[0] < apart[1] < slowest_s(SLOW, RANDOM)
    assert together[1] < apart[1]
    assert 0 < run(SLOW, PEAK_EWMA).odd_share < run(SLOW, LEAST_REQUEST).odd_share < FAIR


@pytest.mark.parametrize("scenario", [EQUAL, SLOW], ids=lambda scenario: scenario.name)
def test_workers_that_share_their_counts_balance_like_one(scenario: Scenario) -> None:
    limit_s = 1.05 * slowest_s(scenario, LEAST_REQUEST)
    assert slowest_s(scenario, as_host(LEAST_REQUEST, 24)) <= limit_s
    assert slowest_s(scenario, spread(LEAST_REQUEST, 24)) > limit_s


def test_workers_that_tell_one_another_eject_together() -> None:
    """Five failures in all, those under way meanwhile, and a probe now and then."""
    together = run(FAILING, breaking(as_host(LEAST_REQUEST, 24)))
    apart = run(FAILING, breaking(spread(LEAST_REQUEST, 24)))
    assert 5 <= together.failed <= 10 < 100 < apart.failed


def test_a_simulation_is_the_same_every_time() -> None:
    again = simulate.run(SLOW, PEAK_EWMA, seconds=10.0, seeds=(1,))
    assert run(SLOW, PEAK_EWMA) == again


def test_the_cost_of_routing_can_be_measured() -> None:
    table, pool, keys = routing_cost.fleet(3, 2)
    assert routing_cost.route(table, pool, [key.model for key in keys], requests=10) > 0
    assert all(load.calls == 0 for load in pool.loads.values())
