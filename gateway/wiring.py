"""The composition root: the only reader of configuration objects, and the builder of every part.

Nothing is started here, and no socket is opened: bound sockets come in, a `Gateway` goes out.
gRPC channels belong to the running event loop, so `build` must be called inside it.
"""

import random
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import assert_never

from config.listeners import ListenerTls
from config.models import Config
from config.policies import Hedging
from config.servers import Server as ServerConfig
from config.servers import ServerTls
from gateway import __version__
from gateway.codec.infer_request import InferDecoder
from gateway.edge.api import Api
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.listener import HttpLimits, Listener
from gateway.edge.metadata import MetadataRoutes
from gateway.edge.receive import BodyLimits, Inbound
from gateway.explain import Explainer
from gateway.fanout import FleetStatistics
from gateway.hedging import HedgePolicy
from gateway.lifecycle import Gateway, Readiness, ShutdownTimes
from gateway.observe.batch import Batch
from gateway.observe.logs import Logger, LogStream, RequestLog, RequestLogSettings, make_logger
from gateway.observe.metrics import RequestMetrics, make_registry
from gateway.ops.listener import OpsListener
from gateway.pipeline import Deadlines, Pipeline, Retries
from gateway.steering import SteeringDesk
from gateway.stores.state_file import StateFile
from gateway.upstream.channels import ChannelOptions, ChannelPool
from gateway.upstream.control import StatisticsReader
from gateway.upstream.describe import ModelBook
from gateway.upstream.findings import Target
from gateway.upstream.prober import Announce, ProbeSettings, ServerProber
from gateway.upstream.scrape import MetricsScraper
from gateway.upstream.tls import TlsOptions
from gateway.upstream.transport import GrpcTransport, Upstream
from gateway.upstream.watcher import FleetWatcher
from routing.aliases import Alias, Aliases, Arm, StickTo
from routing.balancing import Balancer
from routing.balancing.least_request import LeastRequest
from routing.balancing.peak_ewma import PeakEwma
from routing.balancing.round_robin import RoundRobin
from routing.budget import RetryBudget
from routing.fleet import FleetTable, ModelRules
from routing.health.breaker import BreakerSettings
from routing.health.ejection import EjectionSettings
from routing.pool import Pool, PoolSettings
from routing.retry import RetryPolicy
from routing.types import Server

CLOCK = time.monotonic
Environ = Mapping[str, str]


def build(
    config: Config,
    environ: Environ,
    *,
    api_socket: socket.socket,
    ops_socket: socket.socket,
    logger: Logger,
) -> Gateway:
    """Build a gateway from a valid configuration whose secrets can all be revealed."""
    aliases = _aliases(config)
    servers = [_server(config, server) for server in config.servers]
    pool = _pool(config, servers)
    upstreams = {server.name: _upstream(config, server, environ) for server in config.servers}
    book = ModelBook()
    watcher = _watcher(config, pool, upstreams, book, logger, environ=environ)
    explainer = Explainer(watcher, aliases, pool, CLOCK)
    desk = _desk(config, watcher, pool, logger)
    readiness = Readiness()
    request_metrics = RequestMetrics()
    batch = Batch((request_metrics, _request_log(config, logger), explainer))
    api = Api(
        pipeline=_pipeline(config, watcher, aliases, pool, upstreams),
        handlers=_metadata_routes(
            config, watcher, aliases, upstreams, book=book, readiness=readiness
        ).handlers(),
        observer=batch,
        body_limits=BodyLimits(config.api.max_body_bytes, config.api.body_timeout_s),
        inbound=Inbound(config.api.max_inbound_bytes),
        forwarded=ForwardedHeaders(config.api.forward_headers),
        draining=readiness.draining,
        clock=CLOCK,
    )
    return Gateway(
        api=Listener(
            api, api_socket, limits=_http_limits(config), tls=listener_tls(config.api.tls)
        ),
        ops=OpsListener(
            ops_socket,
            registry=make_registry(request_metrics, watcher, pool),
            fleet=watcher,
            pool=pool,
            channels=watcher,
            pages=_scraper(config),
            desk=desk,
            explainer=explainer,
            not_ready_reason=readiness.not_ready_reason,
            key=config.ops.key.reveal(environ) if config.ops.key else None,
            tls=listener_tls(config.ops.tls),
        ),
        watcher=watcher,
        readiness=readiness,
        busy=lambda: api.in_flight + sum(load.detached for load in pool.loads.values()),
        times=ShutdownTimes(config.shutdown.drain_delay_s, config.shutdown.grace_s),
        clock=CLOCK,
        log=logger.info,
        flush=batch.flush,
    )


def logger_for(config: Config, environ: Environ, stream: LogStream) -> Logger:
    """Build the event log; the configured secrets never appear in it."""
    keys = [config.ops.key] if config.ops.key else []
    keys += [secret for server in config.servers for secret in server.metadata.values()]
    return make_logger(
        json=config.logging.format == "json",
        level=config.logging.level,
        stream=stream,
        secrets=tuple(key.reveal(environ) for key in keys),
    )


def _desk(config: Config, watcher: FleetWatcher, pool: Pool, logger: Logger) -> SteeringDesk:
    store = StateFile(config.steering.state_file)
    desk = SteeringDesk(pool, watcher, store, log=logger.warning, now=_now_text)
    desk.restore()
    return desk


def _request_log(config: Config, logger: Logger) -> RequestLog:
    settings = RequestLogSettings(config.logging.requests, config.logging.sample)
    return RequestLog(logger, settings, random.random)


