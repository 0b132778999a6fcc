"""The quotas of a host without Redis: kept in the supervisor's memory, asked over the link.

So limits hold however callers spread over the workers. See `gateway.ports.QuotaStore`. Built by
wiring, on either side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.ports import QuotaStore, StoreDown
from gateway.workers.link import Link, RemoteError, Service
from routing.quota import Answer, Ask

SERVICE = "quotas"
_ANSWER_S = 1.0


class LinkedQuotas:
    """What a worker sees of them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def decide(self, ask: Ask) -> Answer:
        """Charge all that is asked for, or nothing."""
        answer: Answer = await self._ask("decide", ask)
        return answer

    async def give_back(self, amounts_us: Mapping[str, int]) -> None:
        """Take back what was charged."""
        await self._ask("give_back", dict(amounts_us))

    async def hold(self, places: Sequence[tuple[str, str]], *, ttl_s: float) -> list[int]:
        """Keep places."""
        taken: list[int] = await self._ask("hold", list(places), ttl_s=ttl_s)
        return taken

    async def free(self, places: Sequence[tuple[str, str]]) -> None:
        """Give places back."""
        await self._ask("free", list(places))

    async def forget(self, keys: Sequence[str]) -> None:
        """Make quotas as if they had never been used."""
        await self._ask("forget", list(keys))

    async def _ask(self, operation: str, *arguments: object, **named: Any) -> Any:
        try:
            return await self._link.ask(SERVICE, operation, arguments, named, timeout_s=_ANSWER_S)
        except (TimeoutError, ConnectionError, RemoteError) as error:
            raise StoreDown("the supervisor does not answer") from error


def quota_service(store: QuotaStore) -> Service:
    """Return the supervisor's service."""
    operations = {
        "decide": store.decide,
        "give_back": store.give_back,
        "hold": store.hold,
        "free": store.free,
        "forget": store.forget,
    }

    async def carry_out(operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return await operations[operation](*arguments, **named)  # type: ignore[operator]

    return carry_out
