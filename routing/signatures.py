"""Which of several signatures of one version counts. Called by `routing.holders`."""

from collections import Counter
from collections.abc import Mapping, Sequence

from routing.types import ModelSpec


def majority(specs: Mapping[str, ModelSpec]) -> tuple[ModelSpec, dict[str, str]]:
    """Return the signature most servers report, and why each of the others differs from it.

    There must be one. Equal signatures must be one object. Of equally many the one that the first
    server reports, in the order of `specs`.
    """
    objects = {id(spec): spec for spec in specs.values()}
    counts = Counter(map(id, specs.values()))
    chosen = objects[max(counts, key=lambda identity: counts[identity])]
    return chosen, {
        name: f"its signature differs from the majority's in {_listed(spec.differs_in(chosen))}"
        for name, spec in specs.items()
        if spec is not chosen
    }


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(parts)
