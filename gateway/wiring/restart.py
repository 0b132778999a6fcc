"""What a reload cannot change: it stays as it was, and is told as waiting for a restart.

Sockets are bound once, one for each worker; operators' decisions, and what gateways share, are kept
where they were. A listener that was safe must not become unsafe half-way: as its address stays, so
do its key and its kind of TLS.
"""

from config.control import ModelControl
from config.listeners import Api, ListenerTls, Ops
from config.models import Config


def in_force(written: Config, running: Config) -> Config:
    """Return what of a configuration can come into force now, the rest being as it is."""
    return written.model_copy(
        update={
            "api": _api(written.api, running.api),
            "ops": _ops(written.ops, running.ops),
            "steering": running.steering,
            "redis": running.redis,
            "sequences": written.sequences.model_copy(
                update={"max_open": running.sequences.max_open}
            ),
            "model_control": _model_control(written.model_control, running.model_control),
            "usage": running.usage,
            "workers": running.workers,
        }
    )


def _model_control(written: ModelControl, running: ModelControl) -> ModelControl:
    """What was loaded is kept, or not, from the start on."""
    kept = {"replay": running.replay, "state_file": running.state_file}
    return written.model_copy(update=kept)


def _api(written: Api, running: Api) -> Api:
    return written.model_copy(
        update={
            "host": running.host,
            "port": running.port,
            "tls": _tls(written.tls, running.tls),
        }
    )


def _ops(written: Ops, running: Ops) -> Ops:
    return written.model_copy(
        update={
            "host": running.host,
            "port": running.port,
            "key": written.key or running.key,
            "tls": _tls(written.tls, running.tls),
        }
    )


def _tls(written: ListenerTls | None, running: ListenerTls | None) -> ListenerTls | None:
    """Certificates may be exchanged, but not what is asked of clients."""
    if written is None or running is None:
        return running
    same = written.client_ca_file == running.client_ca_file
    return written if same else running
