"""The shell: what lives as long as the process, around the core that a reload replaces.

Bound sockets come in. Counters, operators' decisions, past requests and readiness are here because
they must outlast a configuration; each reaches the core in force through `cores.Cores`.
"""

import socket
from dataclasses import dataclass

from config.models import Config
from gateway.edge.listener import Listener
from gateway.explain import Explainer
from gateway.lifecycle import Gateway, Readiness, ShutdownTimes
from gateway.observe.batch import Batch
from gateway.observe.logs import Logger, LogStream
from gateway.observe.metrics import RequestMetrics, make_registry
from gateway.ops.listener import OpsListener
from gateway.steering import SteeringDesk
from gateway.stores.state_file import StateFile
from gateway.wiring.clock import CLOCK, Environ, now_text
from gateway.wiring.core import Surroundings, build_core
from gateway.wiring.cores import Cores
from gateway.wiring.listeners import http_limits, listener_tls


@dataclass(frozen=True, slots=True)
class Shell:
    """A gateway that can be run, and the reference to its core."""

    gateway: Gateway
    cores: Cores

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
) -> Shell:
    """Build a gateway from a valid configuration whose secrets can all be revealed.

    Raises ValueError for operators' decisions that were kept and cannot be used.
    """
    cores = Cores()
    readiness = Readiness()
    request_metrics = RequestMetrics()
    explainer = Explainer(cores.view, CLOCK)
    batch = Batch((request_metrics, cores, explainer))
    cores.current = build_core(config, Surroundings(environ, log, readiness, observer=batch))
    return Shell(
        gateway=Gateway(
            api=Listener(
                cores.api,
                api_socket,
                cut_off=cores.cut_off,
                limits=http_limits(config),
                tls=listener_tls(config.api.tls),
            ),
            ops=OpsListener(
                ops_socket,
                registry=make_registry(request_metrics, cores.view),
                view=cores.view,
                desk=_desk(config, cores),
                explainer=explainer,
                not_ready_reason=readiness.not_ready_reason,
                key=cores.ops_key,
                tls=listener_tls(config.ops.tls),
            ),
            watcher=cores,
            readiness=readiness,
            busy=cores.busy,
            times=lambda: _shutdown_times(cores.current.config),
            clock=CLOCK,
            log=cores.info,
            flush=batch.flush,
        ),
        cores=cores,
    )


def _desk(config: Config, cores: Cores) -> SteeringDesk:
    store = StateFile(config.steering.state_file)
    desk = SteeringDesk(cores.view, store, log=cores.warning, now=now_text)
    desk.restore()
    return desk


def _shutdown_times(config: Config) -> ShutdownTimes:
    return ShutdownTimes(config.shutdown.drain_delay_s, config.shutdown.grace_s)
