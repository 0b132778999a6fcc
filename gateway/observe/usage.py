"""What tenants have used of models, at the moment of a scrape.

The labels are bounded: `gateway.usage` tells only so many pairs apart.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.families import counted
from routing.usage import Totals

_FAMILIES = {
    "requests": "Inference requests for a model.",
    "errors": "Those of them that had no good answer.",
    "rows": "Batch rows of the requests a server was chosen for.",
    "input_bytes": "Bytes of request bodies, as they came.",
    "output_bytes": "Bytes of response bodies, as they went.",
}
_LABELS = ("tenant", "model")


class UsageMetrics(Collector):
    """`totals` returns what was used since the process began."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        totals = self._totals()
        for unit, text in _FAMILIES.items():
            amounts = {pair: getattr(used, unit) for pair, used in totals.items()}
            yield counted(f"usage_{unit}", text, amounts, *_LABELS)
        yield counted(
            "usage_compute_seconds",
            "The servers' compute time (compute_infer), shared out by rows.",
            {pair: used.compute_us / 1_000_000 for pair, used in totals.items()},
            *_LABELS,
        )
