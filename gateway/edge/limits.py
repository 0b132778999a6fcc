"""What answers say of rate limits, in header fields.

`RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11: lists of
quoted names with whole numbers. A rate is told as its burst over the time in which that refills.
The names of rules are safe to write: the configuration allows letters, digits and `._-` only.
"""

from collections.abc import Sequence

from gateway.exchange import Exchange
from routing.limits import SECOND_US, Dimension, LimitState, Rule, Source

DECIDED_BY = "Triton-Gateway-Limits"
"""Says what decided on the limits when it was not the shared store."""

_UNITS = {
    Dimension.REQUESTS: "",
    Dimension.ROWS: ';qu="batch-rows"',
    Dimension.INPUT_BYTES: ';qu="input-bytes"',
    Dimension.ELEMENTS: ';qu="input-elements"',
    Dimension.CONCURRENT: ';qu="concurrent-requests"',
}


class LimitHeaders:
    """Writes the fields, for the rules of one configuration.

    `older` adds X-RateLimit-Limit, -Remaining and -Reset (in seconds) of the tightest one.
    """

    def __init__(self, *, older: bool) -> None:
        self._older = older
        self._policies: dict[str, str] = {}  # by the rule's name: every answer repeats them

    def of(self, exchange: Exchange) -> dict[str, str]:
        """Return the fields for an exchange with limits."""
        states = exchange.limits
        headers = {
            "RateLimit-Policy": ", ".join([self._policy(state.rule) for state in states]),
            "RateLimit": ", ".join([_left(state) for state in states]),
        }
        if exchange.limited_by is not Source.SHARED:
            headers[DECIDED_BY] = exchange.limited_by.value
        if self._older:
            headers |= _older(states)
        return headers

    def _policy(self, rule: Rule) -> str:
        found = self._policies.get(rule.name)
        if found is None:
            window = "" if rule.counts_places else f";w={_seconds(rule.burst_us)}"
            found = f'"{rule.name}";q={rule.most}{_UNITS[rule.dimension]}{window}'
            self._policies[rule.name] = found
        return found


def _older(states: Sequence[LimitState]) -> dict[str, str]:
    tightest = min(states, key=_remaining)
    return {
        "X-RateLimit-Limit": str(tightest.rule.most),
        "X-RateLimit-Remaining": str(_remaining(tightest)),
        "X-RateLimit-Reset": str(_reset_s(tightest)),
    }


def _left(state: LimitState) -> str:
    left = f'"{state.rule.name}";r={_remaining(state)}'
    return left if state.rule.counts_places else f"{left};t={_seconds(state.used)}"


def _remaining(state: LimitState) -> int:
    if state.over:  # what is left is too little for this request
        return 0
    rule = state.rule
    return max(0, rule.most - state.used) if rule.counts_places else rule.remaining(state.used)


def _reset_s(state: LimitState) -> int:
    return 1 if state.rule.counts_places else _seconds(state.used)


def _seconds(time_us: int) -> int:
    return -(-time_us // SECOND_US) or 1
