"""A discrete-event simulation of gateways before servers, on the gateway's own routing.

Servers have a few slots and a queue; service times are lognormal. Requests come as a Poisson
process and go to gateways (or worker processes) at random, each of which has a pool of its own. The
clock is simulated, so a run says the same on every machine. Called by `simulate`.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from routing.balancing import Balancer, Loads
from routing.fleet import VersionRoute
from routing.health.breaker import BreakerSettings
from routing.pool import Lease, Pool, PoolSettings
from routing.shared import HostTable, TableSize
from routing.types import Blame, ModelSpec, Server

SERVERS = 8
SLOTS = 4
MEAN_S = 0.02
SPREAD = 0.8
"""Sigma of the lognormal service time: its 99th percentile is about five times its mean."""
FAILS_IN_S = 0.001
NEVER = 10**9
NO_BREAKER = BreakerSettings(consecutive_failures=NEVER, min_requests=NEVER)
NEWS_S = 0.02
ODD = 0
"""The number of the server that is slow or failing."""


@dataclass(frozen=True)
class Scenario:
    """What the servers do: one may be `slowdown` times slower, or fail everything at once.

    `utilisation` is the load as a share of what all servers that work can do.
    """

    name: str
    utilisation: float = 0.75
    slowdown: float = 1.0
    failing: bool = False

    @property
    def rate_per_s(self) -> float:
        """Requests a second, all gateways together."""
        odd = 0.0 if self.failing else 1 / self.slowdown
        return self.utilisation * (SERVERS - 1 + odd) * SLOTS / MEAN_S


@dataclass
class Gauges:
    """The servers' true loads as polled every `interval_s`: what a metric page would show."""

    interval_s: float
    seen: list[int] = field(default_factory=lambda: [0] * SERVERS)


NewBalancer = Callable[[Gauges], Balancer]


@dataclass(frozen=True)
class Policy:
    """How servers are chosen: by whom, in how many separate pools, on gauges of which age.

    With `shared` the pools are those of one host's workers: they count in one table, and tell one
    another of their breakers every `NEWS_S`. With `penalty` a failure counts against a server, as
    the gateway does it; without, it is like an answer.
    """

    name: str
    new_balancer: NewBalancer
    pools: int = 1
    poll_s: float = math.inf
    penalty: bool = True
    shared: bool = False
    breaker: BreakerSettings = NO_BREAKER


@dataclass
class Outcome:
    """What became of the requests of one run."""

    took_s: list[float] = field(default_factory=list)
    failed: int = 0
    odd: int = 0
    total: int = 0

    def quantile_s(self, part: float) -> float:
        """Return a quantile of the answers' times, failures left out."""
        return sorted(self.took_s)[math.ceil(part * len(self.took_s)) - 1]

    @property
    def odd_share(self) -> float:
        """The part of all requests that went to the odd server."""
        return self.odd / self.total

    @property
    def failed_share(self) -> float:
        """The part of all requests that failed."""
        return self.failed / self.total


class Random:
    """Any server, whatever its load."""

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        return places[int(random() * len(places))]


class LeastOfGauges:
    """The server with the smallest polled gauge, any of equals."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        seen = self._gauges.seen
        least = min(seen)
        best = [number for number, load in enumerate(seen) if load == least]
        return best[int(random() * len(best))]


class TwoOfGauges:
    """Of two random servers the one with the smaller polled gauge."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def pick(
        self, loads: Loads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        first = int(random() * len(places))
        second = (first + 1 + int(random() * (len(places) - 1))) % len(places)
        return min(first, second, key=lambda number: self._gauges.seen[number])


@dataclass
class _Request:
    lease: Lease
    arrived_s: float


class _Backend:
    """One server: `SLOTS` requests at a time, the others wait."""

    def __init__(self) -> None:
        self.busy = 0
        self.waiting: deque[_Request] = deque()

    @property
    def load(self) -> int:
        return self.busy + len(self.waiting)


