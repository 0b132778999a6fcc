"""The shell: what lives as long as the process, around the core that a reload replaces.

Bound sockets come in. Counters, operators' decisions, past requests and readiness are here because
they must outlast a configuration; each reaches the core in force through `cores.Cores`.
"""

import random
import socket
import ssl
from dataclasses import dataclass

from config.discovery import Discovery as DiscoveryConfig
from config.models import Config
from config.servers import Server as ServerConfig
from gateway.discovery.feed import Surroundings as Believed
from gateway.discovery.runner import Discovery
from gateway.edge.listener import Listener
from gateway.explain import Explainer
from gateway.lifecycle import Gateway, Readiness, ShutdownTimes
from gateway.members import Members
from gateway.observe.batch import Batch
from gateway.observe.logs import Logger, LogStream
from gateway.observe.metrics import RequestMetrics, SwitchMetrics, make_registry
from gateway.ops.listener import OpsListener
from gateway.ops.one_process import OneProcess
from gateway.ports import Host
from gateway.steering import SteeringDesk
from gateway.stores.state_file import STEERING, StateFile
from gateway.switchboard import Switchboard
from gateway.usage.accountant import Accountant
from gateway.wiring.clock import CLOCK, WALL_CLOCK, Environ, now_text
from gateway.wiring.control import model_desk
from gateway.wiring.core import Core, Surroundings, build_core
from gateway.wiring.cores import Cores
from gateway.wiring.listeners import http_limits, listener_tls
from gateway.wiring.reloader import Reloader
from gateway.wiring.servers import same_connection, unusable
from gateway.wiring.sharing import Shared, shared_of, switchboard_of
from gateway.wiring.source import ConfigSource
from gateway.wiring.sources import feed_of
from gateway.wiring.usage import accountant_of, accounted, counts_of, usage_metrics


@dataclass(frozen=True, slots=True)
class Shell:
    """A gateway that can be run, the reference to its core, what exchanges that, its processes."""

    gateway: Gateway
    cores: Cores
    reloader: Reloader
    host: Host

    def logger(self) -> Logger:
        """Return the event log as the configuration in force wants it."""
        return self.cores.current.logger


def build(
    config: Config,
    environ: Environ,
    *,
    api_socket: socket.socket,
    ops_socket: socket.socket,
    log: LogStream,
    source: ConfigSource | None = None,
) -> Shell:
    """Build a gateway from a valid configuration whose secrets can all be revealed.

    `source` is where the configuration came from, None if it cannot be read again. Raises
    ValueError for operators' decisions that were kept and cannot be used.
    """
    cores = Cores()
    shared = shared_of(config, environ, told_up=cores.info, told_down=cores.warning)
    watching = _watching(config, cores, shared)
    batch, accountant = watching.batch, watching.accountant
    models = model_desk(config, cores.control, log=cores.warning)
    around = Surroundings(
        environ,
        log,
        Readiness(),
        observer=batch,
        shared=shared,
        members=Members[ServerConfig](cores.apply, same_connection=same_connection),
        models=models,
        warn=cores.warning,
        executed=accountant.executed if accountant else None,
    )
    cores.current = build_core(config, around)
    around.members.note(cores.current.said)
    discovery = discovery_of(config, cores, around)
    api_tls, ops_tls = listener_tls(config.api.tls), listener_tls(config.ops.tls)
    api = Listener(
        cores.api, api_socket, cut_off=cores.cut_off, limits=http_limits(config), tls=api_tls
    )

    def apply(new: Core) -> None:
        batch.flush()  # by the rules these requests were answered under
        renew_certificates(new, api_tls, ops_tls)
        api.limit(http_limits(new.config))

    reloader = Reloader(cores, around, source, discovery=discovery, apply=apply)
    switchboard = switchboard_of(shared, told=_nobody, log=cores.warning)
    registry = make_registry(
        watching.metrics, cores.view, reloader.state, discovery, *usage_metrics(accountant)
    )
    registry.register(SwitchMetrics(shared.switches))
    host = OneProcess(registry, watching.explainer)
    ops = OpsListener(
        ops_socket,
        host=host,
        view=cores.view,
        membership=discovery,
        desk=desk_of(config, cores, switchboard),
        models=models,
        usage=accountant,
        config=reloader,
        not_ready_reason=around.readiness.not_ready_reason,
        key=cores.ops_key,
        tls=ops_tls,
    )
    gateway = _gateway(
        cores,
        around,
        watching,
        api=api,
        ops=ops,
        switchboard=switchboard,
        discovery=discovery,
        reloader=reloader,
    )
    return Shell(gateway, cores, reloader, host)


