"""What answers say of rate limits, in header fields.

`RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11: lists of
quoted names with whole numbers. A rate is told as its burst over the time in which that refills.
The names of rules are safe to write: the configuration allows letters, digits and `._-` only.
"""

import math

from gateway.exchange import Exchange
from routing.limits import SECOND_US, Dimension, LimitState, Source

DECIDED_BY = "Triton-Gateway-Limits"
"""Says what decided on the limits when it was not the shared store."""

_UNITS = {
    Dimension.REQUESTS: "",
    Dimension.ROWS: ';qu="batch-rows"',
    Dimension.INPUT_BYTES: ';qu="input-bytes"',
    Dimension.ELEMENTS: ';qu="input-elements"',
    Dimension.CONCURRENT: ';qu="concurrent-requests"',
}


def limit_headers(exchange: Exchange, *, older: bool) -> dict[str, str]:
    """Return the fields for an exchange with limits.

    `older` adds X-RateLimit-Limit, -Remaining and -Reset (in seconds) of the tightest one.
    """
    states = exchange.limits
    headers = {
        "RateLimit-Policy": ", ".join(map(_policy, states)),
        "RateLimit": ", ".join(map(_left, states)),
    }
    if exchange.limited_by is not Source.SHARED:
        headers[DECIDED_BY] = exchange.limited_by.value
    if older:
        tightest = min(states, key=_remaining)
        headers["X-RateLimit-Limit"] = str(tightest.rule.most)
        headers["X-RateLimit-Remaining"] = str(_remaining(tightest))
        headers["X-RateLimit-Reset"] = str(_reset_s(tightest))
    return headers


def _policy(state: LimitState) -> str:
    rule = state.rule
    window = "" if rule.counts_places else f";w={_seconds(rule.burst_us)}"
    return f'"{rule.name}";q={rule.most}{_UNITS[rule.dimension]}{window}'


def _left(state: LimitState) -> str:
    until = "" if state.rule.counts_places else f";t={_reset_s(state)}"
    return f'"{state.rule.name}";r={_remaining(state)}{until}'


def _remaining(state: LimitState) -> int:
    if state.over:  # what is left is too little for this request
        return 0
    rule = state.rule
    return max(0, rule.most - state.used) if rule.counts_places else rule.remaining(state.used)


def _reset_s(state: LimitState) -> int:
    return 1 if state.rule.counts_places else _seconds(state.used)


def _seconds(time_us: int) -> int:
    return max(1, math.ceil(time_us / SECOND_US))
