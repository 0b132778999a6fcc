"""How diagnoses are shown: a table and a list of findings in 80 columns, or JSON."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gateway.cli.live import count
from gateway.upstream.findings import Control, Diagnosis, Finding, Severity, Target

_WIDTH = 80
_HEADER = ("SERVER", "REACHABLE", "VERSION", "CANCEL-SAFE", "CONTROL", "MODELS", "RTT")
_CONTROL = {
    Control.EXPLICIT: "explicit",
    Control.NONE_OR_POLL: "none/poll",
    Control.UNKNOWN: "unknown",
}
_GAP = "  "
_LONGEST_VERSION = 8


def as_text(diagnoses: Mapping[str, Diagnosis], fleet: Sequence[Finding]) -> str:
    """Return the table, below it what is wrong and the fix, and a sum, each line up to 80 wide."""
    rows = [_row(name, diagnosis) for name, diagnosis in diagnoses.items()]
    findings = [(name, found) for name, d in diagnoses.items() for found in d.findings]
    findings += [("fleet", found) for found in fleet]
    paragraphs = [_finding(name, found) for name, found in findings]
    summary = _summary([found for _, found in findings], len(diagnoses))
    return "\n\n".join(["\n".join(_table(rows)), *paragraphs, summary])


def as_json(
    targets: Mapping[str, Target], diagnoses: Mapping[str, Diagnosis], fleet: Sequence[Finding]
) -> str:
    """Return everything as one JSON object."""
    findings = all_findings(diagnoses, fleet)
    report = {
        "servers": [
            {"name": name, "grpc": targets[name].grpc, **_object(diagnosis)}
            for name, diagnosis in diagnoses.items()
        ],
        "fleet": [_finding_object(finding) for finding in fleet],
        "errors": count(findings, Severity.ERROR),
        "warnings": count(findings, Severity.WARNING),
    }
    return json.dumps(report, indent=2)


def all_findings(diagnoses: Mapping[str, Diagnosis], fleet: Iterable[Finding]) -> list[Finding]:
    """Return the findings of all servers and of the fleet."""
    return [*(found for d in diagnoses.values() for found in d.findings), *fleet]


def _object(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "reachable": diagnosis.reachable,
        "triton_version": diagnosis.triton_version or None,
        "server_id": diagnosis.server_id or None,
        "cancel_safe": diagnosis.cancel_safe,
        "control_mode": diagnosis.control_mode,
        "models_ready": diagnosis.models_ready,
        "round_trip_ms": diagnosis.round_trip_ms,
        "missing_keys": diagnosis.missing_keys,
        "findings": [_finding_object(finding) for finding in diagnosis.findings],
    }


def _finding_object(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "code": finding.code,
        "message": finding.message,
        "fix": finding.fix,
    }


def _row(name: str, diagnosis: Diagnosis) -> tuple[str, ...]:
    if not diagnosis.reachable:
        return (name, "no", "-", "-", "-", "-", "-")
    round_trip = diagnosis.round_trip_ms
    return (
        name,
        "yes",
        _cut(diagnosis.triton_version or "unknown", _LONGEST_VERSION),
        "yes" if diagnosis.cancel_safe else "no",
        _CONTROL[diagnosis.control_mode],
        "-" if diagnosis.models_ready is None else str(diagnosis.models_ready),
        "-" if round_trip is None else f"{round_trip:.1f} ms",
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    table = [_HEADER, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADER))]
    others = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], _WIDTH - others)
    for row in table:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        yield _GAP.join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _finding(server: str, finding: Finding) -> str:
    said = _wrapped(f"{server}: {finding.severity}: {finding.message}", "", "  ")
    return f"{said}\n{_wrapped(finding.fix, '  fix: ', '       ')}"


def _wrapped(text: str, first: str, others: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def _summary(findings: Sequence[Finding], servers: int) -> str:
    counts = (
        (servers, "server"),
        (count(findings, Severity.ERROR), "error"),
        (count(findings, Severity.WARNING), "warning"),
    )
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts)