def _scraper(config: Config) -> MetricsScraper:
    addresses = {server.name: server.metrics for server in config.servers if server.metrics}
    return MetricsScraper(
        lambda: addresses,
        timeout_s=config.ops.scrape_timeout_s,
        max_page_bytes=config.ops.max_metrics_page_bytes,
        clock=CLOCK,
    )


def _aliases(config: Config) -> Aliases:
    return Aliases(
        {
            name: Alias(
                name,
                tuple(Arm(arm.model, arm.version, arm.weight) for arm in alias.arms),
                StickTo(alias.sticky),
                alias.header or "",
                alias.salt,
            )
            for name, alias in config.aliases.items()
        },
        random.random,
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


def _pool(config: Config, servers: Sequence[Server]) -> Pool:
    breaker = config.breaker
    return Pool(
        servers,
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


def _metadata_routes(
    config: Config,
    watcher: FleetWatcher,
    aliases: Aliases,
    upstreams: Mapping[str, Upstream],
    *,
    book: ModelBook,
    readiness: Readiness,
) -> MetadataRoutes:
    statistics = FleetStatistics(
        watcher,
        StatisticsReader(upstreams),
        timeout_s=config.fleet.statistics_timeout_s,
        clock=CLOCK,
    )
    return MetadataRoutes(
        fleet=watcher,
        aliases=aliases,
        descriptions=book,
        statistics=statistics,
        server_id=config.api.server_id,
        version=__version__,
        not_ready_reason=readiness.not_ready_reason,
        clock=CLOCK,
    )


def _pipeline(
    config: Config,
    watcher: FleetWatcher,
    aliases: Aliases,
    pool: Pool,
    upstreams: Mapping[str, Upstream],
) -> Pipeline:
    return Pipeline(
        fleet=watcher,
        aliases=aliases,
        pool=pool,
        transport=GrpcTransport(upstreams, detached_max_s=config.upstream.detached_max_s),
        decoder=InferDecoder(
            strict_integers=config.request.strict_integers,
            max_tensor_bytes=config.api.max_unpacked_bytes,
        ),
        deadlines=Deadlines(
            default_s=config.deadlines.default_s,
            max_s=config.deadlines.max_s,
            by_model={
                name: policy.deadline_s
                for name, policy in config.models.items()
                if policy.deadline_s is not None
            },
        ),
        retries=_retries(config),
        max_unpacked_bytes=config.api.max_unpacked_bytes,
        clock=CLOCK,
    )


def _retries(config: Config) -> Retries:
    settings = config.retries
    return Retries(
        RetryPolicy(settings.max_attempts),
        new_budget=lambda: RetryBudget(ratio=settings.budget, min_per_s=settings.min_per_s),
        not_idempotent=[name for name, m in config.models.items() if m.idempotent is False],
        hedges={
            name: _hedge(policy.hedging)
            for name, policy in config.models.items()
            if policy.hedging is not None and policy.idempotent is not False
        },
    )


def _hedge(hedging: Hedging) -> HedgePolicy:
    return HedgePolicy(hedging.after_s, RetryBudget(ratio=hedging.max_share, min_per_s=0))


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


def _watcher(
    config: Config,
    pool: Pool,
    upstreams: Mapping[str, Upstream],
    book: ModelBook,
    logger: Logger,
    *,
    environ: Environ,
) -> FleetWatcher:
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


def _upstream(config: Config, server: ServerConfig, environ: Environ) -> Upstream:
    settings = config.upstream
    options = ChannelOptions(
        channels=server.channels or settings.channels,
        connect_timeout_s=settings.connect_timeout_s,
        reconnect_backoff_min_s=settings.reconnect_backoff_min_s,
        reconnect_backoff_max_s=settings.reconnect_backoff_max_s,
        keepalive_interval_s=settings.keepalive_interval_s,
        max_reply_bytes=settings.max_reply_bytes,
        tls=upstream_tls(server.tls),
    )
    return Upstream(
        name=server.name,
        pool=ChannelPool(server.grpc, options, identity_matters=server.expect is not None),
        metadata=tuple((name, key.reveal(environ)) for name, key in server.metadata.items()),
        cancel=server.cancel_upstream,
    )


def target_of(server: ServerConfig, environ: Environ) -> Target:
    """Return what to examine of a server; its secrets must be there."""
    return Target(
        grpc=server.grpc,
        http=server.http,
        metrics=server.metrics,
        tls=upstream_tls(server.tls),
        metadata=tuple((name, key.reveal(environ)) for name, key in server.metadata.items()),
        expect=server.expect,
    )


def upstream_tls(tls: ServerTls | None) -> TlsOptions | None:
    """Read the files of a server's TLS section."""
    if tls is None:
        return None
    return TlsOptions(
        root_pem=_read(tls.ca_file),
        cert_pem=_read(tls.cert_file),
        key_pem=_read(tls.key_file),
        server_name=tls.server_name,
    )


def _now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None


def listener_tls(tls: ListenerTls | None) -> ssl.SSLContext | None:
    """Build a listener's TLS context. Raises OSError (ssl.SSLError) for files of no use."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _http_limits(config: Config) -> HttpLimits:
    return HttpLimits(
        max_header_bytes=config.api.max_header_bytes,
        header_timeout_s=config.api.header_timeout_s,
        keepalive_timeout_s=config.api.keepalive_timeout_s,
    )
