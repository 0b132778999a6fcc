"""What a configuration means for routing and for the watch over the fleet."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self, TypeVar, assert_never

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.lifecycle import Watcher
from gateway.observe.logs import Logger
from gateway.ports import Channels, Fleet, FleetProbe
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Announce, Assignment, ProbeSettings, ServerProber
from gateway.upstream.roster import Descriptions, Factory, Roster, Rows, Watching
from gateway.upstream.transport import Upstream
from gateway.upstream.watcher import FleetWatcher
from gateway.wiring.admission import fixed_limits
from gateway.wiring.clock import CLOCK
from gateway.wiring.priorities import priorities_of
from gateway.wiring.servers import Connecting, Link, same_connection, upstream_of
from routing.admission.limits import WaitsNews
from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.fleet import FleetTable, ModelRules, ModelVersion
from routing.health.breaker import BreakerSettings
from routing.health.ejection import EjectionSettings
from routing.pool import Pool, PoolSettings
from routing.shared import HostTable
from routing.shares import Executed
from routing.types import Server

P = TypeVar("P", bound=Pool)
T = TypeVar("T", bound=FleetTable)
W = TypeVar("W")
Executions = Callable[[str, Mapping[ModelVersion, Executed]], None]
"""Is told what a server has executed of each version so far."""


class Watch(Fleet, FleetProbe, Channels, Watcher, Protocol):
    """What knows the fleet: it probes, or is told by the process that does."""

    def start_diagnosis(self) -> None:
        """Start to examine the servers."""

    def take_over(self, before: Self, kept: Mapping[str, Assignment], *, now_s: float) -> None:
        """Go on from `before` for the `kept` servers."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the parts of the fleet are noted in."""

    pool: Pool
    table: FleetTable
    book: ModelBook
    links: dict[str, Link] = field(default_factory=dict)
    upstreams: dict[str, Upstream] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FleetParts:
    """The fleet of one configuration; it has no servers before `roster` takes them in."""

    ledger: Ledger
    watcher: Watch
    channels: Channels
    roster: Roster[ServerConfig, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what becomes of the servers. `server_back` as in `gateway.control.ModelDesk`.

    `executed` is told what each server counts, None where nobody wants it.
    """

    logger: Logger
    server_back: Callable[[str], None]
    executed: Executions | None = None


class FleetMaker(Protocol):
    """Builds the parts. Taking a server in raises OSError or ValueError."""

    def __call__(self, connecting: Connecting, told: Told) -> FleetParts:
        """Build them."""


def probing_fleet(connecting: Connecting, told: Told) -> FleetParts:
    """Build the parts of a process that does everything itself."""
    config = connecting.config
    ledger = Ledger(pool_of(config, Pool), table_of(config, FleetTable), ModelBook())
    watcher, roster = probing(connecting, told, ledger)
    return FleetParts(ledger, watcher, watcher, roster)


def probing(
    connecting: Connecting,
    told: Told,
    ledger: Ledger,
    *,
    kind: type[Roster[ServerConfig, Any]] = Roster,
) -> tuple[FleetWatcher, Roster[ServerConfig, ServerProber]]:
    """Build the watch over all servers, and what gives each of them a prober."""
    watcher = watcher_of(connecting.config, ledger, told.logger)
    roster = roster_of(
        connecting,
        ledger,
        log=told.logger.info,
        watcher=watcher,
        watched=partial(prober_of, connecting.config, ledger, told),
        kind=kind,
    )
    return watcher, roster


def watcher_of(config: Config, ledger: Ledger, logger: Logger) -> FleetWatcher:
    """Build the watch over all servers."""
    return FleetWatcher(
        ledger.table,
        ledger.book,
        priorities=priorities_of(config),
        log=logger.warning,
        clock=CLOCK,
    )


def pool_of(
    config: Config, kind: type[P], counted_in: HostTable | None = None, *, workers: int = 1
) -> P:
    """Build the pool of the servers, without any, for one of so many workers."""
    breaker = config.breaker
    return kind(
        (),
        random=random.random,
        settings=PoolSettings(
            max_detached_calls=config.upstream.max_detached_calls,
            slow_start_s=config.balancing.slow_start_s,
            zone=config.balancing.zone,
            breaker=BreakerSettings(
                consecutive_failures=breaker.consecutive_failures,
                min_success_rate=breaker.min_success_rate,
                min_requests=breaker.min_requests,
                open_min_s=breaker.open_min_s,
                open_max_s=breaker.open_max_s,
            ),
            ejection=EjectionSettings(breaker.max_ejected_share),
            limits=fixed_limits(config),
            workers=workers,
        ),
        new_balancer=lambda model: _balancer(config, model),
        table=counted_in,
    )


def assignment_of(config: Config, ledger: Ledger, told: Told, name: str) -> Assignment:
    """Say how a server is probed, and who is told."""
    logger = told.logger
    return Assignment(
        settings=_probe_settings(config),
        table=ledger.table,
        book=ledger.book,
        announce=Announce(
            up=lambda **fields: logger.info("server up", **fields),
            down=lambda **fields: logger.warning("server down", **fields),
        ),
        last_reply_s=partial(last_reply_s, ledger.pool, name),
        executed=partial(told.executed, name) if told.executed else None,
        on_return=partial(ledger.pool.reset_breakers, name, None, None),
        on_start=partial(told.server_back, name),
        on_waits=None if config.admission.mode == "off" else _on_waits(ledger.pool, name),
    )


def _on_waits(pool: Pool, server: str) -> Callable[[WaitsNews], None]:
    return lambda news: pool.observe_waits(server, news, CLOCK())


def prober_of(
    config: Config, ledger: Ledger, told: Told, server: ServerConfig, upstream: Upstream
) -> ServerProber:
    """Build what probes a server."""
    return ServerProber(
        upstream,
        expect=server.expect,
        assignment=assignment_of(config, ledger, told, server.name),
        clock=CLOCK,
        random=random.random,
    )


def roster_of(
    connecting: Connecting,
    ledger: Ledger,
    *,
    log: Callable[..., Any],
    watcher: Watching[W],
    watched: Callable[[ServerConfig, Upstream], W],
    rows: Rows | None = None,
    descriptions: Descriptions | None = None,
    kind: type[Roster[ServerConfig, Any]] = Roster,
) -> Roster[ServerConfig, W]:
    """Build what takes servers in and lets them go. Taking one in raises OSError or ValueError.

    `watched` makes what `watcher` watches a server by. `rows` and `descriptions` are those of the
    ledger unless given.
    """
    config = connecting.config

    def upstream(server: ServerConfig) -> Upstream:
        link = ledger.links[server.name] = connecting.link(server)
        return upstream_of(server.name, link)

    return kind(
        Factory(
            server=partial(server_of, config),
            upstream=upstream,
            target=connecting.target,
            watched=watched,
            same_connection=same_connection,
        ),
        table=rows or ledger.table,
        pool=ledger.pool,
        book=descriptions or ledger.book,
        watcher=watcher,
        upstreams=ledger.upstreams,
        leave_max_s=config.deadlines.max_s + config.upstream.detached_max_s,
        clock=CLOCK,
        log=log,
    )


def table_of(config: Config, kind: type[T]) -> T:
    """Build the table of what is observed of the servers, without any."""
    return kind(
        (),
        quorum=config.fleet.default_version_quorum,
        recently_ready_s=config.fleet.recently_ready_s,
        rules={
            name: ModelRules(policy.default_version, policy.pool, policy.compatible)
            for name, policy in config.models.items()
        },
    )


def last_reply_s(pool: Pool, server: str) -> float:
    """Return when a server last answered inference."""
    return pool.loads[server].last_reply_s


def server_of(config: Config, server: ServerConfig) -> Server:
    """Return what routing is told of a server."""
    return Server(
        name=server.name,
        capacity=server.capacity,
        zone=server.zone,
        pool=server.pool,
        serve=server.serve,
        model_capacity={
            model: policy.capacity[server.name]
            for model, policy in config.models.items()
            if server.name in policy.capacity
        },
    )


def _balancer(config: Config, model: str) -> Balancer:
    rules = config.models.get(model)
    policy = (rules.policy if rules else None) or config.balancing.policy
    match policy:
        case "least_request":
            return LeastRequest()
        case "peak_ewma":
            return PeakEwma()
        case "round_robin":
            return RoundRobin()
        case _:
            assert_never(policy)


def _probe_settings(config: Config) -> ProbeSettings:
    fleet = config.fleet
    return ProbeSettings(
        statistics_interval_s=fleet.statistics_interval_s,
        statistics_timeout_s=fleet.statistics_timeout_s,
        index_interval_s=fleet.index_interval_s,
        index_timeout_s=fleet.index_timeout_s,
        silent_probes=fleet.silent_probes,
    )
