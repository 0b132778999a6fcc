"""How long requests wait inside a server, out of counters that only grow."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.waits import WaitsReader
from routing.admission.limits import Shape, Waits
from routing.fleet import ModelVersion

ONE = Shape(2, 8)


def row(
    model: str = "m",
    version: str = "1",
    *,
    requests: int = 0,
    queue_ms: int = 0,
    cached: int = 0,
    compute_ms: int = 0,
) -> pb.ModelStatistics:
    """A row whose requests have spent so long in all; the work is spread over its three parts."""
    computed = requests - cached
    parts = {
        name: {"count": computed, "ns": compute_ms * share}
        for name, share in (
            ("compute_input", 100_000),
            ("compute_infer", 700_000),
            ("compute_output", 200_000),
        )
    }
    stats = {"queue": {"count": requests, "ns": queue_ms * 1_000_000}, **parts}
    return pb.ModelStatistics(name=model, version=version, inference_stats=stats)


def one(_: ModelVersion) -> Shape | None:
    return ONE


def read(reader: WaitsReader, *rows: pb.ModelStatistics) -> dict[str, Waits | None]:
    reader.read(rows)
    return reader.news(one)


def about(reader: WaitsReader, *rows: pb.ModelStatistics, model: str = "m") -> Waits:
    found = read(reader, *rows)[model]
    assert found is not None
    return found


def test_the_growth_counts_and_not_what_was_before() -> None:
    reader = WaitsReader()
    assert read(reader, row(requests=100, queue_ms=9000)) == {"m": Waits(ONE)}
    found = about(reader, row(requests=110, queue_ms=9050, compute_ms=200))
    assert (found.requests, found.queue_s) == (10, pytest.approx(0.005))
    assert found.compute_s == pytest.approx(0.02)
    assert read(reader, row(requests=110, queue_ms=9050, compute_ms=200)) == {}, "nothing new"


def test_answers_from_the_cache_take_no_time() -> None:
    reader = WaitsReader()
    read(reader, row())
    found = about(reader, row(requests=10, cached=8, compute_ms=100))
    assert (found.requests, found.compute_s) == (10, pytest.approx(0.05))


def test_what_was_loaded_anew_counts_from_then_on() -> None:
    reader = WaitsReader()
    read(reader, row(requests=100, queue_ms=9000))
    assert read(reader, row(requests=5, queue_ms=9999)) == {}
    assert about(reader, row(requests=6, queue_ms=10_004)).queue_s == pytest.approx(0.005)


def test_versions_add_up_and_models_do_not() -> None:
    reader = WaitsReader()
    read(reader, row(), row(version="2"), row("n"))
    found = read(
        reader,
        row(requests=10, queue_ms=100),
        row(version="2", requests=30, queue_ms=700),
        row("n", requests=1, queue_ms=1),
    )
    assert found["m"] == Waits(ONE + ONE, 40, pytest.approx(0.02), 0.0)
    assert found["n"] == Waits(ONE, 1, pytest.approx(0.001), 0.0)


def test_what_nothing_is_known_of_is_left_out() -> None:
    reader = WaitsReader()
    reader.read([row(), row("n"), row("odd", "x")])
    assert reader.news(lambda key: ONE if key.model == "n" else None) == {"n": Waits(ONE)}
    assert reader.news(one) == {"m": Waits(ONE)}, "once it is known"


def test_what_is_gone_or_another_is_told() -> None:
    reader = WaitsReader()
    read(reader, row(), row("n"))
    assert read(reader, row()) == {"n": None}
    assert read(reader, row()) == {}
    reader.read([row()])
    assert reader.news(lambda _: Shape(7)) == {"m": Waits(Shape(7))}
