"""`python -m tests.bench.simulate`: compares ways to choose a server, and writes SIMULATION.md.

The policies and the pool are the gateway's own; see `simulation` for the rest.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.health.breaker import BreakerSettings
from tests.bench.simulation import (
    LeastOfGauges,
    Outcome,
    Policy,
    Random,
    Scenario,
    Simulation,
    TwoOfGauges,
)

SECONDS = 60.0
SEEDS = (1, 2, 3)
PAGE = Path(__file__).parent / "SIMULATION.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of the tables -->\n"

EQUAL = Scenario("All servers alike")
SLOW = Scenario("One server three times slower", slowdown=3.0)
FAILING = Scenario("One server fails everything within 1 ms", failing=True)

RANDOM = Policy("random", lambda _: Random())
TURNS = Policy("round robin", lambda _: RoundRobin())
STALE_LEAST = Policy("smallest gauge, polled every 1 s", LeastOfGauges, poll_s=1.0)
FRESH_LEAST = Policy("smallest gauge, polled every 50 ms", LeastOfGauges, poll_s=0.05)
STALE_TWO = Policy("two choices on a gauge, polled every 250 ms", TwoOfGauges, poll_s=0.25)
LEAST_REQUEST = Policy("least request", lambda _: LeastRequest())
PEAK_EWMA = Policy("peak EWMA", lambda _: PeakEwma())


def spread(policy: Policy, pools: int) -> Policy:
    """The same policy in separate pools, none of which knows what the others do."""
    return replace(policy, name=f"{policy.name}, {pools} pools apart", pools=pools)


def as_host(policy: Policy, workers: int) -> Policy:
    """The same policy in worker processes of one host, which share what they know."""
    return replace(policy, name=f"{policy.name}, {workers} workers", pools=workers, shared=True)


def blind(policy: Policy) -> Policy:
    """The same policy, to which a failure is as good as an answer."""
    return replace(policy, name=f"{policy.name}, failures not counted", penalty=False)


def breaking(policy: Policy) -> Policy:
    """The same policy with the gateway's breaker."""
    return replace(policy, name=f"{policy.name}, with the breaker", breaker=BreakerSettings())


COMPARED: dict[Scenario, Sequence[Policy]] = {
    EQUAL: (
        RANDOM,
        TURNS,
        STALE_LEAST,
        FRESH_LEAST,
        STALE_TWO,
        spread(LEAST_REQUEST, 24),
        spread(LEAST_REQUEST, 3),
        as_host(LEAST_REQUEST, 24),
        LEAST_REQUEST,
        as_host(PEAK_EWMA, 24),
        PEAK_EWMA,
    ),
    SLOW: (
        RANDOM,
        TURNS,
        spread(LEAST_REQUEST, 24),
        spread(LEAST_REQUEST, 3),
        as_host(LEAST_REQUEST, 24),
        LEAST_REQUEST,
        spread(PEAK_EWMA, 24),
        spread(PEAK_EWMA, 3),
        as_host(PEAK_EWMA, 24),
        PEAK_EWMA,
    ),
    FAILING: (
        RANDOM,
        blind(spread(LEAST_REQUEST, 24)),
        blind(LEAST_REQUEST),
        blind(PEAK_EWMA),
        spread(LEAST_REQUEST, 24),
        as_host(LEAST_REQUEST, 24),
        LEAST_REQUEST,
        PEAK_EWMA,
        breaking(spread(LEAST_REQUEST, 24)),
        breaking(as_host(LEAST_REQUEST, 24)),
        breaking(LEAST_REQUEST),
        breaking(PEAK_EWMA),
    ),
}


def run(scenario: Scenario, policy: Policy, *, seconds: float, seeds: Sequence[int]) -> Outcome:
    """Simulate once for each seed; return all outcomes together."""
    together = Outcome()
    for seed in seeds:
        found = Simulation(scenario, policy, seed=seed).run(seconds)
        together.took_s += found.took_s
        together.failed += found.failed
        together.odd += found.odd
        together.total += found.total
    return together


def table(scenario: Scenario, policies: Sequence[Policy]) -> str:
    """Simulate and render one table."""
    lines = [
        f"### {scenario.name}",
        "",
        "| policy | p50 ms | p99 ms | to the odd server | failed |",
        "|---|---|---|---|---|",
    ]
    for policy in policies:
        found = run(scenario, policy, seconds=SECONDS, seeds=SEEDS)
        times = " | ".join(f"{found.quantile_s(part) * 1000:.0f}" for part in (0.5, 0.99))
        shares = f"{found.odd_share:.1%} | {found.failed_share:.1%}"
        lines.append(f"| {policy.name} | {times} | {shares} |")
        print(lines[-1])
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate everything and put the tables into the page."""
    tables = "\n".join(table(scenario, policies) for scenario, policies in COMPARED.items())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}")


if __name__ == "__main__":
    main()
