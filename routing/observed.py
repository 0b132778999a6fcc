"""What is known of one server, and what that means for one of its versions.

Kept and changed by `routing.fleet`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from routing.holders import NOTHING, Said
from routing.types import ModelRow, ModelRules, ModelSpec, ModelVersion, Server, State

NO_RULES = ModelRules()


@dataclass(slots=True)
class Observed:
    """Everything known of one server, the `number`th of all; changed in place by its table."""

    server: Server
    number: int
    leaving: bool = False
    up: bool = False
    reason: str = "not probed yet"
    server_id: str = ""
    triton_version: str = ""
    ready: frozenset[ModelVersion] = frozenset()
    index: Mapping[ModelVersion, ModelRow] = field(default_factory=dict)
    unloaded: frozenset[str] = frozenset()
    suspected: dict[ModelVersion, tuple[str, float]] = field(default_factory=dict)
    specs: dict[ModelVersion, ModelSpec] = field(default_factory=dict)

    @property
    def was_up(self) -> bool:
        """Whether it has ever answered."""
        return self.triton_version != ""

    def keys(self) -> set[ModelVersion]:
        """The versions the server says anything of."""
        return {*self.ready, *self.index, *self.suspected}

    def says(self, key: ModelVersion, rules: ModelRules) -> Said:
        """Return what the server says of one version."""
        ready, row = key in self.ready, self.index.get(key)
        if not ready and row is None:
            return NOTHING
        serves = ready and self.up and key not in self.suspected
        not_used = _not_used(self, key.model, rules) if ready else None
        return Said(
            known=True,
            loading=self.up and row is not None and row.state is State.LOADING,
            serves=serves,
            lost=ready and self.was_up and not self.up and not_used is None,
            spec=self.specs.get(key) if serves else None,
            not_used=not_used,
        )

    def of(self, other: "Observed") -> "Observed":
        """Return a copy for the same server under the rules and at the place of `other`."""
        suspected = dict(self.suspected)
        return replace(self, server=other.server, number=other.number, suspected=suspected)

    def rows(self) -> dict[ModelVersion, ModelRow]:
        """Return every version of it as the fleet view shows it."""
        rows = dict(self.index)
        for key, row in self.index.items():
            if row.state is State.READY:  # the statistics are newer than the index
                rows[key] = ModelRow(State.UNKNOWN, "no longer in the server's statistics")
        for key in self.ready:
            rows[key] = ModelRow(State.READY)
        for key, (reason, _) in self.suspected.items():
            rows[key] = ModelRow(State.UNKNOWN, reason)
        if not self.up:
            rows = dict.fromkeys(rows, ModelRow(State.UNKNOWN, self.reason))
        return rows


def _not_used(seen: Observed, model: str, rules: ModelRules) -> str | None:
    server = seen.server
    if seen.leaving:
        return "it is leaving the fleet"
    if server.serve != ("*",) and not any(fnmatchcase(model, p) for p in server.serve):
        return "the server's `serve` does not name this model"
    if rules.pool is not None and rules.pool != server.pool:
        return f"the model is for the pool '{rules.pool}'"
    return None
