"""Rate limits as requests meet them: who comes under which, and what a refusal says.

Decides which rules of the configuration in force apply to a request, what it costs, and how long it
holds its places. Refuses to know how limits are counted (`limiter` does) and how an answer looks.
Called by the pipeline in the stage `admit`.
"""

import math
from collections.abc import Sequence
from types import TracebackType

from gateway.codec.types import InferCall
from gateway.exchange import Exchange
from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin
from gateway.limits.limiter import Limiter
from gateway.limits.verdict import Verdict, Wanted
from gateway.places import Places
from gateway.switches import Feature, Switches
from routing.limits import SECOND_US, Applied, Cost, Dimension, Rule, RuleBook, Source

_SHED = frozenset({Kind.OVERLOADED, Kind.NOT_READY, Kind.UNREACHABLE, Kind.DRAINING, Kind.SHUTDOWN})


def cost_of(call: InferCall, *, batches: bool) -> Cost:
    """Return what a call costs; a model that does not batch has one row."""
    input_bytes = elements = 0
    for tensor in call.inputs:
        input_bytes += len(tensor.raw)
        elements += math.prod(tensor.shape)
    return Cost(call.rows() if batches else 1, input_bytes, elements)


class RateLimits:
    """Lets requests through, one at a time, within the rules of one configuration.

    While limits are switched off, the rules only count.
    """

    def __init__(self, rules: RuleBook, limiter: Limiter, switches: Switches) -> None:
        self._rules = rules
        self._observed = rules.observed()
        self._limiter = limiter
        self._switches = switches

    def applied(self, exchange: Exchange) -> Sequence[Applied]:
        """Return the rules a request, which has been resolved, comes under."""
        rules = self._observed if self._switches.disabled(Feature.LIMITS) else self._rules
        return rules.applied(exchange.tenant, exchange.tier, exchange.model)

    def admit(self, exchange: Exchange, applied: Sequence[Applied], cost: Cost) -> "Passage":
        """Return what lets a request through for the length of a block. Raises Fault."""
        return Passage(self._limiter, exchange, _wanted(applied, cost))


class Passage:
    """Lets a request through for the length of a block, or raises Fault at its beginning.

    Its places are free when the block has ended, and so has every call that was left with
    `exchange.until_ended`. A request the block refuses before it was sent is not charged.
    """

    __slots__ = ("_exchange", "_limiter", "_places", "_verdict", "_wanted")

    def __init__(self, limiter: Limiter, exchange: Exchange, wanted: Sequence[Wanted]) -> None:
        self._limiter = limiter
        self._exchange = exchange
        self._wanted = wanted
        self._places: Places | None = None

    async def __aenter__(self) -> None:
        verdict = self._verdict = await self._limiter.decide(self._wanted)
        exchange = self._exchange
        exchange.limits = tuple([state for state in verdict.states if state.rule.enforce])
        exchange.limited_by = verdict.source
        if verdict.refused:
            raise _refusal(verdict)
        if verdict.places:
            self._places = exchange.places = Places(lambda: self._limiter.free(verdict))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Fault) and not self._exchange.attempts and error.kind in _SHED:
            self._limiter.refund(self._verdict)
        if self._places is not None:
            self._places.drop()


def _wanted(applied: Sequence[Applied], cost: Cost) -> list[Wanted]:
    """Return what is wanted. Raises Fault for what no quota could ever have room for."""
    wanted = []
    for each in applied:
        rule = each.rule
        if rule.counts_places:
            wanted.append(Wanted(rule, each.key, 0))
            continue
        units = cost.units(rule.dimension)
        if units > rule.most and rule.enforce:
            raise Fault.invalid(
                f"limit '{rule.name}' lets at most {rule.most} {_UNITS[rule.dimension]} through at"
                f" once, and this request has {units}; split it"
            )
        wanted.append(Wanted(rule, each.key, rule.cost_us(units)))
    return wanted


_UNITS = {
    Dimension.REQUESTS: "requests",
    Dimension.ROWS: "batch rows",
    Dimension.INPUT_BYTES: "bytes of inputs",
    Dimension.ELEMENTS: "elements of inputs",
    Dimension.CONCURRENT: "requests",
}


def _refusal(verdict: Verdict) -> Fault:
    rule = verdict.refused_by
    assert rule is not None
    if verdict.source is Source.CLOSED:
        return Fault(
            Kind.NOT_READY,
            f"limit '{rule.name}' cannot be checked at the moment",
            origin=Origin.GATEWAY,
            detail="the shared store is down",
            retry_after_s=RETRY_AFTER_S,
        )
    wait_s = max(1, math.ceil(verdict.wait_us / SECOND_US))
    return Fault(
        Kind.LIMITED,
        f"limit '{rule.name}' of {_quota(rule)} is reached; try again in {wait_s} s",
        origin=Origin.CLIENT,
        retry_after_s=wait_s,
    )


def _quota(rule: Rule) -> str:
    units = _UNITS[rule.dimension]
    if rule.counts_places:
        return f"{rule.most} {units} at a time"
    per_s = rule.per_s
    return f"{per_s:g} {units} a second" if per_s >= 1 else f"{per_s * 60:g} {units} a minute"
