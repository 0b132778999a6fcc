"""Who has used how much of what: amounts by tenant and model, and how they travel to a store.

Decides how amounts add up, which models are told apart, and that nothing is added twice. Refuses to
know where the months are kept. Called by `gateway.usage` and the stores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

OTHER = "other"
"""The model under which those are counted that there are too many of."""
Pair = tuple[str, str]
"""A tenant, and a model by the name the servers know."""


@dataclass(slots=True)
class Amounts:
    """What was used. `compute_us` is in microseconds; all are whole, so that sums are exact."""

    requests: int = 0
    errors: int = 0
    rows: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    compute_us: int = 0

    def add(self, more: "Amounts") -> None:
        """Add what was used as well."""
        for unit in UNITS:
            setattr(self, unit, getattr(self, unit) + getattr(more, unit))


UNITS = tuple(field.name for field in fields(Amounts))
Totals = Mapping[Pair, Amounts]


class Flush(NamedTuple):
    """Amounts on their way to a store, by month (`2026-11`).

    Nobody else is called `writer`, and its flushes are numbered upwards from 1, so that a store can
    tell one whose answer was lost when it comes again.
    """

    writer: str
    number: int
    months: Mapping[str, Totals]


def add_to(totals: dict[Pair, Amounts], more: Totals) -> None:
    """Add amounts pair by pair. `totals` never shares an object with `more`."""
    for pair, amounts in more.items():
        found = totals.get(pair)
        if found is None:
            found = totals[pair] = Amounts()
        found.add(amounts)


class Pairs:
    """Which pairs are told apart: so many as come first, the models of the rest are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[Pair] = set()

    def apart(self, pair: Pair) -> Pair:
        """Return the pair under which `pair` is counted."""
        if pair in self._known:
            return pair
        if len(self._known) >= self._most:
            return pair[0], OTHER
        self._known.add(pair)
        return pair
