"""The composition root: the only reader of configuration objects, and the builder of every part.

`shell` builds what lives as long as the process: listeners, counters, operators' decisions. `core`
builds what one configuration decides: servers, routing, the pipeline. The other modules hold the
pieces of a core. Nothing is started here, and no socket is opened. gRPC channels belong to the
running event loop, so `build` must be called inside it.
"""

from gateway.wiring.clock import CLOCK, Environ
from gateway.wiring.listeners import listener_tls
from gateway.wiring.servers import target_of
from gateway.wiring.shell import Shell, build
from gateway.wiring.source import ConfigSource, read_config

__all__ = [
    "CLOCK",
    "ConfigSource",
    "Environ",
    "Shell",
    "build",
    "listener_tls",
    "read_config",
    "target_of",
]
