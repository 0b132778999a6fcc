"""The metrics pages of many servers -> one page of Prometheus text.

Decides what of a page can be believed: a line that is no sample is left out, never repaired by
guesswork. Every sample gets a `server` label; names, values and other labels stay as they are, so
that sums by model and version are right whatever further labels single servers have. Each family
stands there once, with one HELP and TYPE. Refuses to know where pages come from and what families
mean. Called by the ops listener.

The format is Prometheus text 0.0.4, which Triton writes. prometheus_client's own reader yields
interleaved families twice and renames counters, which are both wrong here.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.ports import MetricsPage

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_COMMENT = re.compile(r"#[ \t]+(HELP|TYPE)[ \t]+([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]+(.*))?$")
_SAMPLE = re.compile(
    r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*"
    r'(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\}[ \t]*|[ \t])[ \t]*'
    r"([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*$"
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|$)')
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORDS = {"nan": "NaN", "inf": "+Inf", "+inf": "+Inf", "-inf": "-Inf"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(slots=True)
class _Family:
    """One family as first seen. `samples` maps a sample's name and labels to its line."""

    kind: str | None = None
    help: str | None = None
    samples: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one server's page held: sample lines by family, types and texts of the families."""

    samples: Mapping[str, Mapping[str, str]]
    kinds: Mapping[str, str]
    texts: Mapping[str, str]

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(map(len, self.samples.values()))


def fleet_page(pages: Sequence[MetricsPage]) -> str:
    """Return the merged page, with what came of each server's scrape in front.

    Takes about 3 us a sample: not for the event loop.
    """
    readings = {
        page.server: read_page(page.server, page.text) for page in pages if page.text is not None
    }
    lines: list[str] = []
    for name, text, value in _SCRAPE_FAMILIES:
        lines += [f"# HELP {name} {text}\n", f"# TYPE {name} gauge\n"]
        for page in pages:
            number = value(page, readings.get(page.server))
            lines.append(f'{name}{{server="{_escaped(page.server)}"}} {number}\n')
    return "".join(lines) + merge(readings.values())


def read_page(server: str, text: str) -> Reading:
    """Read one server's page. What is no valid line of the format is left out.

    Of a series that is there twice the last value counts, as for a scrape by Prometheus.
    """
    kinds: dict[str, str] = {}
    texts: dict[str, str] = {}
    found: list[tuple[str, str, str]] = []
    label = f'server="{_escaped(server)}"'
    for line in text.replace("\r\n", "\n").split("\n"):
        if line.startswith("#"):
            _note(line, kinds, texts)
        elif sample := _sample(line, label):
            found.append(sample)
    samples: dict[str, dict[str, str]] = {name: {} for name in kinds}
    owners = {name + part: name for name, kind in kinds.items() for part in _PARTS.get(kind, ())}
    for name, labels, value in found:
        family = name if name in kinds else owners.get(name, name)
        samples.setdefault(family, {})[f"{name}{labels}"] = value
    return Reading(samples, kinds, texts)


def merge(readings: Iterable[Reading]) -> str:
    """Return one page. A family that servers type differently is untyped, and all its samples stay.

    (As counter and gauge at once no reader would take it; as either, one of them would be wrong.)
    """
    families: dict[str, _Family] = {}
    for reading in readings:
        for name, samples in reading.samples.items():
            family = families.setdefault(name, _Family(reading.kinds.get(name)))
            if family.kind != reading.kinds.get(name):
                family.kind = None
            family.help = family.help or reading.texts.get(name)
            family.samples |= samples
    return "".join(_lines(families))


def _is_up(_: MetricsPage, reading: Reading | None) -> str:
    # A page without a single sample is somebody else's: Triton's always has some.
    return "1" if reading is not None and reading.count else "0"


_SCRAPE_FAMILIES: Sequence[tuple[str, str, Callable[[MetricsPage, Reading | None], str]]] = (
    (
        "triton_gateway_fleet_scrape_up",
        "1 if the server's metrics page could be read, 0 if its series are missing below.",
        _is_up,
    ),
    (
        "triton_gateway_fleet_scrape_duration_seconds",
        "How long fetching the server's metrics page took.",
        lambda page, _: f"{page.took_s:.6f}",
    ),
    (
        "triton_gateway_fleet_scrape_samples",
        "Samples read from the server's metrics page.",
        lambda _, reading: str(reading.count if reading else 0),
    ),
)


def _lines(families: Mapping[str, _Family]) -> Iterator[str]:
    for name, family in sorted(_single(families).items()):
        if family.help:
            yield f"# HELP {name} {family.help}\n"
        if family.kind:
            yield f"# TYPE {name} {family.kind}\n"
        for series, value in family.samples.items():
            yield f"{series} {value}\n"


def _single(families: Mapping[str, _Family]) -> dict[str, _Family]:
    """Return the families so that each sample stands under a family it belongs to."""
    single: dict[str, _Family] = {}
    for name, family in families.items():
        parts = _PARTS.get(family.kind or "", ())
        for series, value in family.samples.items():
            own = series.partition("{")[0]
            belongs = own == name or own in {name + part for part in parts}
            target = name if belongs else own
            known = single.setdefault(target, _Family())
            if target == name:
                known.kind, known.help = family.kind, family.help
            known.samples[series] = value
        if not family.samples:
            single.setdefault(name, family)
    return single


def _note(line: str, kinds: dict[str, str], texts: dict[str, str]) -> None:
    comment = _COMMENT.match(line)
    if comment is None:
        return
    what, name, rest = comment[1], comment[2], (comment[3] or "").strip()
    if what == "TYPE" and rest in _TYPES:
        kinds.setdefault(name, rest)
    elif what == "HELP" and rest:
        texts.setdefault(name, _help(rest))


def _sample(line: str, label: str) -> tuple[str, str, str] | None:
    """Return name, labels with `label` among them, and value; None for anything else."""
    sample = _SAMPLE.match(line)
    if sample is None:
        return None
    value = _value(sample[3])
    labels = _labels(sample[2] or "")
    if value is None or labels is None:
        return None
    return sample[1], "{" + ",".join([label, *labels]) + "}", value


def _labels(text: str) -> list[str] | None:
    """Return the labels, each as it is to be written; None if they are not well formed."""
    labels: dict[str, str] = {}
    at = 0
    while text[at:].strip(" \t"):
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            return None
        labels[found[1]] = _escaped(_ESCAPE.sub(_unescape, found[2]))
        at = found.end()
    if "server" in labels:  # as Prometheus does it with a label of its own
        labels["exported_server"] = labels.pop("server")
    return [f'{name}="{value}"' for name, value in labels.items()]


def _unescape(found: re.Match[str]) -> str:
    return _UNESCAPED.get(found[1], found[0])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    """Return a help text with nothing but the two escapes of the format."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] in "n\\" else "\\" + found[0], text)


def _value(text: str) -> str | None:
    """Return a number as every reader takes it; Triton writes `Nan`, others overflow (1e400)."""
    if word := _WORDS.get(text.lower().replace("infinity", "inf")):
        return word
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return text
