"""What admission has decided, how much waits, and the limits of the servers.

Classes are a closed set, those of the configuration; so are tenants, see `gateway.observe.callers`.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.exchange import Admitted, Exchange
from gateway.observe.families import counted, gauge
from gateway.ports import CurrentView


class AdmissionCounts:
    """Counts settled requests by what admission did; part of the requests' metrics."""

    def __init__(self) -> None:
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._tenants: Counter[tuple[str, str, str]] = Counter()
        self._queued_s: dict[str, float] = {}

    def observe(self, exchange: Exchange) -> None:
        """Count one settled request."""
        outcome = exchange.admission
        if outcome is None:
            return
        kind = exchange.priority_class.name
        self._decisions[kind, outcome.value] += 1
        if outcome is not Admitted.PASSED:
            self._tenants[exchange.tenant, kind, outcome.value] += 1
            self._queued_s[kind] = self._queued_s.get(kind, 0.0) + exchange.queued_s

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield counted(
            "admission_decisions",
            "Inference requests by what became of them while they needed room on a server; would_* "
            "is what was only observed.",
            self._decisions,
            "class",
            "outcome",
        )
        yield counted(
            "admission_tenant_requests",
            "Those of them that found no room, by tenant.",
            self._tenants,
            "tenant",
            "class",
            "outcome",
        )
        yield counted(
            "admission_queued_seconds",
            "Time inference requests have waited for room on a server.",
            self._queued_s,
            "class",
        )


class AdmissionMetrics(Collector):
    """The queues and the limits at the moment of a scrape; nothing while admission is off."""

    def __init__(self, view: CurrentView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        view = self._view()
        if view.admission.mode == "off":
            return
        queued = gauge(
            "admission_queued",
            "Inference requests that wait for room on a server.",
            "model",
            "class",
        )
        for model, waiting in view.admission.queued().items():
            for kind, count in waiting.items():
                queued.add_metric((model, kind), count)
        yield queued
        limits = gauge(
            "admission_limit_rows",
            "Batch rows of a model that a server is given at a time.",
            "server",
            "model",
        )
        in_flight = gauge(
            "admission_in_flight_rows",
            "Batch rows of a model in flight on a server.",
            "server",
            "model",
        )
        for (server, name), room in view.pool.limits().items():
            limits.add_metric((server, name), room.limit)
            in_flight.add_metric((server, name), room.in_flight)
        yield limits
        yield in_flight
