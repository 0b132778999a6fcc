"""The gateway's own metrics: counted once, with labels from closed sets only."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.exchange import STAGES, Exchange, Hedge, Overreach, Refusal
from gateway.faults import Fault, Kind, Origin
from gateway.observe.metrics import RequestMetrics, make_registry
from gateway.ports import ConfigState, CoreView, CurrentView, SourceStatus
from gateway.stores.memory import MemoryStore
from routing.classes import SHEDDABLE
from routing.fleet import FleetSnapshot, FleetTable, ModelRow, ModelVersion
from routing.pool import Pool
from routing.priorities import Objection
from routing.types import Server, State
from tests.limits.building import limits_desk
from tests.unit.gateway.fleets import Sources
from tests.unit.routing.building import pool_of, route


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
def registry(metrics: RequestMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


def settled(route: str = "infer", *, fault: Fault | None = None, **fields: Any) -> Exchange:
    """A request of 3 s: 1 to receive, 2 to send."""
    now = [0.0]
    exchange = Exchange("r", "caller", route, lambda: now[0], 0.0, fault=fault)
    for name, value in fields.items():
        setattr(exchange, name, value)
    for stage, passed_s in (("send", 1.0), ("settle", 2.0)):
        now[0] += passed_s
        exchange.enter(stage)
    exchange.end()
    return exchange


def answered(route: str = "infer", **fields: Any) -> Exchange:
    known = {"model": "m", "version": "1", "server": "a", "attempts": 1}
    known["choices"] = [(None, fields.get("server", "a"))]
    return settled(route, **{**known, **fields})


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name: label values in the order of their names, to value."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"triton_gateway_{name}"
    }


def labels(registry: CollectorRegistry) -> set[str]:
    return {
        value
        for family in registry.collect()
        for sample in family.samples
        for value in sample.labels.values()
    }


def test_requests_are_counted_by_what_became_of_them(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    failed = Fault(Kind.FAILED, "x", origin=Origin.UPSTREAM)
    for exchange in (answered(), answered(), answered(fault=failed), settled("live")):
        metrics.observe(exchange)
    assert samples(registry, "requests_total") == {
        ("m", "ok", "infer", "1"): 2,
        ("m", "failed", "infer", "1"): 1,
        ("", "ok", "live", ""): 1,
    }


def test_an_inference_is_timed_by_model_and_by_stage(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.observe(answered(bytes_in=10, bytes_out=20))
    metrics.observe(answered(bytes_in=1, bytes_out=2))
    assert samples(registry, "request_duration_seconds_count") == {("m",): 2}
    assert samples(registry, "request_duration_seconds_sum") == {("m",): 6.0}
    assert samples(registry, "own_time_seconds_sum") == {(): 0.0}
    stages = samples(registry, "stage_seconds_total")
    assert set(stages) == {(stage,) for stage in STAGES}
    assert (stages["receive",], stages["send",], stages["decode",]) == (2.0, 4.0, 0.0)
    assert samples(registry, "body_bytes_total") == {("in",): 11, ("out",): 22}


def test_streams_are_timed_to_their_first_event_and_their_events_counted(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.observe(answered("generate_stream", first_event_s=0.5, events=3))
    metrics.observe(answered("generate_stream", first_event_s=1.5, events=2))
    metrics.observe(answered("generate_stream"))  # it had none
    metrics.observe(answered("generate", first_event_s=2.5, events=1))  # is no stream
    assert samples(registry, "time_to_first_event_seconds_count") == {("m",): 2}
    assert samples(registry, "time_to_first_event_seconds_sum") == {("m",): 2.0}
    assert samples(registry, "stream_events_total") == {("m",): 5}
    assert samples(registry, "request_duration_seconds_count") == {("m",): 4}


def test_attempts_are_counted_by_the_server_they_went_to(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.observe(answered(server="b", choices=[(None, "a"), (None, "b")]))
    metrics.observe(answered(server="b", choices=[(None, "b")], detached=True))
    assert samples(registry, "upstream_attempts_total") == {("a",): 1, ("b",): 2}
    assert samples(registry, "detached_calls_total") == {("b",): 1}


def test_further_attempts_are_counted_by_what_led_to_them(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.observe(answered(retried=(Kind.BROKEN, Kind.NOT_READY)))
    metrics.observe(answered(retried=(Kind.BROKEN,), hedges=(Hedge.WON, Hedge.NO_BUDGET)))
    metrics.observe(answered(hedges=(Hedge.WON,)))
    assert samples(registry, "retries_total") == {("m", "broken"): 2, ("m", "not_ready"): 1}
    assert samples(registry, "hedges_total") == {("m", "won"): 2, ("m", "no_budget"): 1}


def test_what_did_not_resolve_is_only_counted(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    before = labels(registry)
    metrics.observe(settled(fault=Fault(Kind.NOT_FOUND, "typed", origin=Origin.CLIENT)))
    metrics.observe(settled("unknown", fault=Fault(Kind.NOT_FOUND, "x", origin=Origin.CLIENT)))
    assert samples(registry, "requests_total") == {
        ("", "not_found", "infer", ""): 1,
        ("", "not_found", "unknown", ""): 1,
    }
    assert samples(registry, "request_duration_seconds_count") == {}
    assert labels(registry) - before == {"", "not_found", "infer", "unknown", "anonymous"}


class Fleet:
    """A fleet of one server that is up and one that is not."""

    def __init__(self) -> None:
        self.table = FleetTable(map(Server, "ab"), quorum=0.5, recently_ready_s=10.0)
        ready, gone = ModelVersion("m", 1), ModelVersion("m", 2)
        self.table.observe_ready("a", [ready], asked_s=0.0, now_s=0.0)
        rows: Mapping[ModelVersion, ModelRow] = {gone: ModelRow(State.UNAVAILABLE, "why")}
        self.table.observe_index("a", rows, [], now_s=0.0)
        self.table.server_up("a", server_id="a", triton_version="2.58.0", now_s=0.0)

    def view(self, pool: Pool) -> CurrentView:
        rest = {name: mock.Mock() for name in ("channels", "aliases", "pages", "priorities")}
        store = MemoryStore(lambda: 0.0, max_entries=1)
        limits = limits_desk(self, lambda: 0.0)
        return lambda: CoreView(
            fleet=self, pool=pool, sequences=self, store=store, limits=limits, **rest
        )

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.table.snapshot

    def by_server(self) -> Mapping[str, int]:
        return {"b": 7}

    def unreachable(self, server: str, reason: str) -> None:
        raise AssertionError

    def not_ready(self, server: str, key: ModelVersion, reason: str) -> None:
        raise AssertionError


def config_state() -> ConfigState:
    return ConfigState("abc", loaded_s=12.0, last_reload_ok=False)


@pytest.fixture
def pool() -> Pool:
    return pool_of("ab", max_detached_calls=9)


def test_the_fleet_is_read_when_somebody_scrapes(pool: Pool) -> None:
    registry = make_registry(RequestMetrics(), Fleet().view(pool), config_state, Sources())
    assert samples(registry, "server_up") == {("a",): 1, ("b",): 0}
    assert samples(registry, "model_ready") == {("m", "a", "1"): 1, ("m", "a", "2"): 0}
    lease = pool.pick(route("a"), now_s=0.0, rows=5)
    lease.detach()
    assert samples(registry, "server_in_flight_calls") == {("a",): 1, ("b",): 0}
    assert samples(registry, "server_in_flight_rows") == {("a",): 5, ("b",): 0}
    assert samples(registry, "server_detached_calls") == {("a",): 1, ("b",): 0}
    lease.release()
    assert samples(registry, "server_in_flight_rows") == {("a",): 0, ("b",): 0}


def test_the_page_can_be_parsed_and_tells_of_the_process_too(pool: Pool) -> None:
    requests = RequestMetrics()
    registry = make_registry(requests, Fleet().view(pool), config_state, Sources())
    requests.observe(answered())
    page = generate_latest(registry).decode()
    names = {family.name for family in text_string_to_metric_families(page)}
    assert {"triton_gateway_requests", "triton_gateway_server_up"} <= names
    assert "process_resident_memory_bytes" in names


def test_the_configuration_in_force_and_the_last_attempt_to_replace_it(pool: Pool) -> None:
    registry = make_registry(RequestMetrics(), Fleet().view(pool), config_state, Sources())
    assert samples(registry, "config_last_reload_successful") == {(): 0}
    assert samples(registry, "config_last_reload_success_timestamp_seconds") == {(): 12}
    assert samples(registry, "config_info") == {("abc",): 1}


def test_two_gateways_in_one_process_count_apart(pool: Pool) -> None:
    counting = RequestMetrics()
    one = make_registry(counting, Fleet().view(pool), config_state, Sources())
    other = make_registry(RequestMetrics(), Fleet().view(pool), config_state, Sources())
    counting.observe(answered())
    assert len(samples(one, "requests_total")) == 1
    assert samples(other, "requests_total") == {}


def test_the_store_and_the_open_sequences_are_read_too(pool: Pool) -> None:
    registry = make_registry(RequestMetrics(), Fleet().view(pool), config_state, Sources())
    assert samples(registry, "store_up") == {("memory",): 1}
    assert samples(registry, "store_failures_total") == {("memory",): 0}
    assert samples(registry, "server_open_sequences") == {("b",): 7}


def test_servers_that_have_left_are_no_label_any_more() -> None:
    """However late their last requests are settled."""
    there = {"a", "b"}
    metrics = RequestMetrics(there.__contains__)
    registry = CollectorRegistry()
    registry.register(metrics)
    metrics.observe(answered(server="a"))
    metrics.observe(answered(server="b", detached=True))
    assert samples(registry, "upstream_attempts_total") == {("a",): 1, ("b",): 1}
    there.remove("b")
    metrics.observe(answered(server="b", detached=True))
    assert samples(registry, "upstream_attempts_total") == {("a",): 1}
    assert samples(registry, "detached_calls_total") == {}
    metrics.observe(answered(server="a"))
    assert samples(registry, "upstream_attempts_total") == {("a",): 2}


def test_the_sources_of_servers_are_read_when_somebody_scrapes(pool: Pool) -> None:
    good = SourceStatus("good", True, None, 1e9, servers=3, kept=["x"])
    never = SourceStatus("never", False, "away", None, servers=0, kept=[])
    registry = make_registry(
        RequestMetrics(), Fleet().view(pool), config_state, Sources(good, never)
    )
    assert samples(registry, "discovery_up") == {("good",): 1, ("never",): 0}
    assert samples(registry, "discovery_servers") == {("good",): 3, ("never",): 0}
    assert samples(registry, "discovery_last_success_timestamp_seconds") == {("good",): 1e9}


# --- callers


def test_requests_are_counted_by_tenant_and_refusals_by_who_and_why(
    registry: CollectorRegistry, metrics: RequestMetrics
) -> None:
    metrics.observe(answered(tenant="a"))
    metrics.observe(answered(tenant="a"))
    metrics.observe(answered(refusal=Refusal("unknown_key", "unknown", enforced=False)))
    metrics.observe(settled(refusal=Refusal("expired", "a", enforced=True)))
    assert samples(registry, "tenant_requests_total") == {
        ("m", "ok", "a"): 2,
        ("m", "ok", "anonymous"): 1,
        ("", "ok", "anonymous"): 1,
    }
    assert samples(registry, "auth_refusals_total") == {
        ("observe", "unknown_key", "unknown"): 1,
        ("enforce", "expired", "a"): 1,
    }


def test_requests_are_counted_by_class_and_who_wanted_more(
    metrics: RequestMetrics, registry: CollectorRegistry
) -> None:
    metrics.observe(answered())  # has none
    for _ in range(2):
        metrics.observe(answered(classed=True, priority_class=SHEDDABLE))
    for enforced in (True, False):
        wanted = Overreach(Objection.LOWERED, "class critical", enforced=enforced)
        metrics.observe(answered(classed=True, tenant="a", overreach=wanted))
    assert samples(registry, "class_requests_total") == {
        ("sheddable", "ok"): 2.0,
        ("standard", "ok"): 2.0,
    }
    assert samples(registry, "priority_objections_total") == {
        ("enforce", "lowered", "a"): 1.0,
        ("observe", "lowered", "a"): 1.0,
    }
