"""What a configuration means for routing and for the watch over the fleet."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.observe.logs import Logger
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Announce, Assignment, ProbeSettings, ServerProber
from gateway.upstream.roster import Factory, Roster
from gateway.upstream.transport import Upstream
from gateway.upstream.watcher import FleetWatcher
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.servers import Link, link_of, same_connection, target_of, upstream_of
from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.fleet import FleetTable, ModelRules
from routing.health.breaker import BreakerSettings
from routing.health.ejection import EjectionSettings
from routing.pool import Pool, PoolSettings
from routing.types import Server


def _pool(config: Config) -> Pool:
    breaker = config.breaker
    return Pool(
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
        ),
        new_balancer=lambda model: _balancer(config, model),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the parts of the fleet are noted in, empty at first."""

    pool: Pool
    table: FleetTable
    book: ModelBook = field(default_factory=ModelBook)
    links: dict[str, Link] = field(default_factory=dict)
    upstreams: dict[str, Upstream] = field(default_factory=dict)


def ledger_of(config: Config) -> Ledger:
    """Build what the fleet is noted in."""
    return Ledger(_pool(config), table_of(config))


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what becomes of the servers. `server_back` as in `gateway.control.ModelDesk`."""

    logger: Logger
    server_back: Callable[[str], None]


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
        last_reply_s=partial(_last_reply_s, ledger.pool, name),
        on_return=partial(ledger.pool.reset_breakers, name, None, None),
        on_start=partial(told.server_back, name),
    )


def roster_of(
    config: Config, ledger: Ledger, watcher: FleetWatcher, told: Told, environ: Environ
) -> Roster[ServerConfig]:
    """Build what takes servers in and lets them go. Taking one in raises OSError or ValueError."""

    def upstream(server: ServerConfig) -> Upstream:
        link = ledger.links[server.name] = link_of(config, server, environ)
        return upstream_of(server.name, link)

    def prober(server: ServerConfig, upstream: Upstream) -> ServerProber:
        return ServerProber(
            upstream,
            expect=server.expect,
            assignment=assignment_of(config, ledger, told, server.name),
            clock=CLOCK,
            random=random.random,
        )

    return Roster(
        Factory(
            server=partial(server_of, config),
            upstream=upstream,
            target=lambda server: target_of(server, environ),
            prober=prober,
            same_connection=same_connection,
        ),
        table=ledger.table,
        pool=ledger.pool,
        book=ledger.book,
        watcher=watcher,
        upstreams=ledger.upstreams,
        leave_max_s=config.deadlines.max_s + config.upstream.detached_max_s,
        clock=CLOCK,
        log=told.logger.info,
    )


def table_of(config: Config) -> FleetTable:
    """Build the table of what is observed of the servers, without any."""
    return FleetTable(
        (),
        quorum=config.fleet.default_version_quorum,
        recently_ready_s=config.fleet.recently_ready_s,
        rules={
            name: ModelRules(policy.default_version, policy.pool, policy.compatible)
            for name, policy in config.models.items()
        },
    )


def _last_reply_s(pool: Pool, server: str) -> float:
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
