"""The core: everything one configuration decides, built as a whole and replaced as a whole.

A request uses the core it began with to its end, so a core may go on after another one has taken
over. What has to outlast a core - sockets, counters, operators' decisions - is in `shell`, which
reaches the core in force through `cores.Cores`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from config.compare import digest
from config.key_files import WrittenKey
from config.models import Config
from config.secrets import secrets_in
from config.servers import Server as ServerConfig
from gateway.admission import Admission
from gateway.control import ControlParts
from gateway.edge.api import Api
from gateway.edge.forward import ForwardedHeaders
from gateway.edge.receive import BodyLimits, Inbound
from gateway.edge.restricted import Restriction, Restrictions
from gateway.identity.issuer import IssuerKeys
from gateway.lifecycle import Readiness
from gateway.limits.desk import LimitsDesk
from gateway.members import Members, ServerAdded
from gateway.observe.logs import Logger, LogStream, RequestLog
from gateway.ports import (
    AdmissionView,
    CoreView,
    LogEvent,
    ModelCommands,
    Observer,
    OpenSequenceCounts,
)
from gateway.upstream.describe import ModelBook
from gateway.upstream.prober import Assignment
from gateway.upstream.roster import Roster
from gateway.upstream.transport import GrpcTransport, Upstream
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.control import control_parts, control_routes, restrictions_of
from gateway.wiring.fleet import (
    Executions,
    FleetMaker,
    FleetParts,
    Ledger,
    Told,
    Watch,
    assignment_of,
    probing_fleet,
)
from gateway.wiring.gates import Gates, gates_of
from gateway.wiring.identity import authentication_of, issuer_of, keys_in_files
from gateway.wiring.limits import tier_of
from gateway.wiring.logs import logger_for, request_log
from gateway.wiring.requests import aliases_of, metadata_routes, pipeline_of, streams_of
from gateway.wiring.restart import in_force
from gateway.wiring.servers import Connecting, Link, scraper_of
from gateway.wiring.sharing import Shared
from routing.fleet import FleetTable

CONFIGURED = "configuration"
"""The source of the servers that are written in the configuration."""
Queued = Callable[[], Mapping[str, Mapping[str, int]]]
"""Returns how many requests wait for room, by model and class."""
Said = Mapping[str, Sequence[ServerConfig]]
"""The servers of some sources."""


class Models(ModelCommands, Protocol):
    """What loads and unloads models; see `gateway.control.ModelDesk`."""

    def server_back(self, server: str) -> None:
        """Load again what the server had."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a core needs of the shell, and which outlasts it.

    `warn` logs an event in the way the configuration in force wants it.
    `only_probes` says that no requests are sent: one connection a server is enough. A `worker` is
    named in log lines, and shares what the host can spare with the others of `workers`.
    `shown_sequences` and `shown_queues` are shown to operators instead of this process's own.
    `executed` is told what servers count, unless it is None.
    """

    environ: Environ
    log: LogStream
    readiness: Readiness
    observer: Observer
    shared: Shared
    members: Members[ServerConfig]
    models: Models
    warn: LogEvent
    make_fleet: FleetMaker = probing_fleet
    only_probes: bool = False
    worker: int | None = None
    workers: int = 1
    shown_sequences: OpenSequenceCounts | None = None
    executed: Executions | None = None
    shown_queues: Queued | None = None

    def connecting(self, config: Config) -> Connecting:
        """Return how a configuration connects this process to servers."""
        return Connecting(config, self.environ, self.only_probes)


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The parts made from one configuration.

    `written` is the configuration as it was read, `config` what of it is in force, the rest waiting
    for a restart. `said` are the servers it was built for, as far as it knows better than the
    members. `links` are what the connections in `upstreams` depend on. `kept` has the
    assignments of the servers whose connections and probers are those of the core before.
    `ops_key` is None when operators are not asked for one, `issuer` when no tokens are accepted.
    `keys_in_files` are the hashes of keys that are not in the configuration itself, by tenant.
    """

    written: Config
    config: Config
    digest: str
    said: Said
    api: Api
    table: FleetTable
    book: ModelBook
    watcher: Watch
    roster: Roster[ServerConfig, Any]
    links: Mapping[str, Link]
    upstreams: Mapping[str, Upstream]
    kept: Mapping[str, Assignment]
    view: CoreView
    control: ControlParts
    models: Models
    logger: Logger
    request_log: RequestLog
    ops_key: str | None
    issuer: IssuerKeys | None
    keys_in_files: Mapping[str, frozenset[WrittenKey]]

    def take_over(self, before: "Core") -> None:
        """Go on from `before`: what is known of the kept servers, and is under way there.

        Waits for nothing, so that no request comes between.
        """
        kept = {name: found for name, found in self.kept.items() if before.roster.has(name)}
        for name in self.kept.keys() - kept.keys():
            self.roster.drop(name)
        self.view.pool.take_over(before.view.pool, kept)
        self.watcher.take_over(before.watcher, kept, now_s=CLOCK())
        for name, row in self.watcher.snapshot.servers.items():
            if row.up and name not in kept:
                self.models.server_back(name)

    def is_idle(self) -> bool:
        """Whether nothing that began with this core is under way any more."""
        return self.api.in_flight == 0 and self.view.pool.leases == 0


