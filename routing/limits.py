"""The rules of rate limits: whom each concerns, and what a request costs under it.

Decides which rules apply to a request and where what they count is kept. Refuses to know what has
been used up: `routing.quota` counts that, here or in a store. Called by `gateway.limits`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple, Self
from urllib.parse import quote

SECOND_US = 1_000_000
_MOST_REMEMBERED = 10_000
_ROUNDING = 1e-6


class Dimension(Enum):
    """What a rule counts. The values are the words of the configuration."""

    REQUESTS = "requests"
    ROWS = "rows"
    INPUT_BYTES = "input_bytes"
    ELEMENTS = "elements"
    CONCURRENT = "concurrent"


class Per(Enum):
    """Who has a quota of its own."""

    TENANT = "tenant"
    GLOBAL = "global"
    TENANT_MODEL = "tenant_model"


class OnFailure(Enum):
    """What decides while the store does not answer: the process itself, nobody, or a refusal."""

    LOCAL = "local"
    OPEN = "open"
    CLOSED = "closed"


class Source(Enum):
    """What has decided on a request; the values besides `shared` are those of `OnFailure`."""

    SHARED = "shared"
    LOCAL = "local"
    OPEN = "open"
    CLOSED = "closed"


class Cost(NamedTuple):
    """What a request counts: its batch rows, and the bytes and elements of its inputs."""

    rows: int = 1
    input_bytes: int = 0
    elements: int = 0

    def units(self, dimension: Dimension) -> int:
        """Return the units in one dimension."""
        match dimension:
            case Dimension.ROWS:
                return self.rows
            case Dimension.INPUT_BYTES:
                return self.input_bytes
            case Dimension.ELEMENTS:
                return self.elements
        return 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit. `most` is the burst of a rate, in units, or the requests at a time.

    `per_s` is the rate in units a second, 0 for `Dimension.CONCURRENT`. The patterns are globs,
    empty ones fit everybody. A rule that is not enforced only counts what it would have refused.
    """

    name: str
    dimension: Dimension
    most: int
    per_s: float = 0.0
    tenants: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    per: Per = Per.TENANT
    enforce: bool = True
    on_failure: OnFailure = OnFailure.LOCAL
    counts_places: bool = field(init=False, compare=False)
    """Whether it is about requests at a time, not about a rate."""
    burst_us: int = field(init=False, compare=False)
    """The time in which the rate yields the burst, in microseconds; 0 without a rate."""
    unit_us: int = field(init=False, compare=False)
    """The time in which it yields one unit, rounded up."""

    def __post_init__(self) -> None:
        """Work out once what every request asks for."""
        counts_places = self.dimension is Dimension.CONCURRENT
        object.__setattr__(self, "counts_places", counts_places)
        unit_us = 0 if counts_places else math.ceil(SECOND_US / self.per_s)
        object.__setattr__(self, "unit_us", unit_us)
        object.__setattr__(self, "burst_us", 0 if counts_places else self._burst_us())

    def cost_us(self, units: int) -> int:
        """Return the time in which the rate yields so many units, rounded up."""
        return self.unit_us if units == 1 else math.ceil(units * SECOND_US / self.per_s)

    def _burst_us(self) -> int:
        # Costs are rounded up, each request's by itself: up to a hundredth more makes up for that.
        exact_us = self.cost_us(self.most)
        return max(exact_us, min(self.most * self.unit_us, exact_us + exact_us // 100))

    def remaining(self, used_us: int) -> int:
        """Return the units that are left of the burst."""
        left = int((self.burst_us - used_us) * self.per_s / SECOND_US + _ROUNDING)
        return self.most if left > self.most else max(left, 0)

    def concerns(self, tenant: str, tier: str, model: str) -> bool:
        """Whether a request comes under this rule."""
        return _fits(self.tenants, tenant) and _fits(self.tiers, tier) and _fits(self.models, model)

    def key(self, tenant: str, model: str) -> str:
        """Return where the quota of such a request is kept."""
        kind = "places" if self.counts_places else "rate"
        scope = {
            Per.GLOBAL: (),
            Per.TENANT: (tenant,),
            Per.TENANT_MODEL: (tenant, model),
        }[self.per]
        return ":".join(["limit", kind, *(quote(part, safe="") for part in (self.name, *scope))])


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Applied:
    """A rule that a request comes under, and the key of its quota."""

    rule: Rule
    key: str


class LimitState(NamedTuple):
    """What a rule said to a request: `used` microseconds of its burst, or places taken."""

    rule: Rule
    used: int
    over: bool = False


class RuleBook:
    """All rules. What applies to whom is remembered, for so many callers and models."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._found: dict[tuple[str, str, str], tuple[Applied, ...]] = {}

    def observed(self) -> Self:
        """Return the same rules, none of them enforced."""
        return type(self)([replace(rule, enforce=False) for rule in self.rules])

    def applied(self, tenant: str, tier: str, model: str) -> tuple[Applied, ...]:
        """Return the rules for a tenant's requests to a model, in the order they were written.

        `tier` is "" for tenants that belong to none.
        """
        if not self.rules:
            return ()
        found = self._found.get((tenant, tier, model))
        if found is None:
            if len(self._found) >= _MOST_REMEMBERED:
                self._found.clear()
            found = self._found[tenant, tier, model] = tuple(
                Applied(rule, rule.key(tenant, model))
                for rule in self.rules
                if rule.concerns(tenant, tier, model)
            )
        return found
