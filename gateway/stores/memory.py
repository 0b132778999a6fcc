"""The shared store in the memory of one process: for a gateway by itself, and for tests.

See `gateway.ports.SharedStore`. What is longest unused goes first when there is too much.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ports import Clock, Entry


@dataclass(slots=True)
class _Kept:
    value: str
    until_s: float


class MemoryStore:
    """Keeps at most `max_entries`; what has expired is dropped as new entries come."""

    kind = "memory"
    failures = 0

    def __init__(self, clock: Clock, *, max_entries: int) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    @property
    def entries(self) -> int:
        """How many entries take up memory, expired ones included."""
        return len(self._kept)

    def down_reason(self) -> str | None:
        """Return None: memory is always there."""
        return None

    async def start(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing."""

    async def claim(
        self, key: str, value: str, *, ttl_s: float, instead_of: str | None = None
    ) -> str:
        """Put a value where nothing, or a certain other value, is."""
        found = self._find(key)
        if found is not None and found.value != instead_of:
            return found.value
        self._put(key, value, ttl_s)
        return value

    async def renew(self, key: str, *, ttl_s: float) -> str | None:
        """Return what is there and keep it for longer."""
        found = self._find(key)
        if found is None:
            return None
        self._put(key, found.value, ttl_s)
        return found.value

    async def forget(self, key: str, value: str) -> None:
        """Take a value away, if it is there."""
        found = self._find(key)
        if found is not None and found.value == value:
            del self._kept[key]

    async def look(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return what is at each key."""
        now_s = self._clock()
        found = map(self._find, keys)
        return [Entry(each.value, each.until_s - now_s) if each else None for each in found]

    def _find(self, key: str) -> _Kept | None:
        found = self._kept.get(key)
        if found is not None and found.until_s <= self._clock():
            del self._kept[key]
            return None
        return found

    def _put(self, key: str, value: str, ttl_s: float) -> None:
        now_s = self._clock()
        self._kept[key] = _Kept(value, now_s + ttl_s)
        self._kept.move_to_end(key)
        first = next(iter(self._kept))
        while len(self._kept) > self._max_entries or self._kept[first].until_s <= now_s:
            del self._kept[first]
            if not self._kept:
                return
            first = next(iter(self._kept))
