"""Counts by tenant and class: whose requests were answered, who was refused and why.

Part of the requests' metrics, which tell it of each settled request. Tenants are a closed set:
those of the configuration, and "unknown" for callers that are none of them.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from gateway.exchange import Exchange
from gateway.observe.families import counted


class CallerCounts:
    """Counts settled requests by tenant."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._refusals: Counter[tuple[str, str, str]] = Counter()
        self._classes: Counter[tuple[str, str]] = Counter()
        self._overreaches: Counter[tuple[str, str, str]] = Counter()

    def observe(self, exchange: Exchange) -> None:
        """Count one settled request."""
        self._requests[exchange.tenant, exchange.model, exchange.outcome] += 1
        refusal = exchange.refusal
        if refusal is not None:
            self._refusals[refusal.tenant, refusal.reason, _mode(refusal.enforced)] += 1
        if exchange.classed:
            self._classes[exchange.priority_class.name, exchange.outcome] += 1
        wanted = exchange.overreach
        if wanted is not None:
            key = (exchange.tenant, wanted.objection.value, _mode(wanted.enforced))
            self._overreaches[key] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield counted(
            "tenant_requests",
            "Requests answered, by the tenant whose they are, resolved model and outcome.",
            self._requests,
            "tenant",
            "model",
            "outcome",
        )
        yield counted(
            "auth_refusals",
            "Requests of callers who were refused (mode enforce) or would have been (observe).",
            self._refusals,
            "tenant",
            "reason",
            "mode",
        )
        yield counted(
            "class_requests",
            "Inference requests with a priority class, by class and outcome.",
            self._classes,
            "class",
            "outcome",
        )
        yield counted(
            "priority_objections",
            "Requests for a class or priority that were lowered or refused (mode enforce), or would"
            " have been (observe).",
            self._overreaches,
            "tenant",
            "reason",
            "mode",
        )


def _mode(enforced: bool) -> str:
    return "enforce" if enforced else "observe"
