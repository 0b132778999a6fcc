"""Every way in which the gateway is meant to differ from Triton, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.comparison import Reading


@dataclass(frozen=True)
class Difference:
    name: str
    reason: str
    respects: frozenset[str]
    holds: Callable[[Reading, Reading], bool]
