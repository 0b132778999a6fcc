"""The gateway's own Prometheus metrics, `triton_gateway_*`.

Label values come from closed sets: a model or version is a label only once it has resolved.
Counters and histograms are fed by settled exchanges; what the fleet looks like is read from the
snapshot and the pool when somebody scrapes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway.exchange import INFERENCE, STAGES, Exchange, Hedge
from gateway.observe.admission import AdmissionCounts, AdmissionMetrics
from gateway.observe.callers import CallerCounts
from gateway.observe.families import counted, counter, gauge
from gateway.ports import ConfigState, CurrentView, Membership
from gateway.switches import Feature, Switches
from routing.pool import Pool
from routing.types import State

_Key = TypeVar("_Key")

_DURATION_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_OWN_TIME_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


class _Histogram:
    """One histogram without labels: counts by bucket, and the sum."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets, as Prometheus wants them."""
        names = [*map(repr, self.bounds), "+Inf"]
        return list(zip(names, accumulate(map(float, self.counts)), strict=True))


class RequestMetrics(Collector):
    """Counts settled requests; see `gateway.ports.Observer`.

    The numbers are kept in plain attributes and turned into families when somebody scrapes: a
    request costs a tenth of what it costs to count in prometheus_client's own objects.
    Servers that `is_known` denies have left, and their numbers with them: labels do not pile up.
    """

    def __init__(self, is_known: Callable[[str], bool] | None = None) -> None:
        self._is_known = is_known
        self._requests: dict[tuple[str, str, str, str], int] = {}
        self._durations: dict[str, _Histogram] = {}
        self._first_events: dict[str, _Histogram] = {}
        self._events: dict[str, int] = {}
        self._own_time = _Histogram(_OWN_TIME_BUCKETS_S)
        self._stages_s = dict.fromkeys(STAGES, 0.0)
        self._attempts: dict[str, int] = {}
        self._retries: dict[tuple[str, str], int] = {}
        self._hedges: dict[tuple[str, str], int] = {}
        self._detached: dict[str, int] = {}
        self._aliases: dict[tuple[str, str, str], int] = {}
        self._callers = CallerCounts()
        self._admissions = AdmissionCounts()
        self._bytes_in = self._bytes_out = 0

    def observe(self, exchange: Exchange) -> None:
        """Count one settled request."""
        key = (exchange.route, exchange.model, exchange.version, exchange.outcome)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._callers.observe(exchange)
        if exchange.route in INFERENCE and exchange.model:
            self._admissions.observe(exchange)
            self._observe_infer(exchange)

    def _observe_infer(self, exchange: Exchange) -> None:
        _histogram(self._durations, exchange.model).observe(exchange.duration_s)
        if exchange.route == "generate_stream" and exchange.first_event_s is not None:
            first_s = exchange.first_event_s - exchange.started_s
            _histogram(self._first_events, exchange.model).observe(first_s)
            self._events[exchange.model] = self._events.get(exchange.model, 0) + exchange.events
        self._own_time.observe(exchange.own_time_s)
        for stage, spent_s in exchange.spent_s.items():
            self._stages_s[stage] += spent_s
        self._bytes_in += exchange.bytes_in
        self._bytes_out += exchange.bytes_out
        for _, server in exchange.choices:
            _count(self._attempts, server)
        for kind in exchange.retried:
            _count(self._retries, (exchange.model, kind.value))
        for result in exchange.hedges:
            _count(self._hedges, (exchange.model, result.value))
        if exchange.alias:
            _count(self._aliases, (exchange.alias, exchange.model, exchange.version))
        if exchange.detached:
            _count(self._detached, exchange.server)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        self._forget_servers()
        requests = counter(
            "requests",
            "Requests answered, by route, resolved model and version, and outcome.",
            "route", "model", "version", "outcome",
        )  # fmt: skip
        for key, count in self._requests.items():
            requests.add_metric(key, count)
        yield requests
        yield from self._callers.collect()
        yield from self._admissions.collect()
        aliases = counter(
            "alias_requests",
            "Inference requests for an alias, by the version that was chosen.",
            "alias", "model", "version",
        )  # fmt: skip
        for arm, count in self._aliases.items():
            aliases.add_metric(arm, count)
        yield aliases
        yield from self._times()
        yield counted(
            "upstream_attempts", "Inference calls sent, by server.", self._attempts, "server"
        )
        yield from self._further_attempts()
        yield counted(
            "detached_calls",
            "Calls left running on a server after their caller was gone.",
            self._detached,
            "server",
        )
        yield counted(
            "stream_events", "Events of streams passed on, by model.", self._events, "model"
        )
        yield counted(
            "body_bytes",
            "Bytes of request (in) and response (out) bodies of inference requests.",
            {"in": self._bytes_in, "out": self._bytes_out},
            "direction",
        )

    def _forget_servers(self) -> None:
        if self._is_known is not None:
            for counts in (self._attempts, self._detached):
                for server in [name for name in counts if not self._is_known(name)]:
                    del counts[server]

    def _further_attempts(self) -> Iterator[Metric]:
        retries = counter(
            "retries",
            "Further attempts at a request, by the kind of failure that led to them.",
            "model", "reason",
        )  # fmt: skip
        for key, count in self._retries.items():
            retries.add_metric(key, count)
        yield retries
        hedges = counter(
            "hedges",
            "Times a second server was to be asked because the first was slow, by what came of it: "
            + ", ".join(Hedge) + ".",
            "model", "result",
        )  # fmt: skip
        for key, count in self._hedges.items():
            hedges.add_metric(key, count)
        yield hedges

    def _times(self) -> Iterator[Metric]:
        yield _by_model(
            "request_duration_seconds",
            "Time from the first byte of an inference request to its settlement.",
            self._durations,
        )
        yield _by_model(
            "time_to_first_event_seconds",
            "Time from the first byte of a generate_stream request to its first event.",
            self._first_events,
        )
        own = HistogramMetricFamily(
            "triton_gateway_own_time_seconds",
            "The gateway's own share of an inference request: all but waiting for the body and "
            "for a server.",
        )
        own.add_metric([], self._own_time.buckets(), self._own_time.sum_s)
        yield own
        yield counted(
            "stage_seconds",
            "Time spent in each stage of all inference requests.",
            self._stages_s,
            "stage",
        )


