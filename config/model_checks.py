"""The rules between what is said of a model and what is said of the servers.

Works on the tree, like `config.checks`, which calls it. Which models a server holds is not written
anywhere and is no matter of these rules.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from config.known import absent, known, of_servers, ordered
from config.tree import Loc, Node, Problem

_MAX_LISTED = 8


def check_models(root: Node) -> Iterator[Problem]:
    """Yield every broken rule of every model."""
    models: dict[str, Node] = known(root, "models", default={}) or {}
    for name, model in models.items():
        yield from _times(root, name)
        yield from _asked_twice(model)
        yield from _unused_limit(root, model)
        yield from _capacities(root, model)
        yield from _placement(root, model)
        yield from _pool(root, model)
        yield from _served(root, name, model)


def _times(root: Node, name: str) -> Iterator[Problem]:
    deadline: Loc = ("models", name, "deadline_s")
    yield from ordered(root, deadline, ("deadlines", "max_s"))
    if absent(root, "models", name, "deadline_s"):
        deadline = ("deadlines", "default_s")
    yield from ordered(root, ("models", name, "hedging", "after_s"), deadline)


def _unused_limit(root: Node, model: Node) -> Iterator[Problem]:
    if known(root, "admission", "mode") == "off" and known(model, "concurrency") is not None:
        yield model.find(("concurrency",))[0][-1].problem(
            "nothing is limited while admission.mode is off - remove it, or write observe or"
            " enforce there"
        )


def _asked_twice(model: Node) -> Iterator[Problem]:
    if known(model, "idempotent") is False and known(model, "hedging") is not None:
        yield model.find(("hedging",))[0][-1].problem(
            "a hedged request may run twice, and idempotent is false - remove one of the two"
        )


def _capacities(root: Node, model: Node) -> Iterator[Problem]:
    names = of_servers(root, "name")
    capacities: dict[str, Node] = known(model, "capacity") or {}
    for name, node in capacities.items():
        if names is not None and name not in names and not node.bad:
            yield node.problem(f"no server has the name {name!r} - {_advice(name, names)}")


def _placement(root: Node, model: Node) -> Iterator[Problem]:
    names = of_servers(root, "name")
    patterns: list[Node] = known(model, "placement") or []
    if names is None:
        return
    for node in patterns:
        pattern = str(node.value)
        if not node.bad and not any(fnmatchcase(name, pattern) for name in names):
            yield node.problem(f"no server's name fits {pattern!r} - {_advice(pattern, names)}")


def _pool(root: Node, model: Node) -> Iterator[Problem]:
    pool = known(model, "pool")
    pools = of_servers(root, "pool")
    if pool is None or pools is None or pool in pools:
        return
    names = sorted({name for name in pools if name is not None})
    advice = _advice(pool, names) if names else "write it as `pool` of the servers that are in it"
    yield model.find(("pool",))[0][-1].problem(f"no server is in the pool {pool!r} - {advice}")


def _advice(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return f"correct it (there are: {', '.join(names[:_MAX_LISTED])}{more})"


def _served(root: Node, name: str, model: Node) -> Iterator[Problem]:
    pools, serve = of_servers(root, "pool"), of_servers(root, "serve")
    pool = known(model, "pool")
    if pools is None or serve is None or (pool is None and not absent(model, "pool")):
        return
    used = [patterns for patterns, has in zip(serve, pools, strict=True) if pool in (None, has)]
    if used and not any(_may_serve(patterns, name) for patterns in used):
        where = "no server" if pool is None else f"no server of the pool {pool!r}"
        yield model.problem(
            f"{where} has a `serve` pattern that this model fits - add one, or remove the model"
            " here"
        )


def _may_serve(patterns: list[Node] | None, name: str) -> bool:
    if patterns is None:
        return True
    return any(pattern.bad or fnmatchcase(name, str(pattern.value)) for pattern in patterns)
