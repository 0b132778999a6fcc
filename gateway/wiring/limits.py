"""The rate limits of a configuration, as rules."""

import math
from collections.abc import Callable

from config.limits import Limit
from config.models import Config
from routing.limits import Dimension, OnFailure, Per, Rule, RuleBook


def rules_of(config: Config) -> RuleBook:
    """Build the rules."""
    return RuleBook([_rule(name, limit) for name, limit in config.limits.items()])


def tier_of(config: Config) -> Callable[[str], str]:
    """Return what tells the tier of a tenant, "" for none."""

    def tier(tenant: str) -> str:
        known = config.tenants.get(tenant)
        return (known.tier if known else None) or ""

    return tier


def _rule(name: str, limit: Limit) -> Rule:
    per_s = limit.per_s or (limit.per_minute or 0.0) / 60
    return Rule(
        name,
        Dimension(limit.of) if limit.concurrent is None else Dimension.CONCURRENT,
        most=limit.concurrent or limit.burst or max(1, math.ceil(per_s)),
        per_s=per_s,
        tenants=limit.tenants or (),
        tiers=limit.tiers or (),
        models=limit.models or (),
        per=Per(limit.per),
        enforce=limit.mode == "enforce",
        on_failure=OnFailure(limit.on_store_failure),
    )
