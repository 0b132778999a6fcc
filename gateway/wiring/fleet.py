"""What a configuration means for routing and for the watch over the fleet."""

import random
from collections.abc import Collection, Mapping
from functools import partial
from typing import assert_never

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.observe.logs import Logger
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Announce, Assignment, ProbeSettings, ServerProber
from gateway.upstream.transport import Upstream
from gateway.wiring.clock import CLOCK
from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.fleet import FleetTable, ModelRules
from routing.health.breaker import BreakerSettings
from routing.health.ejection import EjectionSettings
from routing.pool import Pool, PoolSettings
from routing.types import Server


def pool_of(config: Config) -> Pool:
    """Build the pool of all servers."""
    breaker = config.breaker
    return Pool(
        [_server(config, server) for server in config.servers],
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


def assignments_of(
    config: Config, table: FleetTable, pool: Pool, book: ModelBook, logger: Logger
) -> dict[str, Assignment]:
    """Say for each server how it is probed, and who is told."""
    settings = _probe_settings(config)
    announce = Announce(
        up=lambda **fields: logger.info("server up", **fields),
        down=lambda **fields: logger.warning("server down", **fields),
    )
    return {
        name: Assignment(
            settings=settings,
            table=table,
            book=book,
            announce=announce,
            last_reply_s=partial(_last_reply_s, pool, name),
            on_return=partial(pool.reset_breakers, name, None, None),
        )
        for name in pool.loads
    }


def probers_of(
    config: Config,
    upstreams: Mapping[str, Upstream],
    assignments: Mapping[str, Assignment],
    *,
    without: Collection[str],
) -> dict[str, ServerProber]:
    """Build a prober for each server that has none yet."""
    return {
        server.name: ServerProber(
            upstreams[server.name],
            expect=server.expect,
            assignment=assignments[server.name],
            clock=CLOCK,
            random=random.random,
        )
        for server in config.servers
        if server.name not in without
    }


def table_of(config: Config) -> FleetTable:
    """Build the table of what is observed of the servers."""
    return FleetTable(
        [_server(config, server) for server in config.servers],
        quorum=config.fleet.default_version_quorum,
        recently_ready_s=config.fleet.recently_ready_s,
        rules={
            name: ModelRules(policy.default_version, policy.pool, policy.compatible)
            for name, policy in config.models.items()
        },
    )


def _last_reply_s(pool: Pool, server: str) -> float:
    return pool.loads[server].last_reply_s


def _server(config: Config, server: ServerConfig) -> Server:
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
