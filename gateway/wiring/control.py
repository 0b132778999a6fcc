"""What a configuration means for what changes servers: model control, settings, restrictions."""

import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from config.models import Config
from gateway.control import ControlParts, ControlSettings, ModelDesk
from gateway.edge.control import ControlRoutes, Permissions
from gateway.edge.restricted import Restriction
from gateway.observe.logs import Logger
from gateway.ports import Fleet, FleetProbe, ModelCommands
from gateway.replay import KeptLoads
from gateway.settings import SettingsDesk
from gateway.stores.state_file import LOADS, StateFile
from gateway.upstream.control import ModelCalls
from gateway.upstream.settings import SettingsReader
from gateway.upstream.transport import Upstream
from gateway.wiring.clock import CLOCK, Environ, now_text


class WatchedFleet(Fleet, FleetProbe, Protocol):
    """The picture of the fleet, and what looks at servers that are being changed."""


def model_desk(
    config: Config, parts: Callable[[], ControlParts], *, log: Callable[..., None]
) -> ModelDesk:
    """Build what loads and unloads models, and outlasts a configuration.

    Raises DamagedState for a file of no use.
    """
    settings = config.model_control
    kept = None
    if settings.replay:
        kept = KeptLoads(StateFile(settings.state_file, LOADS), log=log)
        kept.restore()
    return ModelDesk(parts, kept=kept, log=log, now=now_text, new_id=lambda: secrets.token_hex(4))


def control_parts(
    config: Config, watcher: WatchedFleet, upstreams: Mapping[str, Upstream]
) -> ControlParts:
    """Build what commands need of one configuration."""
    placement = {
        name: policy.placement
        for name, policy in config.models.items()
        if policy.placement is not None
    }
    settings = config.model_control
    return ControlParts(
        watcher,
        watcher,
        ModelCalls(upstreams),
        ControlSettings(settings.concurrency, settings.timeout_s, placement),
    )


def control_routes(
    config: Config,
    fleet: Fleet,
    upstreams: Mapping[str, Upstream],
    models: ModelCommands,
    logger: Logger,
) -> ControlRoutes:
    """Build the handlers of the routes that change servers."""
    settings = SettingsDesk(
        fleet,
        SettingsReader(upstreams),
        timeout_s=config.server_settings.timeout_s,
        log=logger.warning,
        clock=CLOCK,
    )
    permissions = Permissions(config.model_control.enabled, config.server_settings.enabled)
    return ControlRoutes(models, settings, permissions)


def restrictions_of(config: Config, environ: Environ) -> tuple[Restriction, ...]:
    """Return the restricted parts of the API. Raises OSError or ValueError for missing keys."""
    return tuple(
        Restriction(restricted.apis, restricted.header, restricted.key.reveal(environ))
        for restricted in config.api.restricted
    )
