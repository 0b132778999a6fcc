"""The core: everything one configuration decides, built as a whole and replaced as a whole.

A request uses the core it began with to its end, so a core may go on after another one has taken
over. What has to outlast a core - sockets, counters, operators' decisions - is in `shell`, which
reaches the core in force through `cores.Cores`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from config.models import Config
from gateway.edge.api import Api
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.receive import BodyLimits, Inbound
from gateway.lifecycle import Readiness
from gateway.observe.logs import Logger, LogStream, RequestLog
from gateway.ports import CoreView, Observer
from gateway.upstream.describe import ModelBook
from gateway.upstream.transport import Upstream
from gateway.upstream.watcher import FleetWatcher
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.fleet import pool_of, watcher_of
from gateway.wiring.logs import logger_for, request_log
from gateway.wiring.requests import aliases_of, metadata_routes, pipeline_of
from gateway.wiring.servers import scraper_of, upstream_of


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a core needs of the shell, and which outlasts it."""

    environ: Environ
    log: LogStream
    readiness: Readiness
    observer: Observer


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The parts made from one configuration. `ops_key` is None when operators are not asked."""

    config: Config
    api: Api
    watcher: FleetWatcher
    upstreams: Mapping[str, Upstream]
    view: CoreView
    logger: Logger
    request_log: RequestLog
    ops_key: str | None


def build_core(config: Config, around: Surroundings) -> Core:
    """Build a core from a valid configuration whose secrets can all be revealed. Starts nothing."""
    environ = around.environ
    logger = logger_for(config, environ, around.log)
    upstreams = {server.name: upstream_of(config, server, environ) for server in config.servers}
    pool = pool_of(config)
    aliases, book = aliases_of(config), ModelBook()
    watcher = watcher_of(config, pool, upstreams, book, logger, environ=environ)
    routes = metadata_routes(
        config, watcher, aliases, upstreams, descriptions=book, readiness=around.readiness
    )
    return Core(
        config=config,
        api=Api(
            pipeline=pipeline_of(config, watcher, aliases, pool, upstreams),
            handlers=routes.handlers(),
            observer=around.observer,
            body_limits=BodyLimits(config.api.max_body_bytes, config.api.body_timeout_s),
            inbound=Inbound(config.api.max_inbound_bytes),
            forwarded=ForwardedHeaders(config.api.forward_headers),
            draining=around.readiness.draining,
            clock=CLOCK,
        ),
        watcher=watcher,
        upstreams=upstreams,
        view=CoreView(
            fleet=watcher,
            pool=pool,
            channels=watcher,
            aliases=aliases,
            pages=scraper_of(config),
        ),
        logger=logger,
        request_log=request_log(config, logger),
        ops_key=config.ops.key.reveal(environ) if config.ops.key else None,
    )
