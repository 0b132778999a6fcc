"""The composition root: the only reader of configuration objects, and the builder of every part.

`shell` builds what lives as long as the process: listeners, counters, operators' decisions. `core`
builds what one configuration decides: servers, routing, the pipeline. `host` and `worker` are the
shells of several processes; the other modules hold the pieces. Nothing is started here, and no
socket is opened. gRPC channels belong to the running event loop, so `build` must be called in it.
"""

from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.cores import Cores
from gateway.wiring.host import build_host
from gateway.wiring.listeners import listener_tls
from gateway.wiring.priorities import priorities_of
from gateway.wiring.servers import target_of
from gateway.wiring.shell import Shell, build
from gateway.wiring.source import ConfigSource, read_config
from gateway.wiring.worker import run_worker
from gateway.workers.duty import SupervisorGone

__all__ = [
    "CLOCK",
    "ConfigSource",
    "Cores",
    "Environ",
    "Shell",
    "SupervisorGone",
    "build",
    "build_host",
    "listener_tls",
    "priorities_of",
    "read_config",
    "run_worker",
    "target_of",
]