@dataclass(frozen=True, slots=True)
class _Watching:
    """What looks at settled requests; `accountant` is None where usage is not counted."""

    batch: Batch
    metrics: RequestMetrics
    explainer: Explainer
    accountant: Accountant | None


def _watching(config: Config, cores: Cores, shared: Shared) -> _Watching:
    metrics = RequestMetrics(cores.has_server)
    explainer = Explainer(cores.view, CLOCK)
    counts = counts_of(config)
    return _Watching(
        Batch((metrics, cores, explainer, *([counts] if counts else ()))),
        metrics,
        explainer,
        accountant_of(config, counts, shared, has_server=cores.has_server, log=cores.warning),
    )


def _gateway(
    cores: Cores,
    around: Surroundings,
    watching: _Watching,
    *,
    api: Listener,
    ops: OpsListener,
    switchboard: Switchboard,
    discovery: Discovery[DiscoveryConfig, ServerConfig],
    reloader: Reloader,
) -> Gateway:
    return Gateway(
        api=api,
        ops=ops,
        watcher=cores,
        store=accounted(around.shared, watching.accountant, watching.batch.flush),
        switchboard=switchboard,
        discovery=discovery,
        reloader=reloader,
        readiness=around.readiness,
        busy=cores.busy,
        times=lambda: shutdown_times(cores.current.config),
        clock=CLOCK,
        log=cores.info,
        flush=watching.batch.flush,
    )


def discovery_of(
    config: Config, cores: Cores, around: Surroundings
) -> Discovery[DiscoveryConfig, ServerConfig]:
    """Build what asks the sources; nothing is asked yet."""
    believed = Believed(
        around.members,
        answers=cores.answers,
        unusable=lambda server: unusable(server, around.environ),
        clock=CLOCK,
        wall_clock=WALL_CLOCK,
    )
    discovery = Discovery[DiscoveryConfig, ServerConfig](
        around.members,
        new_feed=lambda section: feed_of(section, believed),
        random=random.random,
        log=cores.warning,
    )
    discovery.follow(config.discovery)
    return discovery


def desk_of(config: Config, cores: Cores, switchboard: Switchboard) -> SteeringDesk:
    """Build the operators' desk, and put what was kept into force. Raises ValueError."""
    store = StateFile(config.steering.state_file, STEERING)
    desk = SteeringDesk(cores.view, store, switchboard, log=cores.warning, now=now_text)
    desk.restore()
    return desk


def renew_certificates(core: Core, api: ssl.SSLContext | None, ops: ssl.SSLContext | None) -> None:
    """Read certificates and keys again, for connections made from now on. Raises OSError.

    What waits for a restart is left alone: its files may be gone.
    """
    written, config = core.written, core.config
    for context, wanted, tls in (
        (api, written.api.tls, config.api.tls),
        (ops, written.ops.tls, config.ops.tls),
    ):
        if context is not None and tls is not None and tls == wanted:
            context.load_cert_chain(tls.cert_file, tls.key_file)


def shutdown_times(config: Config) -> ShutdownTimes:
    """Return how long ending may take."""
    return ShutdownTimes(config.shutdown.drain_delay_s, config.shutdown.grace_s)


def _nobody(_: object) -> None:
    """Tell nobody: there is no other process."""
