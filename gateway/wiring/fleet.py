"""What a configuration means for routing and for the watch over the fleet."""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import assert_never

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.observe.logs import Logger
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Announce, ProbeSettings, ServerProber
from gateway.upstream.transport import Upstream
from gateway.upstream.watcher import FleetWatcher
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.servers import target_of
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


def watcher_of(
    config: Config,
    pool: Pool,
    upstreams: Mapping[str, Upstream],
    book: ModelBook,
    logger: Logger,
    *,
    environ: Environ,
) -> FleetWatcher:
    """Build the watch over all servers."""
    table = _table(config, [load.server for load in pool.loads.values()])
    settings = _probe_settings(config)
    announce = Announce(
        up=lambda **fields: logger.info("server up", **fields),
        down=lambda **fields: logger.warning("server down", **fields),
    )
    probers = {
        server.name: ServerProber(
            upstreams[server.name],
            expect=server.expect,
            load=pool.loads[server.name],
            table=table,
            book=book,
            settings=settings,
            announce=announce,
            on_return=partial(pool.reset_breakers, server.name, None, None),
            clock=CLOCK,
            random=random.random,
        )
        for server in config.servers
    }
    return FleetWatcher(
        table,
        upstreams,
        probers,
        targets={server.name: target_of(server, environ) for server in config.servers},
        log=logger.warning,
        clock=CLOCK,
    )


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


def _table(config: Config, servers: Sequence[Server]) -> FleetTable:
    return FleetTable(
        servers,
        quorum=config.fleet.default_version_quorum,
        recently_ready_s=config.fleet.recently_ready_s,
        rules={
            name: ModelRules(policy.default_version, policy.pool, policy.compatible)
            for name, policy in config.models.items()
        },
    )


def _probe_settings(config: Config) -> ProbeSettings:
    fleet = config.fleet
    return ProbeSettings(
        statistics_interval_s=fleet.statistics_interval_s,
        statistics_timeout_s=fleet.statistics_timeout_s,
        index_interval_s=fleet.index_interval_s,
        index_timeout_s=fleet.index_timeout_s,
        silent_probes=fleet.silent_probes,
    )
