"""The supervisor's shell: a gateway whose API is served by worker processes.

Its core is built like that of a single process and differs in what becomes of the parts: what is
observed is told to the workers, what is shown is theirs. Nothing calls its API.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from config.models import Config
from config.servers import Server as ServerConfig
from gateway.control import ModelDesk
from gateway.lifecycle import Discovery, Readiness
from gateway.members import Members
from gateway.observe.admission import AdmissionMetrics
from gateway.observe.batch import Batch
from gateway.observe.logs import LogStream
from gateway.observe.metrics import (
    ConfigMetrics,
    DiscoveryMetrics,
    FleetMetrics,
    StoreMetrics,
    SwitchMetrics,
    WorkerMetrics,
    registry_of,
)
from gateway.observe.pages import Pages, page
from gateway.operations import Order
from gateway.operations import Report as ModelReport
from gateway.ops.listener import OpsListener
from gateway.ports import Membership
from gateway.switchboard import Switchboard
from gateway.tasks import spawn, stop
from gateway.usage.accountant import Accountant
from gateway.usage.counting import Used
from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.control import model_desk
from gateway.wiring.core import Core, Surroundings, build_core
from gateway.wiring.cores import Cores
from gateway.wiring.fleet import (
    FleetParts,
    Ledger,
    Told,
    pool_of,
    probing,
    table_of,
)
from gateway.wiring.listeners import listener_tls
from gateway.wiring.reloader import Reloader
from gateway.wiring.servers import Connecting, same_connection
from gateway.wiring.sharing import Shared, shared_of, switchboard_of
from gateway.wiring.shell import Shell, desk_of, discovery_of, renew_certificates, shutdown_times
from gateway.wiring.source import ConfigSource
from gateway.wiring.usage import accountant_of, accounted, usage_metrics
from gateway.workers.agent import Agent, AgentFleet
from gateway.workers.counters import Columns, Slots, make_memory, size_for, table_in
from gateway.workers.fleet_feed import ToldBook, ToldRoster, ToldTable
from gateway.workers.host import HostChannels, HostPool, HostQueues, HostSequences, WorkerHost
from gateway.workers.life import END_MARGIN_S, HostGateway
from gateway.workers.linked_models import SERVICE as MODELS
from gateway.workers.linked_quotas import SERVICE as QUOTAS
from gateway.workers.linked_quotas import quota_service
from gateway.workers.linked_store import SERVICE, store_service
from gateway.workers.messages import BreakerNews, Refused, Report, Start, SwitchedOff
from gateway.workers.process import start
from gateway.workers.supervisor import Hooks, Supervisor, WorkerTimes
from gateway.workers.worker import Worker

_START_S = 60.0
_ANSWER_S = 1.0
_NUMBERING_S = 0.1


class HostCores(Cores):
    """The supervisor's cores; each one that comes into force is told to the workers."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent

    def begin(self, first: Core) -> None:
        """Put the first core in force."""
        self.current = first
        self._agent.use(_agent_fleet(first))

    def replace(self, new: Core) -> None:
        """Put a core in force, here and in the workers."""
        super().replace(new)
        self._agent.exchange(_agent_fleet(new))


@dataclass(slots=True)
class _Watch:
    """The host is ready when the fleet is known and every slot has had a ready worker."""

    cores: Cores
    agent: Agent
    supervisor: Supervisor

    numbering: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        self.cores.start()
        self.numbering = spawn(self._number_rows(), name="rows of the workers' table")

    async def first_pass(self) -> None:
        await self.cores.first_pass()
        self.agent.first_pass_over()
        await self.supervisor.complete()

    async def stop(self) -> None:
        if self.numbering is not None:
            await stop(self.numbering)
        await self.cores.stop()

    async def _number_rows(self) -> None:
        while True:
            self.agent.number_rows()
            await asyncio.sleep(_NUMBERING_S)


def build_host(
    config: Config,
    environ: Environ,
    *,
    api_sockets: Sequence[socket.socket],
    ops_socket: socket.socket,
    log: LogStream,
    source: ConfigSource | None = None,
) -> Shell:
    """Build a gateway with one worker for each of the sockets; see `shell.build`."""
    inside = _inside(config, environ, api_sockets, lambda: host)
    cores, around = inside.cores, _around(inside, environ, log)
    cores.begin(build_core(config, around))
    around.members.note(cores.current.said)
    discovery = discovery_of(config, cores, around)
    ops_tls = listener_tls(config.ops.tls)
    reloader = Reloader(
        cores,
        around,
        source,
        discovery=discovery,
        apply=lambda new: renew_certificates(new, None, ops_tls),
    )
    host = _worker_host(inside, discovery, reloader)
    ops = OpsListener(
        ops_socket,
        host=host,
        view=cores.view,
        membership=discovery,
        desk=desk_of(config, cores, inside.switchboard),
        models=inside.models,
        usage=inside.accountant,
        config=reloader,
        not_ready_reason=inside.not_ready_reason,
        key=cores.ops_key,
        tls=ops_tls,
    )
    return Shell(_gateway(inside, ops, discovery, reloader), cores, reloader, host)


@dataclass(frozen=True, slots=True)
class _Inside:
    """The parts that outlast a configuration."""

    agent: Agent
    cores: HostCores
    readiness: Readiness
    shared: Shared
    models: ModelDesk
    accountant: Accountant | None
    supervisor: Supervisor
    switchboard: Switchboard

    def not_ready_reason(self) -> str | None:
        return self.readiness.not_ready_reason() or self.supervisor.not_serving()


