"""What is wanted of the limits for one request, and what they say to it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from routing.limits import SECOND_US, LimitState, Rule, Source


class Wanted(NamedTuple):
    """A rule a request comes under, the key of its quota, and the cost: 0 for a place."""

    rule: Rule
    key: str
    cost_us: int

    def state(self, used: int, *, over: bool) -> LimitState:
        """Return what the rule says to the request."""
        return LimitState(self.rule, used, over)

    def wait_us(self, used: int, *, parts: int = 1) -> int:
        """Return how long until it fits; nobody knows when a place becomes free.

        `parts` is how many gateways each count their own part of the rate.
        """
        if self.rule.counts_places:
            return SECOND_US
        cost_us = self.cost_us * parts
        return cost_us + used - max(self.rule.burst_us, cost_us)


class Verdict(NamedTuple):
    """The decision on one request.

    `charged` is what can be given back, by key in microseconds; `places` what is held, as key and
    holder. After a refusal nothing is, and `wait_us` is how long until the request would fit, under
    the rule `refused_by` longer than under any other.
    """

    source: Source
    refused: bool
    states: tuple[LimitState, ...]
    wait_us: int = 0
    refused_by: Rule | None = None
    charged: Mapping[str, int] = MappingProxyType({})
    places: tuple[tuple[str, str], ...] = ()


def refusal(
    source: Source,
    over: Sequence[tuple[Wanted, int]],
    *,
    parts: int = 1,
    states: Sequence[LimitState] = (),
) -> Verdict:
    """Return the refusal of a request that does not fit under some enforced rules.

    `over` has these with what of each is used. `states` are those of all its rules; without, those
    of `over`.
    """
    longest, used = max(over, key=lambda each: each[0].wait_us(each[1], parts=parts))
    return Verdict(
        source,
        True,
        tuple(states) or tuple(each.state(used, over=True) for each, used in over),
        longest.wait_us(used, parts=parts),
        longest.rule,
    )
