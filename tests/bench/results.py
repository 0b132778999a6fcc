"""Turns runs into the Markdown of RESULTS.md: medians, ratios, and what became of the limits.

Pure: takes what was measured, returns text. Called by the command.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from tests.bench.payloads import Payload
from tests.bench.runner import IDLE_S, Pace, Run, Startup
from tests.bench.targets import GATEWAY, TENANTS, TITLES, TRANSCODER, TRITON

SMALL = "small-16"
IMAGE = "json-image"
MAX_CPU_TO_TRANSCODER = 2.2
MIN_RATE_TO_TRITON = 1.2
MAX_CPU_OF_TENANTS = 1.25
MAX_IDLE_MB = 120
MAX_START_S = 2.0
NO_FIGURE = "-"

Figure = Callable[[Run], float | None]
Runs = Mapping[str, Mapping[str, Sequence[Run]]]


@dataclass(frozen=True)
class Results:
    """Everything one call of the command has found out; `runs` by payload, then by target."""

    day: date
    command: str
    machine: Mapping[str, str]
    pace: Pace
    payloads: Sequence[Payload]
    runs: Runs
    startup: Startup | None
    crashes: Sequence[str]

    @property
    def errors(self) -> int:
        """Failed requests, all runs together."""
        return sum(run.errors for of in self.runs.values() for runs in of.values() for run in runs)


def render(results: Results) -> str:
    """Write the whole page."""
    parts = [
        "# Load comparison",
        _introduction(results),
        _table(("", ""), results.machine.items()),
        "## Limits",
        _limits(results),
        *(part for payload in results.payloads for part in _payload(results, payload)),
        "## Ratios of the gateway",
        _ratios(results),
        "## Start and idle memory",
        _startup(results.startup),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(results: Results) -> str:
    pace = results.pace
    crashes = "".join(
        f" Triton crashed {results.crashes.count(name)} times behind {TITLES[name]}; the runs were "
        "repeated with a new server."
        for name in dict.fromkeys(results.crashes)
    )
    return (
        f"Taken on {results.day.isoformat()} with `{results.command}`. Medians of {pace.runs} "
        f"runs of {pace.run_s} s after {pace.warm_up_s} s of warm-up, the targets in turn; "
        f"{results.errors} failed requests.{crashes}\n\n"
        "Client, gateway and servers shared one machine: trust ratios and processor time, not the "
        "digits of the rates. [How to read this](README.md)."
    )


def _payload(results: Results, payload: Payload) -> Iterable[str]:
    yield f"## {payload.title}"
    head = (
        "target",
        "requests/s (range)",
        "p50, ms",
        "p99, ms",
        "own CPU, us",
        "Triton's CPU, us",
        "both, us",
        "errors",
    )
    runs = results.runs[payload.name]
    yield _table(head, ((TITLES[name], *_row(of)) for name, of in runs.items()))
    if payload.note:
        yield payload.note


def _row(runs: Sequence[Run]) -> Iterable[str]:
    rates = [run.requests_per_s for run in runs]
    yield f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
    yield _shown(_median(runs, lambda run: run.p50_ms), ".2f")
    yield _shown(_median(runs, lambda run: run.p99_ms), ".2f")
    yield _shown(_median(runs, lambda run: run.own_cpu_us), ",.0f")
    yield _shown(_median(runs, lambda run: run.triton_cpu_us), ",.0f")
    yield _shown(_median(runs, _both), ",.0f")
    yield str(sum(run.errors for run in runs))


def _ratios(results: Results) -> str:
    head = (
        "payload",
        "requests/s to transcoder",
        "own CPU to transcoder",
        "CPU of both to transcoder",
        "requests/s to straight",
        "CPU of both to straight",
    )
    return _table(head, ((name, *_ratio_row(results.runs, name)) for name in results.runs))


def _ratio_row(runs: Runs, payload: str) -> Iterable[str]:
    for other, figure in (
        (TRANSCODER, _rate),
        (TRANSCODER, _own),
        (TRANSCODER, _both),
        (TRITON, _rate),
        (TRITON, _both),
    ):
        yield _shown(_ratio(runs, payload, other, figure), ".2f")


def _startup(startup: Startup | None) -> str:
    if startup is None:
        return "Not measured."
    ready_s, idle_mb = statistics.median(startup.ready_s), _idle_mb(startup)
    return (
        f"Before the two servers of the demo, medians of {len(startup.ready_s)} starts: "
        f"{ready_s:.2f} s from the creation of the process to a ready `/readyz` "
        f"({min(startup.ready_s):.2f} to {max(startup.ready_s):.2f}); "
        f"{idle_mb:.0f} MB resident {IDLE_S} s after the start, without a request."
    )


def _limits(results: Results) -> str:
    cpu = _ratio(results.runs, SMALL, TRANSCODER, _own)
    rate = _ratio(results.runs, IMAGE, TRITON, _rate)
    tenants = _ratio(results.runs, SMALL, GATEWAY, _own, ours=TENANTS)
    startup = results.startup
    idle_mb = None if startup is None else _idle_mb(startup)
    ready_s = None if startup is None else statistics.median(startup.ready_s)
    rows = (
        _limit(
            f"{SMALL}: own CPU a request, to Envoy's transcoder",
            f"at most {MAX_CPU_TO_TRANSCODER}",
            _shown(cpu, ".2f"),
            None if cpu is None else cpu <= MAX_CPU_TO_TRANSCODER,
        ),
        _limit(
            f"{IMAGE}: requests/s, to Triton's own REST",
            f"at least {MIN_RATE_TO_TRITON}",
            _shown(rate, ".2f"),
            None if rate is None else rate >= MIN_RATE_TO_TRITON,
        ),
        _limit(
            f"{SMALL}: own CPU a request with a key, two limits on Redis and admission, to without",
            f"at most {MAX_CPU_OF_TENANTS}",
            _shown(tenants, ".2f"),
            None if tenants is None else tenants <= MAX_CPU_OF_TENANTS,
        ),
        _limit(
            "idle memory",
            f"below {MAX_IDLE_MB} MB",
            _shown(idle_mb, ".0f"),
            None if idle_mb is None else idle_mb < MAX_IDLE_MB,
        ),
        _limit(
            "start to ready",
            f"below {MAX_START_S:g} s",
            _shown(ready_s, ".2f"),
            None if ready_s is None else ready_s < MAX_START_S,
        ),
    )
    return _table(("what", "limit", "measured", ""), rows)


def _limit(what: str, limit: str, measured: str, met: bool | None) -> Sequence[str]:
    verdict = {True: "met", False: "**not met**", None: "not measured"}[met]
    return (what, limit, measured, verdict)


def _ratio(
    runs: Runs, payload: str, other: str, figure: Figure, *, ours: str = GATEWAY
) -> float | None:
    """Divide the median of a gateway by that of another target; None where one is missing."""
    of = runs.get(payload, {})
    mine, theirs = _median(of.get(ours, ()), figure), _median(of.get(other, ()), figure)
    return mine / theirs if mine is not None and theirs else None


def _median(runs: Sequence[Run], figure: Figure) -> float | None:
    figures = [found for run in runs if (found := figure(run)) is not None]
    return statistics.median(figures) if figures else None


def _rate(run: Run) -> float:
    return run.requests_per_s


def _own(run: Run) -> float | None:
    return run.own_cpu_us


def _both(run: Run) -> float:
    return (run.own_cpu_us or 0.0) + run.triton_cpu_us


def _idle_mb(startup: Startup) -> float:
    return statistics.median(startup.idle_bytes) / 1e6


def _shown(figure: float | None, form: str) -> str:
    return NO_FIGURE if figure is None else format(figure, form)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
