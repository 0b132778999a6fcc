"""The open sequences this gateway knows: which server has the state of each.

`Pin` is what is kept of one, here and in the store that gateways share; `OpenSequences` counts them
by server and forgets what was silent for longer than its time. Pure bookkeeping with the clock
passed in; called by `gateway.sequences`.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

_NOWHERE = "-"  # no server can have this name
_END = "\0"  # no name holds it; behind it is what a newer gateway has to say


@dataclass(frozen=True, slots=True)
class Pin:
    """The model, its version and the server that have a sequence's state.

    `begun` tells this beginning from others with the same id: a text without spaces that is unique
    and sorts by time. `more` is what a newer gateway has written besides, and is kept as it is.
    """

    model: str
    version: int
    server: str
    begun: str
    more: str = field(default="", compare=False)

    @property
    def is_lost(self) -> bool:
        """Whether the state is gone, so that the sequence has to begin again."""
        return self.server == _NOWHERE

    def lost(self) -> Self:
        """Return what is kept in place of this pin when the state is gone."""
        return replace(self, server=_NOWHERE)

    def replaces(self, other: Self) -> bool:
        """Whether this counts, of two pins of one sequence: the later one, or that it is lost."""
        return (self.begun, self.is_lost) > (other.begun, other.is_lost)

    def text(self) -> str:
        """Return it as text, for a store."""
        return f"{self.version} {self.server} {self.begun} {self.model}{self.more}"

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read what `text` wrote. Raises ValueError for anything else."""
        known, end, rest = text.partition(_END)
        version, server, begun, model = known.split(" ", 3)
        return cls(model, int(version), server, begun, end + rest)


@dataclass(slots=True)
class Open:
    """One open sequence. `name` is what its requests call the model, which may be an alias.

    `shared` says whether the store has its pin, too. It is kept for `keep_s` after its last
    request, and as long as one is under way (`running`).
    """

    name: str
    pin: Pin
    keep_s: float
    until_s: float
    shared: bool
    running: int = 0


class OpenSequences:
    """The sequences by name and key, and how many there are on each server."""

    def __init__(self) -> None:
        self._by_name: dict[str, OrderedDict[str, Open]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def find(self, name: str, key: str, now_s: float) -> Open | None:
        """Return an open sequence, None if there is none or its time is over."""
        table = self._by_name.get(name)
        found = table.get(key) if table else None
        if found is not None and found.until_s < now_s and not found.running:
            self.forget(name, key)
            return None
        return found

    def keep(
        self, name: str, key: str, pin: Pin, *, keep_s: float, now_s: float, shared: bool
    ) -> Open:
        """Note where a sequence is, or is now, and that it was used just now."""
        table = self._by_name.setdefault(name, OrderedDict())
        found = table.get(key)
        if found is None:
            found = table[key] = Open(name, pin, keep_s, now_s + keep_s, shared)
            self._count(pin, 1)
        elif found.pin != pin:
            self._count(found.pin, -1)
            self._count(pin, 1)
            found.pin = pin
        found.keep_s, found.until_s, found.shared = keep_s, now_s + keep_s, shared
        table.move_to_end(key)
        return found

    def forget(self, name: str, key: str) -> None:
        """Drop a sequence, if it is there."""
        table = self._by_name.get(name, OrderedDict())
        found = table.pop(key, None)
        if found is not None:
            self._count(found.pin, -1)
            if not table:
                del self._by_name[name]

    def expire(self, now_s: float) -> None:
        """Drop the sequences whose time is over; the least recently used come first."""
        for name, table in list(self._by_name.items()):
            while table:
                key, first = next(iter(table.items()))
                if first.until_s >= now_s:
                    break
                if first.running:
                    first.until_s = now_s + first.keep_s
                    table.move_to_end(key)
                else:
                    self.forget(name, key)

    def held(self, model: str) -> Mapping[str, int]:
        """Return how many sequences of a model each server has; servers without are left out."""
        return {server: count for (of, server), count in self._counts.items() if of == model}

    def by_server(self) -> Mapping[str, int]:
        """Return how many sequences each server has, of all models together."""
        totals: Counter[str] = Counter()
        for (_, server), count in self._counts.items():
            totals[server] += count
        return totals

    def _count(self, pin: Pin, change: int) -> None:
        if pin.is_lost:
            return
        key = (pin.model, pin.server)
        self._counts[key] += change
        if not self._counts[key]:
            del self._counts[key]
