"""The core: everything one configuration decides, built as a whole and replaced as a whole.

A request uses the core it began with to its end, so a core may go on after another one has taken
over. What has to outlast a core - sockets, counters, operators' decisions - is in `shell`, which
reaches the core in force through `cores.Cores`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from config.compare import digest
from config.models import Config
from gateway.edge.api import Api
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.receive import BodyLimits, Inbound
from gateway.lifecycle import Readiness
from gateway.observe.logs import Logger, LogStream, RequestLog
from gateway.ports import CoreView, Observer
from gateway.sequences import Sequences
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Assignment
from gateway.upstream.transport import Upstream
from gateway.upstream.watcher import FleetWatcher
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.fleet import assignments_of, pool_of, probers_of, table_of
from gateway.wiring.logs import logger_for, request_log
from gateway.wiring.requests import aliases_of, metadata_routes, pipeline_of
from gateway.wiring.restart import in_force
from gateway.wiring.servers import Link, link_of, scraper_of, target_of, upstream_of
from gateway.wiring.sharing import Shared, sequences_of
from routing.fleet import FleetTable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a core needs of the shell, and which outlasts it."""

    environ: Environ
    log: LogStream
    readiness: Readiness
    observer: Observer
    shared: Shared


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The parts made from one configuration.

    `written` is the configuration as it was read, `config` what of it is in force, the rest waiting
    for a restart. `links` are what the connections in `upstreams` depend on. `kept` has the
    assignments of the servers whose connections and probers are those of the core before.
    `ops_key` is None when operators are not asked for one.
    """

    written: Config
    config: Config
    digest: str
    api: Api
    table: FleetTable
    watcher: FleetWatcher
    links: Mapping[str, Link]
    upstreams: Mapping[str, Upstream]
    kept: Mapping[str, Assignment]
    view: CoreView
    logger: Logger
    request_log: RequestLog
    ops_key: str | None

    def take_over(self, before: "Core") -> None:
        """Go on from `before`: what is known of the kept servers, and is under way there.

        Waits for nothing, so that no request comes between.
        """
        self.view.pool.take_over(before.view.pool, self.kept)
        self.watcher.take_over(before.watcher, self.kept, now_s=CLOCK())

    def is_idle(self) -> bool:
        """Whether nothing that began with this core is under way any more."""
        return self.api.in_flight == 0 and self.view.pool.leases == 0


def build_core(written: Config, around: Surroundings, *, before: Core | None = None) -> Core:
    """Build a core from a valid configuration. Starts nothing.

    Connections of `before` that are the same are used again; to go on from it, `take_over` must be
    called. Raises OSError or ValueError for secrets and certificates that are not there any more.
    """
    config = in_force(written, before.config) if before else written
    links = links_of(config, around.environ)
    ops_key = _ops_key(written, around.environ, before)
    secrets = [*_secrets(ops_key, links), *around.shared.secrets]
    logger = logger_for(config, secrets, around.log)
    targets = {server.name: target_of(server, around.environ) for server in config.servers}
    same = same_links(before, links)
    upstreams = _upstreams(links, before.upstreams if before else {}, same)
    pool, table, book = pool_of(config), table_of(config), ModelBook()
    assignments = assignments_of(config, table, pool, book, logger)
    watcher = FleetWatcher(
        table,
        upstreams,
        probers_of(config, upstreams, assignments, without=same),
        book=book,
        targets=targets,
        log=logger.warning,
        clock=CLOCK,
    )
    sequences = sequences_of(config, watcher, pool, book, around.shared)
    view = CoreView(
        fleet=watcher,
        pool=pool,
        channels=watcher,
        aliases=aliases_of(config),
        pages=scraper_of(config),
        sequences=sequences,
        store=around.shared.keeper,
    )
    return Core(
        written=written,
        config=config,
        digest=digest(written),
        api=_api(config, around, view, upstreams, book=book, sequences=sequences),
        table=table,
        watcher=watcher,
        links=links,
        upstreams=upstreams,
        kept={name: assignments[name] for name in same},
        view=view,
        logger=logger,
        request_log=request_log(config, logger),
        ops_key=ops_key,
    )


def _upstreams(
    links: Mapping[str, Link], before: Mapping[str, Upstream], same: Collection[str]
) -> dict[str, Upstream]:
    return {
        name: before[name] if name in same else upstream_of(name, link)
        for name, link in links.items()
    }


def _api(
    config: Config,
    around: Surroundings,
    view: CoreView,
    upstreams: Mapping[str, Upstream],
    *,
    book: ModelBook,
    sequences: Sequences,
) -> Api:
    fleet, aliases = view.fleet, view.aliases
    routes = metadata_routes(
        config, fleet, aliases, upstreams, descriptions=book, readiness=around.readiness
    )
    return Api(
        pipeline=pipeline_of(config, fleet, aliases, view.pool, upstreams, sequences=sequences),
        handlers=routes.handlers(),
        observer=around.observer,
        body_limits=BodyLimits(config.api.max_body_bytes, config.api.body_timeout_s),
        inbound=Inbound(config.api.max_inbound_bytes),
        forwarded=ForwardedHeaders(config.api.forward_headers),
        draining=around.readiness.draining,
        clock=CLOCK,
    )


def _ops_key(written: Config, environ: Environ, before: Core | None) -> str | None:
    if written.ops.key is None:
        return before.ops_key if before else None  # never taken away: see `restart`
    return written.ops.key.reveal(environ)


def _secrets(ops_key: str | None, links: Mapping[str, Link]) -> list[str]:
    keys = [value for link in links.values() for _, value in link.metadata]
    return [*keys, ops_key] if ops_key else keys


def links_of(config: Config, environ: Environ) -> dict[str, Link]:
    """Return what the connections to each server depend on. Raises OSError or ValueError."""
    return {server.name: link_of(config, server, environ) for server in config.servers}


def same_links(before: Core | None, links: Mapping[str, Link]) -> frozenset[str]:
    """Return the servers whose connections can be used on."""
    if before is None:
        return frozenset()
    return frozenset(name for name, link in links.items() if before.links.get(name) == link)
