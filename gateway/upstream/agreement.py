"""Whether the servers of a fleet agree on their models, and have what the configuration counts on.

Pure: signatures and versions in, findings out. Called by `survey` on what the command line's
diagnoses say, and by `doctor` on what the gateway already knows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gateway.names import listed
from gateway.upstream.findings import Finding, Severity, one_line, warning
from routing.types import ModelSpec, TensorSpec

Version = tuple[str, str]
"""A model and the text of its version."""


def different_signatures(
    signatures: Mapping[Version, Mapping[str, ModelSpec]],
) -> Iterator[Finding]:
    """Yield the servers on which a model's version differs from what most servers have.

    `signatures` are given by version and server.
    """
    for key, by_server in sorted(signatures.items()):
        usual = Counter(by_server.values()).most_common(1)[0][0]
        like = [name for name, spec in by_server.items() if spec == usual]
        for name, spec in by_server.items():
            if spec != usual:
                yield _differs(key, name, list(_differences(usual, spec)), like)


def missing_defaults(
    defaults: Mapping[str, int], ready: Mapping[str, Collection[int]]
) -> Iterator[Finding]:
    """Yield the models whose configured default version is ready (`ready`, by model) nowhere."""
    for model, version in sorted(defaults.items()):
        there = ready.get(model, ())
        if version not in there:
            versions = f"; ready are {listed(map(str, sorted(there)))}" if there else ""
            yield warning(
                "default-version",
                f"`default_version` of model '{model}' is {version}, and no server has that version"
                f" ready{versions}",
                "load it, or correct `default_version`: until then requests that name no version"
                " are refused",
            )


def _differences(usual: ModelSpec, other: ModelSpec) -> Iterator[tuple[Severity, str]]:
    for kind, mine, theirs in (
        ("inputs", other.inputs, usual.inputs),
        ("outputs", other.outputs, usual.outputs),
    ):
        if mine != theirs:
            yield Severity.ERROR, f"{kind} {_shown(mine)} instead of {_shown(theirs)}"
    for kind, this, that in (
        ("max_batch_size", other.max_batch_size, usual.max_batch_size),
        ("scheduling", _scheduling(other), _scheduling(usual)),
        ("decoupled", other.decoupled, usual.decoupled),
    ):
        if this != that:
            yield Severity.WARNING, f"{kind} {this} instead of {that}".lower()


def _scheduling(spec: ModelSpec) -> str:
    return spec.scheduling.replace("_", " ") or "none"


def _shown(tensors: Iterable[TensorSpec]) -> str:
    return one_line(
        ", ".join(
            f"{tensor.name} {tensor.datatype}[{','.join(map(str, tensor.dims))}]"
            for tensor in tensors
        )
        or "none"
    )


def _differs(
    key: Version,
    server: str,
    differences: Sequence[tuple[Severity, str]],
    like: Sequence[str],
) -> Finding:
    model, version = map(one_line, key)
    severities = {severity for severity, _ in differences}
    texts = "; ".join(text for _, text in differences)
    return Finding(
        Severity.ERROR if Severity.ERROR in severities else Severity.WARNING,
        "different-model",
        f"model '{model}' version {version} on {server} differs from {listed(like)}: {texts}",
        "put the same model on all servers, or give the different one another name or version",
    )