class Simulation:
    """One run of a policy in a scenario."""

    def __init__(self, scenario: Scenario, policy: Policy, *, seed: int) -> None:
        self._scenario = scenario
        self._policy = policy
        self._random = random.Random(seed)
        self._gauges = Gauges(policy.poll_s)
        self._size = TableSize(workers=policy.pools, pairs=SERVERS, servers=SERVERS)
        self._memory = bytearray(self._size.size_bytes if policy.shared else 0)
        names = [f"server-{number}" for number in range(SERVERS)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._route = VersionRoute(ModelSpec("model", 1, (), ()), tuple(names))
        self._pools = [self._pool(names, number) for number in range(policy.pools)]
        self._backends = [_Backend() for _ in names]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._outcome = Outcome()

    def run(self, seconds: float) -> Outcome:
        """Let requests arrive for so long; return what became of those that were answered."""
        self._at(0.0, self._arrive)
        if self._gauges.interval_s < math.inf:
            self._at(0.0, self._poll)
        if self._policy.shared:
            for number in range(len(self._pools)):
                self._at(NEWS_S * self._random.random(), partial(self._tell, number))
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            if now_s > seconds:
                break
            event(now_s)
        return self._outcome

    def _pool(self, names: Sequence[str], number: int) -> Pool:
        pool = Pool(
            [Server(name) for name in names],
            random=self._random.random,
            settings=PoolSettings(max_detached_calls=NEVER, breaker=self._policy.breaker),
            new_balancer=lambda _: self._policy.new_balancer(self._gauges),
            table=HostTable(self._memory, self._size, worker=number) if self._memory else None,
        )
        pool.assign({(name, "model"): slot for slot, name in enumerate(names)})
        pool.assign({(name, None): slot for slot, name in enumerate(names)})
        return pool

    def _tell(self, number: int, now_s: float) -> None:
        news = self._pools[number].news()
        for pool in self._pools[:number] + self._pools[number + 1 :]:
            pool.learn_foreign(news, now_s)
        self._at(now_s + NEWS_S, partial(self._tell, number))

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def _poll(self, now_s: float) -> None:
        self._gauges.seen = [backend.load for backend in self._backends]
        self._at(now_s + self._gauges.interval_s, self._poll)

    def _arrive(self, now_s: float) -> None:
        self._at(now_s + self._random.expovariate(self._scenario.rate_per_s), self._arrive)
        lease = self._random.choice(self._pools).pick(self._route, now_s=now_s)
        number = self._numbers[lease.server]
        self._outcome.total += 1
        self._outcome.odd += number == ODD
        request = _Request(lease, now_s)
        if self._scenario.failing and number == ODD:
            self._at(now_s + FAILS_IN_S, lambda end_s: self._fail(request, end_s))
        elif self._backends[number].busy < SLOTS:
            self._serve(number, request, now_s)
        else:
            self._backends[number].waiting.append(request)

    def _serve(self, number: int, request: _Request, now_s: float) -> None:
        self._backends[number].busy += 1
        slowdown = self._scenario.slowdown if number == ODD else 1.0
        middle = math.log(MEAN_S * slowdown) - SPREAD**2 / 2
        end_s = now_s + self._random.lognormvariate(middle, SPREAD)
        self._at(end_s, lambda end_s: self._answer(number, request, end_s))

    def _answer(self, number: int, request: _Request, now_s: float) -> None:
        self._outcome.took_s.append(now_s - request.arrived_s)
        request.lease.settle(Blame.NOBODY, now_s)
        request.lease.release()
        backend = self._backends[number]
        backend.busy -= 1
        if backend.waiting:
            self._serve(number, backend.waiting.popleft(), now_s)

    def _fail(self, request: _Request, now_s: float) -> None:
        self._outcome.failed += 1
        request.lease.settle(Blame.VERSION if self._policy.penalty else Blame.NOBODY, now_s)
        request.lease.release()
