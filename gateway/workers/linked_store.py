"""The shared store of a host without Redis: the supervisor's memory, asked over the link.

See `gateway.ports.SharedStore`. Built by wiring, on either side.
"""

from collections.abc import Sequence
from typing import Any

from gateway.ports import Entry, SharedStore, StoreDown
from gateway.workers.link import Link, RemoteError, Service

SERVICE = "store"
_ANSWER_S = 1.0


class LinkedStore:
    """What a worker sees of it."""

    kind = "memory"

    def __init__(self, link: Link) -> None:
        self._link = link
        self.failures = 0

    def down_reason(self) -> str | None:
        """Return None: a worker without a supervisor ends."""
        return None

    async def start(self) -> None:
        """Do nothing: the link is there."""

    async def close(self) -> None:
        """Do nothing."""

    async def claim(
        self, key: str, value: str, *, ttl_s: float, instead_of: str | None = None
    ) -> str:
        """Put a value where nothing, or a certain other value, is."""
        there: str = await self._ask("claim", key, value, ttl_s=ttl_s, instead_of=instead_of)
        return there

    async def renew(self, key: str, *, ttl_s: float) -> str | None:
        """Return what is there and keep it for longer."""
        there: str | None = await self._ask("renew", key, ttl_s=ttl_s)
        return there

    async def forget(self, key: str, value: str) -> None:
        """Take a value away, if it is there."""
        await self._ask("forget", key, value)

    async def look(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return what is at each key."""
        found: list[Entry | None] = await self._ask("look", list(keys))
        return found

    async def _ask(self, operation: str, *arguments: object, **named: Any) -> Any:
        try:
            return await self._link.ask(SERVICE, operation, arguments, named, timeout_s=_ANSWER_S)
        except (TimeoutError, ConnectionError, RemoteError) as error:
            self.failures += 1
            raise StoreDown("the supervisor does not answer") from error


def store_service(store: SharedStore) -> Service:
    """Return the supervisor's service."""
    operations = {
        "claim": store.claim,
        "renew": store.renew,
        "forget": store.forget,
        "look": store.look,
    }

    async def carry_out(operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return await operations[operation](*arguments, **named)  # type: ignore[operator]

    return carry_out
