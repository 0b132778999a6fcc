"""Metrics of many processes as one page."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.metrics import RequestMetrics, registry_of
from gateway.observe.pages import Pages, page, render


class Process:
    """One process's counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "-", ["route"], registry=self.registry)
        self.seconds = Histogram("seconds", "-", buckets=(1.0,), registry=self.registry)
        self.running = Gauge("running", "-", registry=self.registry)


def values(text: bytes) -> Mapping[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_a_page_of_one_process_is_what_it_exposes() -> None:
    one = Process()
    one.requests.labels("infer").inc(3)
    one.seconds.observe(0.5)
    pages = Pages()
    pages.take(1, page(one.registry))
    assert values(render(pages.total())) == {
        "requests_total[('route', 'infer')]": 3,
        "seconds_bucket[('le', '1.0')]": 1,
        "seconds_bucket[('le', '+Inf')]": 1,
        "seconds_count[]": 1,
        "seconds_sum[]": 0.5,
        "running[]": 0,
    }


def test_workers_are_added_up_label_for_label() -> None:
    one, other, pages = Process(), Process(), Pages()
    one.requests.labels("infer").inc(3)
    one.running.set(2)
    other.requests.labels("infer").inc(4)
    other.requests.labels("index").inc()
    other.running.set(5)
    pages.take(1, page(one.registry))
    pages.take(2, page(other.registry))
    found = values(render(pages.total()))
    assert found["requests_total[('route', 'infer')]"] == 7
    assert found["requests_total[('route', 'index')]"] == 1
    assert found["running[]"] == 7


def test_a_later_page_replaces_the_earlier() -> None:
    one, pages = Process(), Pages()
    for _ in range(3):
        one.requests.labels("infer").inc()
        pages.take(1, page(one.registry))
    assert values(render(pages.total()))["requests_total[('route', 'infer')]"] == 3


def test_of_an_ended_worker_the_counts_stay_and_the_gauges_go() -> None:
    one, other, pages = Process(), Process(), Pages()
    one.requests.labels("infer").inc(3)
    one.seconds.observe(2.0)
    one.running.set(2)
    pages.take(1, page(one.registry))
    pages.end(1)
    pages.take(2, page(other.registry))
    found = values(render(pages.total()))
    assert found["requests_total[('route', 'infer')]"] == 3
    assert found["seconds_count[]"] == 1
    assert found["running[]"] == 0


def test_sums_do_not_go_back_by_rounding_when_a_worker_ends() -> None:
    one, other, third, pages = Process(), Process(), Process(), Pages()
    for number, (process, amount) in enumerate(((one, 0.1), (other, 0.2), (third, 0.3))):
        process.requests.labels("infer").inc(amount)
        pages.take(number, page(process.registry))
    key = "requests_total[('route', 'infer')]"
    before = values(render(pages.total()))[key]
    for number in (2, 1, 0):
        pages.end(number)
        assert values(render(pages.total()))[key] >= before


def test_a_worker_that_never_reported_leaves_nothing() -> None:
    pages = Pages()
    pages.end(7)
    assert pages.total() == {}


def test_what_belongs_to_one_process_is_shown_of_this_one_only() -> None:
    own = page(registry_of())
    pages = Pages()
    pages.take(1, page(registry_of(RequestMetrics())))
    found = values(render(own, pages.total()))
    start = "process_start_time_seconds[]"
    assert (
        found[start] == own["process_start_time_seconds"].values["process_start_time_seconds", ()]
    )
    assert found["process_resident_memory_bytes[]"] > 1.5 * next(
        iter(own["process_resident_memory_bytes"].values.values())
    )
    assert "triton_gateway_body_bytes_total[('direction', 'in')]" in found
