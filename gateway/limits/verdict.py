"""What is wanted of the limits for one request, and what they say to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from routing.limits import SECOND_US, LimitState, Rule, Source


@dataclass(frozen=True, slots=True)
class Wanted:
    """A rule a request comes under, the key of its quota, and the cost: 0 for a place."""

    rule: Rule
    key: str
    cost_us: int

    def state(self, used: int, *, over: bool) -> LimitState:
        """Return what the rule says to the request."""
        return LimitState(self.rule, used, over)

    def wait_us(self, used: int) -> int:
        """Return how long until it fits; nobody knows when a place becomes free."""
        if self.rule.counts_places:
            return SECOND_US
        return self.cost_us + used - self.rule.burst_us


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one request.

    `charged` is what can be given back, by key in microseconds; `places` what is held, as key and
    holder. After a refusal nothing is, and `wait_us` is how long until the request would fit.
    """

    source: Source
    refused: bool
    states: tuple[LimitState, ...]
    wait_us: int = 0
    charged: Mapping[str, int] = field(default_factory=dict)
    places: tuple[tuple[str, str], ...] = ()