def build_core(
    written: Config,
    around: Surroundings,
    *,
    found: Said | None = None,
    before: Core | None = None,
) -> Core:
    """Build a core from a valid configuration. Starts nothing.

    `found` are the servers of sources that the members do not know yet. Connections of `before`
    that are the same are used again; to go on from it, `take_over` must be called. Raises OSError
    or ValueError for secrets and certificates that are not there any more.
    """
    config = in_force(written, before.config) if before else written
    said = said_by(config, around.members, found or {})
    servers = around.members.preview(said)
    connecting = around.connecting(config)
    links = links_of(connecting, servers)
    ops_key = _ops_key(written, around.environ, before)
    restricted = restrictions_of(config, around.environ)
    logger = _logger(config, around, links, keys=_keys(ops_key, restricted))
    told = Told(logger, around.models.server_back, around.executed)
    same = same_links(before, links)
    fleet = around.make_fleet(connecting, told)
    ledger = fleet.ledger
    _take_in(servers, fleet, before, same)
    gates = gates_of(config, fleet, around.shared, around.workers)
    view = _view(config, around, fleet, gates, logger)
    issuer = issuer_of(config, before.issuer if before else None, told=around.warn)
    api = _api(
        config, around, view, ledger, gates, logger=logger, restricted=restricted, issuer=issuer
    )
    return Core(
        written=written,
        config=config,
        digest=digest(written),
        said=said,
        api=api,
        table=ledger.table,
        book=ledger.book,
        watcher=fleet.watcher,
        roster=fleet.roster,
        links=ledger.links,
        upstreams=ledger.upstreams,
        kept={name: assignment_of(config, ledger, told, name) for name in same},
        view=view,
        control=control_parts(config, fleet.watcher, ledger.upstreams),
        models=around.models,
        logger=logger,
        request_log=request_log(config, logger),
        ops_key=ops_key,
        issuer=issuer,
        keys_in_files=keys_in_files(config),
    )


def _view(
    config: Config,
    around: Surroundings,
    fleet: FleetParts,
    gates: Gates,
    logger: Logger,
) -> CoreView:
    limits = LimitsDesk(
        gates.rules,
        around.shared.limiter,
        fleet.watcher,
        tier_of=tier_of(config),
        log=logger.warning,
    )
    return CoreView(
        fleet=fleet.watcher,
        pool=fleet.ledger.pool,
        channels=fleet.channels,
        aliases=aliases_of(config),
        pages=scraper_of(config, fleet.roster.servers),
        sequences=around.shown_sequences or gates.sequences,
        store=around.shared.keeper,
        limits=limits,
        priorities=gates.ranking,
        admission=_admission_view(config, around, gates.admission),
    )


def _admission_view(
    config: Config, around: Surroundings, admission: Admission | None
) -> AdmissionView:
    if admission is None:
        return AdmissionView()
    return AdmissionView(config.admission.mode, around.shown_queues or admission.queued)


