"""How long requests wait inside a server before they run, out of its statistics.

The counters of ModelStatistics only grow, until a model is loaded anew; what counts is the growth
from one reading to the next. Called by the prober, with what it reads anyway.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tritonclient.grpc import service_pb2 as pb

from routing.admission.limits import Shape, Waits
from routing.fleet import ModelVersion


class Totals(NamedTuple):
    """What a version has counted since it was loaded: requests, and nanoseconds."""

    requests: int
    queue_ns: int
    computed: int
    compute_ns: int

    @classmethod
    def of(cls, row: pb.ModelStatistics) -> "Totals":
        """Return those of a row. Requests answered from the cache were not computed."""
        stats = row.inference_stats
        parts = (stats.compute_input, stats.compute_infer, stats.compute_output)
        return cls(
            stats.queue.count,
            stats.queue.ns,
            stats.compute_infer.count,
            sum(part.ns for part in parts),
        )

    def since(self, before: "Totals") -> "Totals":
        """Return the growth; nothing if they were counted anew."""
        grown = Totals(*(now - then for now, then in zip(self, before, strict=True)))
        return grown if min(grown) >= 0 else NOTHING


NOTHING = Totals(0, 0, 0, 0)


class WaitsReader:
    """Reads one server's rows, each time the growth since the last."""

    def __init__(self) -> None:
        self._before: dict[ModelVersion, Totals] = {}
        self._grown: dict[ModelVersion, Totals] = {}
        self._told: dict[str, Shape] = {}

    def read(self, rows: Iterable[pb.ModelStatistics]) -> None:
        """Take the counters of all versions that the server has ready."""
        now = {
            ModelVersion(row.name, int(row.version)): Totals.of(row)
            for row in rows
            if row.version.isdecimal()
        }
        # A version that was not there is known from its second reading on.
        self._grown = {key: each.since(self._before.get(key, each)) for key, each in now.items()}
        self._before = now

    def news(self, shape_of: Callable[[ModelVersion], Shape | None]) -> dict[str, Waits | None]:
        """Return how the models did, by name: those that did something, and are new or changed.

        Also those that are gone, with None. What has no known shape counts as if it were not there.
        """
        waits = self._waits(shape_of)
        told, self._told = self._told, {name: each.shape for name, each in waits.items()}
        news = {
            name: each
            for name, each in waits.items()
            if each.requests or told.get(name) != each.shape
        }
        return {**dict.fromkeys(told.keys() - waits.keys()), **news}

    def _waits(self, shape_of: Callable[[ModelVersion], Shape | None]) -> dict[str, Waits]:
        shapes: dict[str, Shape] = {}
        totals: dict[str, Totals] = {}
        for key, grown in self._grown.items():
            shape = shape_of(key)
            if shape is not None:
                name = key.model
                shapes[name] = shapes[name] + shape if name in shapes else shape
                sums = zip(totals.get(name, NOTHING), grown, strict=True)
                totals[name] = Totals(*map(sum, sums))
        return {name: _waits(shape, totals[name]) for name, shape in shapes.items()}


def _waits(shape: Shape, grown: Totals) -> Waits:
    return Waits(
        shape,
        requests=grown.requests,
        queue_s=grown.queue_ns / 1e9 / max(1, grown.requests),
        compute_s=grown.compute_ns / 1e9 / max(1, grown.computed),
    )
