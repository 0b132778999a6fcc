"""What a server's own words about itself and its models mean for the operator.

Pure: Triton's messages in, findings out. Called by `diagnose`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.findings import Finding, Severity, error, one_line, warning
from gateway.upstream.transport import FIRST_CANCEL_SAFE, version_tuple

_SHOWN_MODELS = 5


class Row(Protocol):
    """One row of the repository index."""

    name: str
    version: str
    state: str
    reason: str


def identity_findings(said: pb.ServerMetadataResponse, expect: str | None) -> Iterator[Finding]:
    """Judge who the server says it is; a message without a version is one that never came."""
    if not said.version:
        return
    if expect is not None and said.name != expect:
        yield error(
            "wrong-server",
            f"the server says it is '{one_line(said.name)}', and `expect` is '{expect}'",
            "the address may lead to somebody else's server now: correct `grpc`, or `expect` if"
            " the server was renamed",
        )
    if version_tuple(said.version) < FIRST_CANCEL_SAFE:
        first = ".".join(map(str, FIRST_CANCEL_SAFE))
        yield Finding(
            Severity.INFO,
            "detached-calls",
            f"Triton {one_line(said.version)} can crash when a call is cancelled: calls whose"
            " caller has gone run to their end, and their answers are dropped",
            f"nothing to do; calls are cancelled from Triton {first} (25.04) on",
        )


def readiness_findings(*, ready: bool, rows: Iterable[Row], empty: bool) -> Iterator[Finding]:
    """Judge readiness and the repository index; `empty` says that nothing is ready.

    A single failed model makes ServerReady false (strict readiness, the default) while all others
    are served, so that alone is told only when no model explains it.
    """
    listed = list(rows)
    failed = [row for row in listed if _has_failed(row)]
    loading = sorted({one_line(row.name) for row in listed if row.state == "LOADING"})
    yield from map(_model_failed, failed[:_SHOWN_MODELS])
    if len(failed) > _SHOWN_MODELS:
        yield _more(failed[_SHOWN_MODELS:])
    if loading:
        yield warning(
            "loading", f"the server is still loading {', '.join(loading)}", "wait, and check again"
        )
    if failed or loading:
        return
    if not ready:
        yield warning("not-ready", "the server says it is not ready", "look into its log for why")
    elif empty:
        yield warning("no-models", "the server has no model ready", "load a model on it")


def _has_failed(row: Row) -> bool:
    return row.state == "UNAVAILABLE" and row.reason not in ("", "unloaded")


def _model_failed(row: Row) -> Finding:
    return warning(
        "model-failed",
        f"model '{one_line(row.name)}' version {one_line(row.version)} could not be loaded:"
        f" {one_line(_first_line(row.reason))}",
        "correct the model and load it again; the others are served meanwhile",
    )


def _first_line(text: str) -> str:
    # The Python back end adds where it happened, which says more to the model's author.
    return text.strip().partition("\n")[0]


def _more(rows: Sequence[Row]) -> Finding:
    names = one_line(", ".join(sorted({row.name for row in rows})))
    return warning(
        "model-failed", f"{len(rows)} more model versions could not be loaded: {names}", "as above"
    )
