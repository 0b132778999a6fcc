"""Usage as Prometheus metrics, and what a server's statistics say of compute time."""

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb

from gateway.observe.metrics import registry_of
from gateway.observe.usage import UsageMetrics
from gateway.upstream.prober import _executed
from routing.shares import Executed
from routing.usage import Amounts


def test_every_unit_is_a_counter_by_tenant_and_model() -> None:
    totals = {("acme", 'a"b'): Amounts(1, 2, 3, 4, 5, 6_500_000), ("b", "m"): Amounts(requests=9)}
    page = generate_latest(registry_of(UsageMetrics(lambda: totals))).decode()
    found = {
        (sample.name, sample.labels["tenant"], sample.labels["model"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("triton_gateway_usage_")
    }
    units = ("requests", "errors", "rows", "input_bytes", "output_bytes", "compute_seconds")
    assert {
        f"triton_gateway_usage_{unit}_total": value
        for unit, value in zip(units, (1, 2, 3, 4, 5, 6.5), strict=True)
    } == {name: value for (name, tenant, _), value in found.items() if tenant == "acme"}
    assert found["triton_gateway_usage_requests_total", "b", "m"] == 9
    assert len(found) == 12


def test_the_time_of_a_batch_counts_once_however_many_requests_are_in_it() -> None:
    """Two requests of three rows together, then one: as a server (2.51) has counted it."""
    row = pb.ModelStatistics(
        name="m",
        version="1",
        inference_count=4,
        execution_count=2,
        inference_stats=pb.InferStatistics(
            compute_infer=pb.StatisticDuration(count=3, ns=659_258_012),
            cache_hit=pb.StatisticDuration(count=2, ns=5),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size, compute_infer=pb.StatisticDuration(count=1, ns=ns)
            )
            for size, ns in ((1, 13_522_206), (3, 322_867_903))
        ],
    )
    assert _executed(row) == Executed(rows=6, compute_us=336_390)
