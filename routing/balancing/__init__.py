"""Balancing policies: one a file, each an implementation of `Balancer`."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Load(Protocol):
    """What a policy may look at: the work a server has from this gateway, and its capacity."""

    @property
    def in_flight(self) -> int:
        """Batch rows sent and not yet answered, detached ones included."""

    @property
    def capacity(self) -> float:
        """Relative share of the work."""


class Balancer(Protocol):
    """Chooses one of several candidates. Never called with an empty sequence."""

    def pick(self, candidates: Sequence[Load], random: Callable[[], float]) -> int:
        """Return the index of the chosen candidate; `random` yields floats in [0, 1)."""
