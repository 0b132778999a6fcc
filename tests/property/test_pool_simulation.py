"""A small fleet in simulated time: a sinkhole, a slow server, a newcomer, an unequal pair."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.fleet import VersionRoute
from routing.health.breaker import BreakerSettings
from routing.pool import Lease, Pool
from routing.types import Blame, Server
from tests.unit.routing.building import pool_of, route

FOUR = route("a", "b", "c", "d")
NEVER_TRIPS = BreakerSettings(consecutive_failures=10**9, min_requests=10**9)
SERVICE_S = 0.05

Outcome = tuple[float, Blame]
"""How long a request takes, and how it ends."""


@dataclass(order=True)
class End:
    """The end of a request."""

    at_s: float
    number: int
    lease: Lease = field(compare=False)
    blame: Blame = field(compare=False)


class Simulation:
    """Requests at random moments; each server works on any number of them at once."""

    def __init__(
        self, pool: Pool, where: VersionRoute = FOUR, *, rate_per_s: float = 200.0, seed: int = 1
    ) -> None:
        self.pool = pool
        self.where = where
        self.now_s = 1000.0
        self.chosen: list[tuple[float, str]] = []
        self._rate_per_s = rate_per_s
        self._random = random.Random(seed)
        self._ends: list[End] = []

    def run(self, seconds: float, outcome: Callable[[str], Outcome]) -> Counter[str]:
        """Let time pass; return how many requests each server got meanwhile."""
        until_s, before = self.now_s + seconds, len(self.chosen)
        while True:
            self.now_s += self._random.expovariate(self._rate_per_s)
            if self.now_s >= until_s:
                break
            self._end_requests()
            lease = self.pool.pick(self.where, now_s=self.now_s)
            took_s, blame = outcome(lease.server)
            number = len(self.chosen)
            heapq.heappush(self._ends, End(self.now_s + took_s, number, lease, blame))
            self.chosen.append((self.now_s, lease.server))
        return Counter(server for _, server in self.chosen[before:])

    def _end_requests(self) -> None:
        while self._ends and self._ends[0].at_s <= self.now_s:
            end = heapq.heappop(self._ends)
            end.lease.settle(end.blame, end.at_s)
            end.lease.release()

    def answers(self, _: str) -> Outcome:
        return self._random.expovariate(1 / SERVICE_S), Blame.NOBODY


def share(counts: Counter[str], server: str) -> float:
    return counts[server] / counts.total()


POLICIES = pytest.mark.parametrize("policy", [LeastRequest, PeakEwma])


def pool(
    policy: type[Balancer], servers: Iterable[Server | str] = "abcd", **settings: object
) -> Pool:
    dice = random.Random(2).random
    return pool_of(servers, balancer=policy(), random=dice, **settings)  # type: ignore[arg-type]


@POLICIES
@pytest.mark.parametrize("blame", [Blame.VERSION, Blame.OVERLOAD])
def test_a_server_that_fails_in_a_millisecond_attracts_no_work(
    policy: type[Balancer], blame: Blame
) -> None:
    """Even where it is never ejected its share stays below a fair one, a quarter."""
    simulation = Simulation(pool(policy, breaker=NEVER_TRIPS))

    def outcome(server: str) -> Outcome:
        return (0.001, blame) if server == "d" else simulation.answers(server)

    shares = [share(simulation.run(1.0, outcome), "d") for _ in range(20)]
    assert max(shares[1:]) < 0.25
    assert sum(shares[1:]) / 19 < 0.15


@POLICIES
def test_a_server_that_fails_is_ejected_and_only_probed(policy: type[Balancer]) -> None:
    simulation = Simulation(pool(policy))

    def outcome(server: str) -> Outcome:
        return (0.001, Blame.VERSION) if server == "d" else simulation.answers(server)

    counts = simulation.run(60.0, outcome)
    assert counts["d"] <= 5 + 6
    repaired = simulation.run(300.0, simulation.answers)
    assert simulation.pool.breakers() == {}
    assert repaired["d"] > 0
    assert share(simulation.run(20.0, simulation.answers), "d") > 0.15


@POLICIES
def test_a_slow_server_gets_less(policy: type[Balancer]) -> None:
    simulation = Simulation(pool(policy))

    def outcome(server: str) -> Outcome:
        took_s, blame = simulation.answers(server)
        return (5 * took_s if server == "d" else took_s), blame

    assert share(simulation.run(20.0, outcome), "d") < 0.2


@POLICIES
def test_equal_servers_get_equal_work(policy: type[Balancer]) -> None:
    simulation = Simulation(pool(policy))
    counts = simulation.run(20.0, simulation.answers)
    assert all(0.2 < share(counts, server) < 0.3 for server in "abcd")


@pytest.mark.parametrize("rate_per_s", [40.0, 400.0])
def test_twice_the_capacity_gets_more(rate_per_s: float) -> None:
    servers = [Server("a", capacity=2.0), *map(Server, "bcd")]
    simulation = Simulation(pool(LeastRequest, servers), rate_per_s=rate_per_s)
    counts = simulation.run(20.0, simulation.answers)
    assert counts["a"] > 1.2 * max(counts[server] for server in "bcd")


@POLICIES
@pytest.mark.parametrize("rate_per_s", [20.0, 200.0])
def test_the_share_of_a_newcomer_grows(policy: type[Balancer], rate_per_s: float) -> None:
    """Whether there is little or much to do."""
    simulation = Simulation(
        pool(policy, slow_start_s=100.0), route("a", "b", "c"), rate_per_s=rate_per_s
    )
    simulation.run(5.0, simulation.answers)
    simulation.where = FOUR
    shares = [share(simulation.run(20.0, simulation.answers), "d") for _ in range(6)]
    early, late = shares[0], shares[5]
    assert 0 < early < 0.13  # a tenth to a fifth of the time it takes part
    assert early < sum(shares[1:3]) / 2 < sum(shares[3:5]) / 2
    assert late > 0.18


def test_two_servers_share_although_one_has_only_begun() -> None:
    """A newcomer may be as many as half of the servers and still starts slowly."""
    simulation = Simulation(pool(LeastRequest, "ab", slow_start_s=100.0), route("a"))
    simulation.run(5.0, simulation.answers)
    simulation.where = route("a", "b")
    assert share(simulation.run(10.0, simulation.answers), "b") < 0.2
    simulation.run(90.0, simulation.answers)
    assert 0.4 < share(simulation.run(20.0, simulation.answers), "b") < 0.6
