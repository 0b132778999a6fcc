"""The rules between priority classes and those who name them.

Works on the tree, like `config.checks`, which calls it.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from config.known import absent, known
from config.priorities import BUILT_IN, STANDARD
from config.tree import Node, Problem


def check_priorities(root: Node) -> Iterator[Problem]:
    """Yield every broken rule."""
    classes: list[Node] = known(root, "priority", "classes", default=[]) or []
    yield from _once(classes)
    yield from _falling(classes)
    names = _names(root, classes)
    if names is None:
        return
    yield from _default(root, names)
    for section in ("tenants", "tiers"):
        somebody: dict[str, Node] = known(root, section, default={}) or {}
        for one in somebody.values():
            yield from _of_somebody(one, names)
    models: dict[str, Node] = known(root, "models", default={}) or {}
    for model in models.values():
        yield from _levels(model, names)


def _names(root: Node, classes: Sequence[Node]) -> list[str] | None:
    """Return the classes, the most important first; None when one of them is not known."""
    if known(root, "priority", "classes", default=[]) is None:
        return None
    names = [known(one, "name") for one in classes]
    return None if None in names else names or list(BUILT_IN)


def _once(classes: Sequence[Node]) -> Iterator[Problem]:
    first: dict[str, Node] = {}
    for one in classes:
        name = known(one, "name")
        if name is not None and first.setdefault(name, one) is not one:
            yield one.problem(f"{name!r} is in line {first[name].line} already - write it once")


def _falling(classes: Sequence[Node]) -> Iterator[Problem]:
    most = 1.0
    for one in classes:
        ceiling = known(one, "ceiling")
        if ceiling is not None and ceiling > most:
            yield one.find(("ceiling",))[0][-1].problem(
                f"{ceiling:g} is above the ceiling of a more important class ({most:g}) - lower it,"
                " or put the classes in order, the most important first"
            )
        most = most if ceiling is None else min(ceiling, most)


def _default(root: Node, names: Sequence[str]) -> Iterator[Problem]:
    if absent(root, "priority", "default"):
        if STANDARD not in names:
            yield root.find(("priority", "classes"))[0][-1].problem(
                f"none of them is {STANDARD!r}, so nothing says which one callers have of whom"
                " nothing is written - name it as `priority.default`"
            )
    else:
        yield from _there(root.find(("priority", "default"))[0][-1], names)


def _there(node: Node, names: Sequence[str]) -> Iterator[Problem]:
    name = str(node.value)
    if not node.bad and name not in names:
        near = get_close_matches(name, names, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
        yield node.problem(f"there is no priority class {name!r} - {advice}")


def _of_somebody(one: Node, names: Sequence[str]) -> Iterator[Problem]:
    keys = ("priority_class", "max_priority_class")
    for key in keys:
        if not absent(one, key):
            yield from _there(one.find((key,))[0][-1], names)
    usual, most = (known(one, key) for key in keys)
    if usual in names and most in names and names.index(most) > names.index(usual):
        yield one.find(("max_priority_class",))[0][-1].problem(
            f"{most!r} is less important than priority_class ({usual!r}), which its requests have"
            " without asking - raise it, or lower priority_class"
        )


def _levels(model: Node, names: Sequence[str]) -> Iterator[Problem]:
    written: dict[str, Node] = known(model, "priority_levels") or {}
    for node in written.values():
        yield from _named(node, names)
    missing = [name for name in names if name not in written]
    if written and missing:
        yield model.find(("priority_levels",))[0][-1].problem(
            f"says nothing of {', '.join(missing)} - write the level of every class, or of none"
        )
    last = ("", 0)
    for name in names:
        level = known(model, "priority_levels", name)
        if level is None:
            continue
        if level < last[1]:
            yield written[name].problem(
                f"{name} has level {level}, and the more important {last[0]} has {last[1]} - 1 is"
                " served first, so let the levels rise"
            )
        last = (name, level)


def _named(node: Node, names: Sequence[str]) -> Iterator[Problem]:
    name = node.key.rpartition(".")[2]
    if name not in names:
        yield node.problem(f"there is no priority class {name!r} - correct it or remove it")
