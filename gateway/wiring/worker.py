"""A worker's shell: the API on shared sockets, fed with the fleet by the supervisor."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.edge.shared_listener import SharedListener
from gateway.explain import Explainer
from gateway.lifecycle import Readiness
from gateway.members import Members, ServerAdded
from gateway.observe.batch import Batch
from gateway.observe.logs import LogStream
from gateway.observe.metrics import LimitMetrics, RequestMetrics, StoreMetrics, registry_of
from gateway.observe.pages import page
from gateway.tasks import spawn
from gateway.upstream.describe import ModelBook
from gateway.upstream.keeper import ChannelKeeper, Kept
from gateway.upstream.transport import Upstream
from gateway.usage.counting import UsageCounts
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.core import Surroundings, build_core
from gateway.wiring.cores import Cores
from gateway.wiring.fleet import (
    FleetParts,
    Ledger,
    Told,
    last_reply_s,
    pool_of,
    roster_of,
)
from gateway.wiring.listeners import http_limits, listener_tls
from gateway.wiring.servers import Connecting, same_connection
from gateway.wiring.sharing import Shared, shared_of, shared_with
from gateway.wiring.shell import renew_certificates, shutdown_times
from gateway.wiring.usage import counts_of
from gateway.workers.counters import size_for, table_in
from gateway.workers.duty import Duty, SupervisorGone
from gateway.workers.fleet_mirror import FleetMirror, Replicated
from gateway.workers.life import WorkerLife
from gateway.workers.link import Link, Service
from gateway.workers.linked_models import LinkedModels
from gateway.workers.linked_quotas import LinkedQuotas
from gateway.workers.linked_store import LinkedStore
from gateway.workers.messages import NewConfig, Refused, Report, Start
from routing.fleet import FleetTable
from routing.health.news import News
from routing.pool import Pool
from routing.shared import HostTable

_GOODBYE_S = 5.0


async def run_worker(
    link_socket: socket.socket,
    memory: int,
    sockets: Sequence[socket.socket],
    environ: Environ,
    *,
    log: LogStream,
    built: Callable[[Cores], None],
) -> int:
    """Serve the API until the supervisor says otherwise.

    `built` is called before anything is served. Returns the number of calls that are left behind on
    servers. Raises SupervisorGone, and OSError or ValueError for what cannot be built.
    """
    inbox = _Inbox()
    services: dict[str, Service] = {}
    link = await Link.open(link_socket, on_message=inbox.take, services=services)
    running = spawn(link.run(), name="link to the supervisor")
    first = spawn(inbox.first(), name="first message")
    await asyncio.wait([running, first], return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        raise SupervisorGone
    try:
        start = cast(Start, first.result())
        cores, duty = _build(start, link, memory, sockets, environ, log=log, services=services)
    except (OSError, ValueError) as error:
        link.tell(Refused(str(error)))
        await link.finish()
        raise
    running.add_done_callback(lambda _: duty.link_closed())
    inbox.give_to(duty.take)
    built(cores)
    left = await duty.run()
    await asyncio.wait([running], timeout=_GOODBYE_S)  # the supervisor closes the link
    await link.finish()
    return left


def _build(
    start: Start,
    link: Link,
    memory: int,
    sockets: Sequence[socket.socket],
    environ: Environ,
    *,
    log: LogStream,
    services: dict[str, Service],
) -> tuple[Cores, Duty]:
    config: Config = start.config
    cores = Cores()
    requests, explainer = RequestMetrics(cores.has_server), Explainer(cores.view, CLOCK)
    counts = counts_of(config)
    fleets = _Fleets(link, table_in(memory, size_for(len(sockets)), column=start.column))
    around = fleets.around(
        start,
        Surroundings(
            environ,
            log,
            Readiness(),
            observer=Batch((requests, cores, explainer, *([counts] if counts else ()))),
            shared=_shared(config, environ, link, cores),
            members=_members(()),
            models=LinkedModels(link),
            warn=cores.warning,
            worker=start.slot,
            workers=len(sockets),
        ),
    )
    cores.current = build_core(config, around)
    cores.view().pool.steer(start.steering)
    around.shared.switches.until_s = start.switched_off
    cores.view().pool.assign(start.slots)
    for server, news in start.waits.items():
        cores.view().pool.observe_waits(server, news, CLOCK())
    if start.known:
        _mirror(cores).first_pass_over()
    api = _listener(cores, sockets, start.slot)
    duty = _duty(link, cores, around, fleets, api=api, requests=requests, counts=counts)
    services |= _services(duty, explainer, cores)
    return cores, duty


@dataclass(frozen=True, slots=True)
class _Listening:
    """What accepts connections, and its certificates."""

    listener: SharedListener
    tls: ssl.SSLContext | None


def _listener(cores: Cores, sockets: Sequence[socket.socket], slot: int) -> _Listening:
    config = cores.current.config
    tls = listener_tls(config.api.tls)
    limits = http_limits(config)
    listener = SharedListener(
        cores.api, sockets, slot, cut_off=cores.cut_off, limits=limits, tls=tls
    )
    return _Listening(listener, tls)


def _duty(
    link: Link,
    cores: Cores,
    around: Surroundings,
    fleets: "_Fleets",
    *,
    api: _Listening,
    requests: RequestMetrics,
    counts: UsageCounts | None,
) -> Duty:
    registry = registry_of(requests, StoreMetrics(cores.view), LimitMetrics(cores.view))
    batch = cast(Batch, around.observer)

    def flush() -> None:
        batch.flush()
        if counts is not None and (used := counts.take()) is not None:
            link.tell(used)

    def exchange(to: NewConfig) -> None:
        new = build_core(to.config, fleets.around(to, around), before=cores.current)
        batch.flush()  # by the rules these requests were answered under
        renew_certificates(new, api.tls, None)
        api.listener.limit(http_limits(new.config))
        new.watcher.start()
        cores.replace(new)

    return Duty(
        link,
        WorkerLife(
            listener=api.listener,
            readiness=around.readiness,
            busy=cores.busy,
            times=lambda: shutdown_times(cores.current.config),
            clock=CLOCK,
            log=cores.info,
        ),
        fleet=lambda: _mirror(cores),
        apply=cores.apply,
        exchange=exchange,
        close=cores.stop,
        store=around.shared,
        switches=around.shared.switches,
        view=cores.view,
        in_flight=partial(_in_flight, cores),
        page=lambda: page(registry),
        flush=flush,
        clock=CLOCK,
    )


def _in_flight(cores: Cores) -> int:
    return sum(core.api.in_flight for core in (cores.current, *cores.draining))


@dataclass(frozen=True, slots=True)
class _Fleets:
    """What the fleets of all configurations have in common."""

    link: Link
    counted_in: HostTable

    def around(self, known: Start | NewConfig, around: Surroundings) -> Surroundings:
        """Return the surroundings of a core that begins with what the supervisor knows."""
        fleet = _WorkerFleet(
            known.table, known.book, self.counted_in, around.workers, self.link.tell
        )
        return replace(around, members=_members(known.servers), make_fleet=fleet)


def _shared(config: Config, environ: Environ, link: Link, cores: Cores) -> Shared:
    if config.redis is not None:
        return shared_of(config, environ, told_up=cores.info, told_down=cores.warning)
    store = LinkedStore(link)
    return shared_with(store, store, LinkedQuotas(link))


def _services(duty: Duty, explainer: Explainer, cores: Cores) -> dict[str, Service]:
    async def report() -> Report:
        return duty.report()

    async def explain_request(request_id: str) -> Mapping[str, Any]:
        return explainer.request(request_id)

    async def explain_model(
        model: str, version: int | None, tenant: str | None
    ) -> Mapping[str, Any]:
        return explainer.model(model, version, tenant)

    async def standing_news() -> Sequence[News]:
        return cores.view().pool.standing_news()

    return {
        "report": report,
        "standing_news": standing_news,
        "explain_request": explain_request,
        "explain_model": explain_model,
    }


@dataclass(frozen=True, slots=True)
class _WorkerFleet:
    """See `gateway.wiring.fleet.FleetMaker`: what is known comes from the supervisor."""

    table: FleetTable
    book: ModelBook
    counted_in: HostTable
    workers: int
    tell: Callable[[object], None]

    def __call__(self, connecting: Connecting, told: Told) -> FleetParts:
        config = connecting.config
        ledger = Ledger(
            pool_of(config, Pool, self.counted_in, workers=self.workers), self.table, self.book
        )
        keeper = ChannelKeeper(
            {},
            snapshot=lambda: self.table.snapshot,
            timeout_s=config.fleet.statistics_timeout_s,
            clock=CLOCK,
        )
        mirror = FleetMirror(self.table, self.book, keeper, tell=self.tell, clock=CLOCK)
        replicated = Replicated()
        roster = roster_of(
            connecting,
            ledger,
            log=_nothing,  # the supervisor tells who comes and goes
            watcher=mirror,
            watched=partial(_kept, ledger.pool),
            rows=replicated,
            descriptions=replicated,
        )
        return FleetParts(ledger, mirror, mirror, roster)


def _kept(pool: Pool, server: ServerConfig, upstream: Upstream) -> Kept:
    return Kept(upstream, partial(last_reply_s, pool, server.name), server.expect)


def _members(servers: Iterable[ServerAdded[ServerConfig]]) -> Members[ServerConfig]:
    """Return the members as the supervisor has them."""
    members = Members[ServerConfig](_nothing, same_connection=same_connection)
    sources: dict[str, list[ServerConfig]] = {}
    for added in servers:
        sources.setdefault(added.source, []).append(added.server)
    members.note(sources)
    return members


def _nothing(*_: object, **__: object) -> None:
    pass


def _mirror(cores: Cores) -> FleetMirror:
    return cast(FleetMirror, cores.current.watcher)


class _Inbox:
    """Keeps messages until there is somebody to take them."""

    def __init__(self) -> None:
        self._waiting: list[object] = []
        self._arrived = asyncio.Event()
        self._taker: Callable[[object], None] | None = None

    def take(self, message: object) -> None:
        if self._taker is not None:
            self._taker(message)
        else:
            self._waiting.append(message)
            self._arrived.set()

    async def first(self) -> object:
        await self._arrived.wait()
        return self._waiting.pop(0)

    def give_to(self, taker: Callable[[object], None]) -> None:
        self._taker = taker
        for message in self._waiting:
            taker(message)