def _logger(
    config: Config, around: Surroundings, links: Mapping[str, Link], *, keys: Iterable[str]
) -> Logger:
    secrets = [*_secrets(config, around.environ, links), *around.shared.secrets, *keys]
    logger = logger_for(config, secrets, around.log)
    return logger if around.worker is None else logger.bind(worker=around.worker)


def _take_in(
    servers: Iterable[ServerAdded[ServerConfig]],
    fleet: FleetParts,
    before: Core | None,
    same: Collection[str],
) -> None:
    for added in servers:
        name = added.server.name
        if before is not None and name in same:
            fleet.ledger.links[name] = before.links[name]
            fleet.roster.prepare(added, before.upstreams[name])
        else:
            fleet.roster.apply(added)


def said_by(config: Config, members: Members[ServerConfig], found: Said) -> Said:
    """Return what a configuration says of the sources: its own servers, and who is gone."""
    names = {CONFIGURED, *(section.name for section in config.discovery)}
    gone = {source: () for source in members.sources() if source not in names}
    return {CONFIGURED: config.servers, **gone, **found}


def _api(
    config: Config,
    around: Surroundings,
    view: CoreView,
    ledger: Ledger,
    gates: Gates,
    *,
    logger: Logger,
    restricted: Sequence[Restriction],
    issuer: IssuerKeys | None,
) -> Api:
    fleet, aliases = view.fleet, view.aliases
    routes = metadata_routes(
        config,
        fleet,
        aliases,
        ledger.upstreams,
        descriptions=ledger.book,
        readiness=around.readiness,
    )
    transport = GrpcTransport(ledger.upstreams, detached_max_s=config.upstream.detached_max_s)
    pipeline = pipeline_of(config, view, transport, gates)
    controls = control_routes(config, fleet, ledger.upstreams, around.models, logger)
    return Api(
        pipeline=pipeline,
        streams=streams_of(config, pipeline, transport),
        handlers=routes.handlers(),
        controls=controls.handlers(),
        restrictions=Restrictions(restricted),
        observer=around.observer,
        body_limits=BodyLimits(config.api.max_body_bytes, config.api.body_timeout_s),
        inbound=Inbound(_inbound_bytes(config, around.workers)),
        forwarded=ForwardedHeaders(config.api.forward_headers),
        authentication=authentication_of(config, issuer, around.shared.switches),
        unknown_model=lambda model: fleet.snapshot.unknown(model),  # noqa: PLW0108 - each time another
        older_limit_headers=config.api.older_limit_headers,
        draining=around.readiness.draining,
        clock=CLOCK,
    )


def _inbound_bytes(config: Config, workers: int) -> int:
    # Each worker has its part, and room for one body whatever its part is.
    return max(config.api.max_inbound_bytes // workers, config.api.max_body_bytes)


def _ops_key(written: Config, environ: Environ, before: Core | None) -> str | None:
    if written.ops.key is None:
        return before.ops_key if before else None  # never taken away: see `restart`
    return written.ops.key.reveal(environ)


def _secrets(config: Config, environ: Environ, links: Mapping[str, Link]) -> list[str]:
    keys = [value for link in links.values() for _, value in link.metadata]
    keys += [secret.reveal(environ) for _, secret in secrets_in(config.discovery)]
    return keys


def _keys(ops_key: str | None, restricted: Iterable[Restriction]) -> list[str]:
    keys = [restriction.key for restriction in restricted]
    return [*keys, ops_key] if ops_key else keys


def links_of(
    connecting: Connecting, servers: Iterable[ServerAdded[ServerConfig]]
) -> dict[str, Link]:
    """Return what the connections to each server depend on. Raises OSError or ValueError."""
    return {added.server.name: connecting.link(added.server) for added in servers}


def same_links(before: Core | None, links: Mapping[str, Link]) -> frozenset[str]:
    """Return the servers whose connections can be used on."""
    if before is None:
        return frozenset()
    return frozenset(
        name
        for name, link in links.items()
        if before.links.get(name) == link and before.roster.has(name)
    )
