"""What gateways share, and what of it outlasts a reload: the store, open sequences, the limiter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

from config.models import Config
from config.secrets import secrets_in
from gateway.lifecycle import Store
from gateway.limits.limiter import Limiter
from gateway.ports import Descriptions, Fleet, LogEvent, QuotaStore, SharedStore, StoreState
from gateway.sequences import Sequences, SequenceSettings
from gateway.stores.memory import MemoryStore
from gateway.stores.quotas import MemoryQuotas, RedisQuotas
from gateway.stores.redis import RedisStore
from gateway.stores.usage import RedisUsage
from gateway.switchboard import Switchboard
from gateway.switches import Switches
from gateway.wiring.clock import CLOCK, WALL_CLOCK, Environ, begun
from routing.pool import Pool
from routing.sequences import OpenSequences


class Keeper(Store, StoreState, Protocol):
    """What is started and closed with the process, and shown to operators."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The store, what keeps it, what this process knows of it, and the secrets it needs.

    `usage` is where months are kept, None where that is not shared. `switches` are what operators
    have switched off, on all gateways that share the store.
    """

    keeper: Keeper
    store: SharedStore
    quotas: QuotaStore
    limiter: Limiter
    usage: RedisUsage | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    opened: OpenSequences = field(default_factory=OpenSequences)
    switches: Switches = field(default_factory=lambda: Switches(CLOCK))

    async def start(self) -> None:
        """Begin to connect."""
        await self.keeper.start()

    async def close(self) -> None:
        """Give back what is held, and close the connections."""
        await self.limiter.close()
        await self.keeper.close()


def shared_of(
    config: Config,
    environ: Environ,
    *,
    told_up: Callable[..., Any],
    told_down: Callable[..., Any],
) -> Shared:
    """Build the store; `told_up` and `told_down` log that it changed. Raises ValueError."""
    settings = config.redis
    if settings is None:
        memory = MemoryStore(CLOCK, max_entries=config.sequences.max_open)
        return shared_with(memory, memory, MemoryQuotas(CLOCK))
    from gateway.wiring.redis import redis_connection  # noqa: PLC0415 - see there

    connection = redis_connection(settings, environ, told_up=told_up, told_down=told_down)
    secrets = tuple(secret.reveal(environ) for _, secret in secrets_in(settings))
    quotas = RedisQuotas(connection)
    shared = shared_with(connection, RedisStore(connection), quotas, secrets)
    usage = RedisUsage(connection, months=config.usage.retention_months)
    return replace(shared, usage=usage)


def shared_with(
    keeper: Keeper, store: SharedStore, quotas: QuotaStore, secrets: tuple[str, ...] = ()
) -> Shared:
    """Put together what is shared through these."""
    limiter = Limiter(quotas, me=uuid4().hex, down=keeper.down_reason, clock=CLOCK)
    return Shared(keeper, store, quotas, limiter, secrets=secrets)


def switchboard_of(
    shared: Shared, *, told: Callable[[Mapping[str, float]], None], log: LogEvent
) -> Switchboard:
    """Build what switches features off, here and (through Redis) on other gateways."""
    is_shared = shared.keeper.kind == "redis"
    return Switchboard(
        shared.switches,
        shared.store if is_shared else None,
        told=told,
        log=log,
        clock=CLOCK,
        wall_clock=WALL_CLOCK,
    )


def sequences_of(
    config: Config, fleet: Fleet, pool: Pool, descriptions: Descriptions, shared: Shared
) -> Sequences:
    """Build what finds the servers of sequences."""
    settings = config.sequences
    return Sequences(
        fleet=fleet,
        pool=pool,
        store=shared.store,
        opened=shared.opened,
        descriptions=descriptions,
        settings=SequenceSettings(settings.margin_s, settings.idle_s, settings.max_open),
        begun=begun,
        clock=CLOCK,
    )
