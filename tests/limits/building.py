"""Rules, and limiters over any store, for tests of rate limits."""

import uuid
from collections.abc import Callable
from typing import Any

from gateway.limits.desk import LimitsDesk
from gateway.limits.held import LeaseTimes
from gateway.limits.limiter import Limiter
from gateway.limits.verdict import Wanted
from gateway.ports import Fleet, QuotaStore
from gateway.stores.quotas import MemoryQuotas
from routing.limits import Dimension, Rule, RuleBook


def rate(per_s: float, most: int, name: str = "rate", **rest: Any) -> Rule:
    """A limit of requests a second."""
    return Rule(name, rest.pop("dimension", Dimension.REQUESTS), most, per_s, **rest)


def at_a_time(most: int, name: str = "places", **rest: Any) -> Rule:
    """A limit of requests at a time."""
    return Rule(name, Dimension.CONCURRENT, most, **rest)


def wanted(rule: Rule, tenant: str = "a", *, units: int = 1, model: str = "m") -> Wanted:
    """What a request of a tenant wants of a rule."""
    cost_us = 0 if rule.counts_places else rule.cost_us(units)
    return Wanted(rule, rule.key(tenant, model), cost_us)


def limiter(
    store: QuotaStore,
    clock: Callable[[], float],
    *,
    down: Callable[[], str | None] = lambda: None,
    **times: float,
) -> Limiter:
    """A limiter of a gateway of its own."""
    return Limiter(store, me=uuid.uuid4().hex, down=down, clock=clock, times=LeaseTimes(**times))


def limits_desk(fleet: Fleet, clock: Callable[[], float], *rules: Rule) -> LimitsDesk:
    """What operators see of limits that nobody has used yet."""
    limits = limiter(MemoryQuotas(clock), clock)
    return LimitsDesk(
        RuleBook(rules), limits, fleet, tier_of=lambda _: "", log=lambda *_, **__: None
    )