def _inside(
    config: Config,
    environ: Environ,
    sockets: Sequence[socket.socket],
    host: Callable[[], WorkerHost],
) -> _Inside:
    size = size_for(len(sockets))
    memory = make_memory(size)
    columns = Columns(table_in(memory, size, column=0), size.workers)
    agent = Agent(columns, Slots(size, clock=CLOCK))
    cores = HostCores(agent)
    shared = shared_of(config, environ, told_up=cores.info, told_down=cores.warning)
    models = model_desk(config, cores.control, log=cores.warning)
    accountant = accountant_of(config, None, shared, has_server=cores.has_server, log=cores.warning)
    supervisor = Supervisor(
        sockets,
        start_child=partial(start, memory=memory),
        hooks=_hooks(
            agent, cores, shared, models, lambda: (supervisor, host()), accountant=accountant
        ),
        times=lambda: _worker_times(cores.current.config),
        log=cores,
        clock=CLOCK,
    )
    agent.tell, agent.switches = supervisor.tell, shared.switches
    switchboard = switchboard_of(
        shared, told=lambda until_s: supervisor.tell(SwitchedOff(until_s)), log=cores.warning
    )
    return _Inside(agent, cores, Readiness(), shared, models, accountant, supervisor, switchboard)


def _around(inside: _Inside, environ: Environ, log: LogStream) -> Surroundings:
    return Surroundings(
        environ,
        log,
        inside.readiness,
        observer=Batch(()),
        shared=inside.shared,
        members=Members(inside.cores.apply, same_connection=same_connection),
        models=inside.models,
        warn=inside.cores.warning,
        shown_sequences=HostSequences(lambda: inside.supervisor.workers),
        shown_queues=HostQueues(lambda: inside.supervisor.workers).queued,
        make_fleet=_HostFleet(inside.supervisor),
        only_probes=True,
        executed=inside.accountant.executed if inside.accountant else None,
    )


def _worker_host(inside: _Inside, membership: Membership, reloader: Reloader) -> WorkerHost:
    view = inside.cores.view
    registry = registry_of(
        FleetMetrics(view),
        AdmissionMetrics(view),
        StoreMetrics(view),
        WorkerMetrics(inside.supervisor),
        SwitchMetrics(inside.shared.switches),
        ConfigMetrics(reloader.state),
        DiscoveryMetrics(membership),
        *usage_metrics(inside.accountant),
    )
    return WorkerHost(
        inside.supervisor,
        Pages(),
        own=lambda: page(registry),
        show=inside.agent.show,
        clock=CLOCK,
    )


def _gateway(
    inside: _Inside, ops: OpsListener, discovery: Discovery, reloader: Reloader
) -> HostGateway:
    cores, supervisor = inside.cores, inside.supervisor
    return HostGateway(
        api=supervisor,
        ops=ops,
        watcher=_Watch(cores, inside.agent, supervisor),
        store=accounted(inside.shared.keeper, inside.accountant, _nothing),
        switchboard=inside.switchboard,
        discovery=discovery,
        reloader=reloader,
        readiness=inside.readiness,
        busy=lambda: 0,
        times=lambda: shutdown_times(cores.current.config),
        clock=CLOCK,
        log=cores.info,
        flush=_nothing,
        supervisor=supervisor,
    )


@dataclass(frozen=True, slots=True)
class _HostFleet:
    """See `gateway.wiring.fleet.FleetMaker`."""

    supervisor: Supervisor

    def __call__(self, connecting: Connecting, told: Told) -> FleetParts:
        config = connecting.config
        ledger = Ledger(pool_of(config, HostPool), table_of(config, ToldTable), ToldBook())
        watcher, roster = probing(connecting, told, ledger, kind=ToldRoster)
        channels = HostChannels(lambda: self.supervisor.workers, watcher.findings)
        return FleetParts(ledger, watcher, channels, roster)


def _hooks(
    agent: Agent,
    cores: Cores,
    shared: Shared,
    models: ModelDesk,
    built: Callable[[], tuple[Supervisor, WorkerHost]],
    *,
    accountant: Accountant | None,
) -> Hooks:
    async def command(order: Order, by: str) -> ModelReport:
        return await models.carry_out(order, by=by)

    def first(worker: Worker) -> Start:
        spawn(_catch_up(built()[0], worker), name=f"news for worker {worker.number}")
        return agent.first(worker)

    def on_end(worker: Worker) -> None:
        agent.end(worker)
        built()[1].end(worker)

    def on_message(worker: Worker, message: object) -> None:
        supervisor, host = built()
        match message:
            case Report():
                host.report(worker, message)
            case BreakerNews():
                supervisor.tell(message, but=worker)
            case Used() if accountant is not None:
                accountant.take(message)
            case Refused():
                cores.warning(
                    "worker refused the configuration", slot=worker.slot, reason=message.reason
                )
            case _:
                agent.take(message)

    return Hooks(
        first=first,
        on_message=on_message,
        on_end=on_end,
        services={
            SERVICE: store_service(shared.store),
            QUOTAS: quota_service(shared.quotas),
            MODELS: command,
        },
    )


async def _catch_up(supervisor: Supervisor, worker: Worker) -> None:
    """Tell a new worker where the others' breakers stand."""
    said = await supervisor.ask("standing_news", timeout_s=_ANSWER_S)
    for rows in said.values():
        if isinstance(rows, list) and rows:
            worker.tell(BreakerNews(rows))


def _agent_fleet(core: Core) -> AgentFleet:
    return AgentFleet(
        config=core.config,
        roster=cast(ToldRoster[ServerConfig, Any], core.roster),
        table=cast(ToldTable, core.table),
        book=cast(ToldBook, core.book),
        pool=cast(HostPool, core.view.pool),
        watcher=core.watcher,
    )


def _worker_times(config: Config) -> WorkerTimes:
    return WorkerTimes(start_s=_START_S, end_s=config.shutdown.grace_s + END_MARGIN_S)


def _nothing() -> None:
    pass