def _histogram(histograms: dict[str, _Histogram], model: str) -> _Histogram:
    found = histograms.get(model)
    if found is None:
        found = histograms[model] = _Histogram(_DURATION_BUCKETS_S)
    return found


def _by_model(name: str, text: str, histograms: Mapping[str, _Histogram]) -> Metric:
    family = HistogramMetricFamily(f"triton_gateway_{name}", text, labels=("model",))
    for model, histogram in histograms.items():
        family.add_metric([model], histogram.buckets(), histogram.sum_s)
    return family


def _count(counts: dict[_Key, int], key: _Key) -> None:
    counts[key] = counts.get(key, 0) + 1


class FleetMetrics(Collector):
    """The state of the fleet at the moment of a scrape."""

    def __init__(self, view: CurrentView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        view = self._view()
        servers = view.fleet.snapshot.servers.values()
        up = gauge("server_up", "1 if the server answers and may be sent requests.", "server")
        ready = gauge(
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
        yield from self._loads(view.pool)
        yield from self._health(view.pool)

    def _loads(self, pool: Pool) -> Iterator[Metric]:
        calls = gauge("server_in_flight_calls", "Inference calls on the server.", "server")
        rows = gauge("server_in_flight_rows", "Batch rows of these calls.", "server")
        detached = gauge(
            "server_detached_calls", "Those of them that nobody waits for any more.", "server"
        )
        for load in pool.loads.values():
            calls.add_metric([load.name], load.calls)
            rows.add_metric([load.name], load.rows)
            detached.add_metric([load.name], load.detached)
        yield calls
        yield rows
        yield detached

    def _health(self, pool: Pool) -> Iterator[Metric]:
        circuits = gauge(
            "circuits_open",
            "Circuits that are not closed: of a version on a server, or (model and version empty) "
            "of the server itself.",
            "server", "model", "version",
        )  # fmt: skip
        for of, breakers in pool.breakers().items():
            model, _, version = ("", "", "") if of == "server" else of.rpartition("/")
            for server in breakers:
                circuits.add_metric([server, model, version], 1.0)
        bad = gauge("version_bad", "1 for a version most of its servers fail.", "model", "version")
        for model, number in pool.bad_versions():
            bad.add_metric([model, str(number)], 1.0)
        yield circuits
        yield bad


class StoreMetrics(Collector):
    """The shared store, and the sequences kept there, at the moment of a scrape."""

    def __init__(self, view: CurrentView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        view = self._view()
        store = view.store
        up = gauge("store_up", "1 if the shared store answers.", "store")
        up.add_metric([store.kind], float(store.down_reason() is None))
        yield up
        failures = counter("store_failures", "Failed operations on the shared store.", "store")
        failures.add_metric([store.kind], store.failures)
        yield failures
        sequences = gauge("server_open_sequences", "Open sequences on the server.", "server")
        for server, count in view.sequences.by_server().items():
            sequences.add_metric([server], count)
        yield sequences


class LimitMetrics(Collector):
    """What the rate limits have decided."""

    def __init__(self, view: CurrentView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        limits = self._view().limits
        yield counted(
            "limit_decisions",
            "Decisions of each rate limit: allowed, denied, or (not enforced) observed.",
            limits.decisions(),
            "limit",
            "outcome",
        )
        yield counted(
            "limited_requests",
            "Requests under rate limits, by what has decided: the shared store or, while it is "
            "down, this process (local), nobody (open), a refusal (closed).",
            limits.sources(),
            "decided_by",
        )


class SwitchMetrics(Collector):
    """What operators have switched off."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches

    def collect(self) -> Iterator[Metric]:
        """Yield the family; called by the registry."""
        disabled = gauge(
            "feature_disabled", "1 while operators have switched the feature off.", "feature"
        )
        for feature in Feature:
            disabled.add_metric([feature], float(self._switches.disabled(feature)))
        yield disabled


class ConfigMetrics(Collector):
    """Which configuration is in force, and whether the last attempt to replace it failed."""

    def __init__(self, state: Callable[[], ConfigState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        state = self._state()
        ok = gauge(
            "config_last_reload_successful",
            "0 if the configuration was refused when it was last to be reloaded, else 1.",
        )
        ok.add_metric([], float(state.last_reload_ok))
        yield ok
        since = gauge(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was loaded.",
        )
        since.add_metric([], state.loaded_s)
        yield since
        info = gauge("config_info", "1 for the configuration in force.", "hash")
        info.add_metric([state.digest], 1.0)
        yield info


class DiscoveryMetrics(Collector):
    """How the sources of servers do at the moment of a scrape."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        up = gauge("discovery_up", "1 if the source's last answer was good.", "source")
        answered = gauge(
            "discovery_last_success_timestamp_seconds",
            "Unix time of the source's last good answer.",
            "source",
        )
        servers = gauge("discovery_servers", "Servers in use that come from it.", "source")
        for source in self._membership.sources():
            up.add_metric([source.name], float(source.up))
            servers.add_metric([source.name], source.servers)
            if source.answered_s is not None:
                answered.add_metric([source.name], source.answered_s)
        yield up
        yield answered
        yield servers


class Workers(Protocol):
    """The worker processes, as far as they are counted."""

    @property
    def ready(self) -> int:
        """How many are ready."""

    crashes: int
    """How many have ended without having been told to."""


class WorkerMetrics(Collector):
    """The worker processes at the moment of a scrape."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        ready = gauge("workers_ready", "Worker processes that accept connections.")
        ready.add_metric([], self._workers.ready)
        yield ready
        crashes = counter("worker_crashes", "Worker processes that ended by themselves.")
        crashes.add_metric([], self._workers.crashes)
        yield crashes


def make_registry(
    requests: RequestMetrics,
    view: CurrentView,
    config: Callable[[], ConfigState],
    membership: Membership,
    *more: Collector,
) -> CollectorRegistry:
    """Return a registry of its own: the process's metrics, the requests', the fleet's and more."""
    return registry_of(
        requests,
        FleetMetrics(view),
        StoreMetrics(view),
        LimitMetrics(view),
        AdmissionMetrics(view),
        ConfigMetrics(config),
        DiscoveryMetrics(membership),
        *more,
    )


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """Return a registry of its own: the process's metrics, and what is given."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    return registry
