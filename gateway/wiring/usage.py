"""What a configuration means for usage accounting."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from config.models import Config
from config.usage import Usage as UsageConfig
from gateway.lifecycle import Store
from gateway.observe.usage import UsageMetrics
from gateway.ports import LogEvent
from gateway.stores.state_file import USAGE, StateFile
from gateway.stores.usage import MemoryUsage
from gateway.usage.accountant import Accountant
from gateway.usage.counting import UsageCounts, Used
from gateway.wiring.clock import CLOCK, WALL_CLOCK
from gateway.wiring.sharing import Shared


def counts_of(config: Config) -> UsageCounts | None:
    """Build what counts requests, None if that is not wanted."""
    return UsageCounts() if config.usage.enabled else None


def accountant_of(
    config: Config,
    counts: UsageCounts | None,
    shared: Shared,
    *,
    has_server: Callable[[str], bool],
    log: LogEvent,
) -> Accountant | None:
    """Build what keeps the accounts, None if that is not wanted.

    `counts` is what this process counts itself, if it does. Raises ValueError for a file of no use.
    """
    settings = config.usage
    if not settings.enabled:
        return None
    return Accountant(
        shared.usage or _own_store(settings, log),
        taken=counts.take if counts else _nothing,
        me=uuid4().hex,
        is_known=has_server,
        interval_s=settings.flush_interval_s,
        clock=CLOCK,
        wall_clock=WALL_CLOCK,
        log=log,
    )


def _own_store(settings: UsageConfig, log: LogEvent) -> MemoryUsage:
    file = StateFile(settings.state_file, USAGE)
    store = MemoryUsage(file, months=settings.retention_months, log=log)
    store.restore()
    return store


@dataclass(frozen=True, slots=True)
class Accounted:
    """What gateways share, closed when the accounts are; see `gateway.lifecycle.Store`.

    `flush` tells what is still waiting to be told.
    """

    shared: Store
    accountant: Accountant
    flush: Callable[[], None]

    async def start(self) -> None:
        """Begin to connect, and to keep accounts."""
        await self.shared.start()
        self.accountant.start()

    async def close(self) -> None:
        """Close the accounts, then the connections."""
        self.flush()
        await self.accountant.close()
        await self.shared.close()


def accounted(shared: Store, accountant: Accountant | None, flush: Callable[[], None]) -> Store:
    """Return what is started and closed with the process."""
    return shared if accountant is None else Accounted(shared, accountant, flush)


def usage_metrics(accountant: Accountant | None) -> list[UsageMetrics]:
    """Return the metrics of the accounts, if they are kept."""
    return [] if accountant is None else [UsageMetrics(accountant.totals)]


def _nothing() -> Used | None:
    return None
