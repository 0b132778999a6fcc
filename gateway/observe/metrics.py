"""The gateway's own Prometheus metrics, `triton_gateway_*`.

Label values come from closed sets: a model or version is a label only once it has resolved.
Counters and histograms are fed by settled exchanges; what the fleet looks like is read from the
snapshot and the pool when somebody scrapes.
"""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.exchange import STAGES, Exchange
from gateway.ports import Fleet
from routing.pool import Pool
from routing.types import State

_DURATION_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_OWN_TIME_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


def make_registry(fleet: Fleet, pool: Pool) -> CollectorRegistry:
    """Return a registry of its own, with the process's and the fleet's metrics in it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(FleetMetrics(fleet, pool))
    return registry


class RequestMetrics:
    """Counts settled requests; see `gateway.ports.Observer`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "triton_gateway_requests",
            "Requests answered, by route, resolved model and version, and outcome.",
            ("route", "model", "version", "outcome"),
            registry=registry,
        )
        self._duration = Histogram(
            "triton_gateway_request_duration_seconds",
            "Time from the first byte of an inference request to its settlement.",
            ("model",),
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )
        self._own_time = Histogram(
            "triton_gateway_own_time_seconds",
            "The gateway's own share of an inference request: all but waiting for the body and "
            "for a server.",
            buckets=_OWN_TIME_BUCKETS_S,
            registry=registry,
        )
        self._stage = Counter(
            "triton_gateway_stage_seconds",
            "Time spent in each stage of all inference requests.",
            ("stage",),
            registry=registry,
        )
        self._attempts = Counter(
            "triton_gateway_upstream_attempts",
            "Inference calls sent to servers, by the server of the last attempt.",
            ("server",),
            registry=registry,
        )
        self._abandoned = Counter(
            "triton_gateway_detached_calls",
            "Calls left running on a server after their caller was gone.",
            ("server",),
            registry=registry,
        )
        self._bytes = Counter(
            "triton_gateway_body_bytes",
            "Bytes of request (in) and response (out) bodies of inference requests.",
            ("direction",),
            registry=registry,
        )
        self._stages = {stage: self._stage.labels(stage) for stage in STAGES}
        self._bytes_in = self._bytes.labels("in")
        self._bytes_out = self._bytes.labels("out")
        # Looking a child up by its labels costs more than counting with it.
        self._durations: dict[str, Histogram] = {}
        self._counted: dict[tuple[str, str, str, str], Counter] = {}

    def observe(self, exchange: Exchange) -> None:
        """Count one settled request."""
        key = (exchange.route, exchange.model, exchange.version, exchange.outcome)
        counter = self._counted.get(key)
        if counter is None:
            counter = self._counted[key] = self._requests.labels(*key)
        counter.inc()
        if exchange.route == "infer" and exchange.model:
            self._observe_infer(exchange)

    def _observe_infer(self, exchange: Exchange) -> None:
        duration = self._durations.get(exchange.model)
        if duration is None:
            duration = self._durations[exchange.model] = self._duration.labels(exchange.model)
        duration.observe(exchange.duration_s)
        self._own_time.observe(exchange.own_time_s)
        for stage, spent_s in exchange.spent_s.items():
            self._stages[stage].inc(spent_s)
        self._bytes_in.inc(exchange.bytes_in)
        self._bytes_out.inc(exchange.bytes_out)
        if exchange.attempts:
            self._attempts.labels(exchange.server).inc()
        for tried in exchange.tried - {exchange.server}:
            self._attempts.labels(tried).inc()
        if exchange.detached:
            self._abandoned.labels(exchange.server).inc()


class FleetMetrics(Collector):
    """The state of the fleet at the moment of a scrape."""

    def __init__(self, fleet: Fleet, pool: Pool) -> None:
        self._fleet = fleet
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        servers = self._fleet.snapshot.servers.values()
        up = _family("server_up", "1 if the server answers and may be sent requests.", "server")
        ready = _family(
            "model_ready",
            "1 if the server has this version ready, 0 if it knows it and has not.",
            "server", "model", "version",
        )  # fmt: skip
        for row in servers:
            up.add_metric([row.name], float(row.up))
            for (model, version), state in row.models.items():
                ready.add_metric([row.name, model, str(version)], float(state.state is State.READY))
        yield up
        yield ready
        yield from self._loads()

    def _loads(self) -> Iterator[Metric]:
        calls = _family("server_in_flight_calls", "Inference calls on the server.", "server")
        rows = _family("server_in_flight_rows", "Batch rows of these calls.", "server")
        detached = _family(
            "server_detached_calls", "Those of them that nobody waits for any more.", "server"
        )
        for load in self._pool.loads.values():
            calls.add_metric([load.name], load.calls)
            rows.add_metric([load.name], load.in_flight)
            detached.add_metric([load.name], load.detached)
        yield calls
        yield rows
        yield detached


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"triton_gateway_{name}", text, labels=labels)
