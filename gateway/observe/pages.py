"""A process's metrics as plain data, and the metrics of many processes as one page.

Counters and histograms are added up, over the processes that run and over those that have ended, so
that they never go back at a restart. Gauges are added up over those that run. Called by the
supervisor and its workers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

_OF_ONE_PROCESS = frozenset(
    {
        "process_start_time_seconds",
        "process_max_fds",
        "process_virtual_memory_bytes",
        "python_info",
        "triton_gateway_store_up",
        "triton_gateway_server_open_sequences",
    }
)
"""What has no meaning added up; it is shown of the supervisor only."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Family:
    """One metric: its type, and the values by sample name and labels."""

    text: str
    kind: str
    values: dict[_Key, float] = field(default_factory=dict)

    @property
    def lasts(self) -> bool:
        """Whether the values of an ended process still count."""
        return self.kind in ("counter", "histogram")


Page = Mapping[str, Family]
"""Every metric of a process, by name."""


def page(registry: CollectorRegistry) -> Page:
    """Return what a registry has now."""
    return {metric.name: _family(metric) for metric in registry.collect()}


def _family(metric: Metric) -> Family:
    values = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in metric.samples}
    return Family(metric.documentation, metric.type, values)


class Pages:
    """The last page of every worker, and what those that have ended have left."""

    def __init__(self) -> None:
        self._left: dict[str, Family] = {}
        self._pages: dict[int, Page] = {}
        self._told: dict[_Key, float] = {}

    def take(self, worker: int, new: Page) -> None:
        """Replace the page of a running worker."""
        self._pages[worker] = new

    def end(self, worker: int) -> None:
        """Keep the counts of a worker that has ended."""
        _add(self._left, self._pages.pop(worker, {}), lasting=True)

    def total(self) -> Page:
        """Return the page of all workers together."""
        total: dict[str, Family] = {}
        _add(total, self._left)
        for each in self._pages.values():
            _add(total, each)
        for name in _OF_ONE_PROCESS & total.keys():
            del total[name]
        for family in total.values():
            if family.lasts:
                self._never_back(family.values)
        return total

    def _never_back(self, values: dict[_Key, float]) -> None:
        # Added up in another order a sum may round down, which would read as a restart from zero.
        for key, value in values.items():
            values[key] = self._told[key] = max(value, self._told.get(key, value))


def render(*pages: Page) -> bytes:
    """Return pages as one in Prometheus's text format, equal metrics added up."""
    total: dict[str, Family] = {}
    for each in pages:
        _add(total, each)
    registry = CollectorRegistry()
    registry.register(_Given([_metric(name, family) for name, family in total.items()]))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return them; called by the registry."""
        return self._metrics


def _add(total: dict[str, Family], more: Page, *, lasting: bool = False) -> None:
    for name, family in more.items():
        if lasting and not family.lasts:
            continue
        known = total.get(name)
        if known is None:
            known = total[name] = Family(family.text, family.kind)
        for key, value in family.values.items():
            known.values[key] = known.values.get(key, 0.0) + value


def _metric(name: str, family: Family) -> Metric:
    metric = Metric(name, family.text, family.kind)
    for (sample, labels), value in family.values.items():
        metric.add_sample(sample, dict(labels), value)
    return metric
