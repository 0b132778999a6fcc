"""Families of metrics under the gateway's prefix, for what is read at the moment of a scrape."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Values = TypeVar("Values", str, tuple[str, str], tuple[str, str, str])
"""The value of the one label, or those of all of them."""


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return a gauge without samples."""
    return GaugeMetricFamily(f"triton_gateway_{name}", text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return a counter without samples."""
    return CounterMetricFamily(f"triton_gateway_{name}", text, labels=labels)


def counted(
    name: str, text: str, counts: Mapping[Values, float], *labels: str
) -> CounterMetricFamily:
    """Return a counter with what was counted, by the values of its labels."""
    family = counter(name, text, *labels)
    for values, count in counts.items():
        family.add_metric([values] if isinstance(values, str) else values, count)
    return family
