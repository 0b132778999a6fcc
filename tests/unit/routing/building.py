"""Pools, routes and scripted dice for tests of routing; time is whatever the test says."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from routing.balancing import Balancer
from routing.endpoint import ModelLoads
from routing.fleet import VersionRoute
from routing.health.breaker import BreakerSettings
from routing.pool import Lease, Pool, PoolSettings
from routing.shared import HostTable
from routing.types import Blame, ModelSpec, Server

NOW_S = 1000.0


def drawn(*numbers: float) -> Callable[[], float]:
    """Return dice that show these numbers, and then none."""
    draws = iter(numbers)
    return lambda: next(draws)


def route(*servers: str, model: str = "m", version: int = 1, **spec: Any) -> VersionRoute:
    """Return where a version can be served."""
    return VersionRoute(ModelSpec(model, version, inputs=(), outputs=(), **spec), servers)


class First:
    """A balancer that takes the first candidate, and remembers who they were."""

    def __init__(self) -> None:
        self.candidates: list[str] = []

    def pick(
        self, loads: ModelLoads, places: Sequence[int], random: Callable[[], float], now_s: float
    ) -> int:
        self.candidates = [loads.servers[place].name for place in places]
        return places[0]


def pool_of(
    servers: Iterable[Server | str],
    *,
    random: Callable[[], float] = lambda: 0.0,
    balancer: Balancer | First | None = None,
    breaker: BreakerSettings | None = None,
    table: HostTable | None = None,
    **settings: Any,
) -> Pool:
    """Return a pool; one balancer serves all models."""
    chosen = balancer or First()
    if breaker is not None:
        settings["breaker"] = breaker
    return Pool(
        [Server(server) if isinstance(server, str) else server for server in servers],
        random=random,
        settings=PoolSettings(**{"max_detached_calls": 2, **settings}),
        new_balancer=lambda _: chosen,  # type: ignore[arg-type,return-value]
        table=table,
    )


def settled(lease: Lease, blame: Blame = Blame.NOBODY, now_s: float = NOW_S) -> None:
    """Let an attempt end so."""
    lease.settle(blame, now_s)
    lease.release()


def at(pool: Pool, where: VersionRoute, server: str, now_s: float = NOW_S) -> Lease:
    """Take a place on one certain server."""
    others = {name for name in where.servers if name != server}
    return pool.pick(where, now_s=now_s, tried=others)
