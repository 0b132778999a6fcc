"""`triton-gateway explain`: where a request would go now, or why a past one went where it did."""

import json as json_module
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.cli.ops_client import DEFAULT_URL, KeyFile, OpsUrl, Version, ask_or_fail, connect
from gateway.cli.refusal import refuse
from gateway.cli.text import table, wrapped
from gateway.edge.answers import STATUS
from gateway.faults import Kind

_HEADER = ("CANDIDATE", "ZONE", "SHARE", "WORK", "LIMIT", "LATENCY", "")

View = Mapping[str, Any]


def explain(
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="Explain a request to it, now.")
    ] = None,
    version: Version = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="With --model: of a request of this tenant.")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", help="Explain a past request, by its X-Request-Id."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    ops: OpsUrl = DEFAULT_URL,
    key_file: KeyFile = None,
) -> None:
    """Show which servers may be chosen for a model and which may not and why."""
    if (model is None) == (request_id is None):
        refuse("give either --model or --request-id")
    if version is not None and model is None:
        refuse("--version: needs --model")
    if tenant is not None and model is None:
        refuse("--tenant: needs --model")
    client = connect(ops, key_file)
    asked = {"model": model, "version": version, "tenant": tenant, "request_id": request_id}
    view = ask_or_fail(client, "explain", **asked)
    if json:
        typer.echo(json_module.dumps(view, indent=2))
    else:
        typer.echo(model_text(view) if model is not None else request_text(view))


def model_text(view: View) -> str:
    """Return the explanation of a request to a model, for people."""
    paragraphs = (
        [*_verdict(view)],
        [*_priority(view["priority"])],
        _candidates(view["candidates"]),
        [*_excluded(view["excluded"])],
    )
    return _joined(paragraphs)


def request_text(view: View) -> str:
    """Return the explanation of a past request, for people."""
    model = f"{view['model']} {view['version']}" if view["model"] else "no known model"
    head = (
        f"{view['request_id']}: {model}, {view['outcome']}, HTTP {view['status']},"
        f" {view['duration_ms']} ms, {view['ended_s_ago']} s ago"
    )
    lines = [wrapped(head)]
    if view["queued_ms"]:
        waited = f"waited {view['queued_ms']} ms for room on a server: {view['admission']}"
        lines.append(wrapped(waited, "  "))
    if view["error"]:
        lines.append(wrapped(f"error: {view['error']}", "  "))
    if not view["attempts"]:
        lines.append("No server was chosen for it.")
    attempts = [[*_attempt(at, one)] for at, one in enumerate(view["attempts"], start=1)]
    return _joined([lines, *attempts])


def _verdict(view: View) -> Iterator[str]:
    if view["alias"]:
        yield wrapped(_alias(view["alias"]))
    yield wrapped(f"{view['model']} version {view['version']}, chosen by: {view['chosen_by']}")
    if view["version_is_bad"]:
        yield wrapped(
            "This version is bad: it fails on most of its servers, so the servers are not blamed."
        )
    if any(view["queued"].values()):
        counts = view["queued"].items()
        waiting = ", ".join(f"{count} {kind}" for kind, count in counts if count)
        yield wrapped(f"Requests that wait for room: {waiting}")
    refused = view["refused"]
    if refused:
        status = STATUS[Kind(refused["outcome"])]
        yield wrapped(f"A request is refused now with {status}: {refused['error']}")


def _priority(view: View | None) -> Iterator[str]:
    if view is None:
        return
    tier = f" (tier {view['tier']})" if view["tier"] else ""
    told = f"level {view['level']} of {view['levels']}" if view["level"] else "no level"
    if view["queue_timeout_s"]:
        told += f", at most {view['queue_timeout_s']:g} s in their queues"
    yield wrapped(
        f"Tenant {view['tenant']}{tier}: class {view['class']}, up to {view['highest_class']} when"
        f" asked for; at the servers {told}"
    )
    for reason in view["unheeded"]:
        yield wrapped(reason, "  ")


def _alias(alias: View) -> str:
    arms = ", ".join(
        f"{arm['share']:.1%} {arm['model']} {arm['version'] or '(default version)'}"
        for arm in alias["arms"]
    )
    sticky = "" if alias["sticky"] == "nothing" else f", the same for one {alias['sticky']}"
    return f"{alias['name']} is an alias: {arms}{sticky}. Of the heaviest arm:"


def _candidates(rows: Sequence[View]) -> list[str]:
    cells = [
        (
            row["server"],
            row["zone"] or "-",
            f"{row['share']:.1%}",
            f"{row['work']:g}",
            "-" if row["limit"] is None else f"{row['limit']:g}",
            "-" if row["latency_ms"] is None else f"{row['latency_ms']:.1f} ms",
            _note(row),
        )
        for row in rows
    ]
    return table([_HEADER, *cells], numbers=(2, 3, 4, 5)) if rows else []


def _note(row: View) -> str:
    if row["ejected"]:
        return "ejected, used for want of others"
    return "slow start" if row["starting_slowly"] else ""


def _excluded(reasons: Mapping[str, str]) -> Iterator[str]:
    if reasons:
        yield "NOT CANDIDATES"
    for server, reason in reasons.items():
        yield wrapped(f"{server}: {reason}", "  ")


def _attempt(number: int, view: View) -> Iterator[str]:
    yield wrapped(f"Attempt {number}: {view['server']} - {view['why']}")
    yield wrapped(f"candidates: {', '.join(view['candidates']) or 'none'}", "  ")
    for server, reason in view["excluded"].items():
        yield wrapped(f"not {server}: {reason}", "  ")


def _joined(paragraphs: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines)
