"""What operators see of the rate limits, and the reset of a tenant's.

Knows the rules of one configuration and what the limiter has decided under all of them. Called by
the ops listener and the metrics.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.limits.limiter import Limiter
from gateway.limits.verdict import Wanted
from gateway.ports import Fleet
from routing.limits import SECOND_US, Per, Rule, RuleBook
from routing.quota import Counted


class LimitsDesk:
    """See `gateway.ports.LimitsDesk`; `log` writes the audit."""

    def __init__(
        self,
        rules: RuleBook,
        limiter: Limiter,
        fleet: Fleet,
        *,
        tier_of: Callable[[str], str],
        log: Callable[..., Any],
    ) -> None:
        self._rules = rules
        self._limiter = limiter
        self._fleet = fleet
        self._tier_of = tier_of
        self._log = log

    def view(self) -> Mapping[str, Any]:
        """Return the rules, and how decisions are made at the moment."""
        down = self._limiter.down_reason()
        return {
            "decided_by": "the shared store" if down is None else "on_store_failure of each rule",
            "gateways": self._limiter.gateways,
            "places_held": self._limiter.places,
            "decisions": dict(self._limiter.sources),
            "rules": [_rule(rule) for rule in self._rules.rules],
        }

    def decisions(self) -> Mapping[tuple[str, str], int]:
        """Return how often each rule has `allowed`, `denied` or `observed`."""
        return self._limiter.decisions

    def sources(self) -> Mapping[str, int]:
        """Return how many decisions were made by what."""
        return self._limiter.sources

    async def show(self, tenant: str) -> Mapping[str, Any]:
        """Return what a tenant has used up, under every rule that concerns it. Raises StoreDown."""
        wanted = self._quotas(tenant)
        counted = await self._limiter.peek(list(wanted.values())) if wanted else []
        quotas = [
            {"limit": each.rule.name, "model": model, **_used(each.rule, said)}
            for ((_, model), each), said in zip(wanted.items(), counted, strict=True)
        ]
        return {"tenant": tenant, "quotas": quotas}

    async def reset(self, tenant: str, *, by: str) -> Mapping[str, Any]:
        """Give a tenant its whole quotas back; those it shares with others stay as they are."""
        quotas = self._quotas(tenant).values()
        own = [each for each in quotas if each.rule.per is not Per.GLOBAL]
        await self._limiter.reset([each.key for each in own])
        names = sorted({each.rule.name for each in own})
        self._log("limits reset", tenant=tenant, limits=names, by=by)
        return {"tenant": tenant, "reset": names, "warnings": []}

    def _quotas(self, tenant: str) -> dict[tuple[str, str | None], Wanted]:
        """Return the quotas of a tenant, by rule and, where each has its own, model."""
        found: dict[tuple[str, str | None], Wanted] = {}
        tier = self._tier_of(tenant)
        for model in sorted(self._fleet.snapshot.models):
            for each in self._rules.applied(tenant, tier, model):
                own = model if each.rule.per is Per.TENANT_MODEL else None
                found[each.rule.name, own] = Wanted(each.rule, each.key, 0)
        return found


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "limits": rule.dimension.value,
        "most": rule.most,
        **({} if rule.counts_places else {"per_s": rule.per_s}),
        "per": rule.per.value,
        "mode": "enforce" if rule.enforce else "observe",
        "on_store_failure": rule.on_failure.value,
    }


def _used(rule: Rule, said: Counted) -> dict[str, Any]:
    if rule.counts_places:
        return {"limits": rule.dimension.value, "most": rule.most, "taken": said.used}
    return {
        "limits": rule.dimension.value,
        "most": rule.most,
        "remaining": rule.remaining(said.used),
        "full_again_s": round(said.used / SECOND_US, 3),
    }
