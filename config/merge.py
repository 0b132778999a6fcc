"""Joins the files of one configuration folder.

Mappings are joined key by key and lists one after the other. Anything else written in two files
is a conflict: no file overrides another, so that no order has to be remembered. Knows nothing of
YAML or of the keys. Called by `config.loader`.
"""

from config.tree import Node, Problem


def merge(roots: list[Node]) -> tuple[Node, list[Problem]]:
    """Join the trees of several files, in the order given, and list what they disagree about."""
    joined = roots[0]
    problems: list[Problem] = []
    for root in roots[1:]:
        joined = _join(joined, root, problems)
    return joined, problems


def _join(first: Node, second: Node, problems: list[Problem]) -> Node:
    if isinstance(first.value, dict) and isinstance(second.value, dict):
        return _with(first, second, _join_mappings(first.value, second.value, problems))
    if isinstance(first.value, list) and isinstance(second.value, list):
        return _with(first, second, first.value + second.value)
    problems.append(
        second.problem(f"also written in {first.file}:{first.line} - keep it in one file only")
    )
    return Node(first.value, first.file, first.line, first.key, bad=True)


def _with(first: Node, second: Node, value: dict[str, Node] | list[Node]) -> Node:
    return Node(value, first.file, first.line, first.key, first.bad or second.bad)


def _join_mappings(
    first: dict[str, Node], second: dict[str, Node], problems: list[Problem]
) -> dict[str, Node]:
    joined = dict(first)
    for key, node in second.items():
        joined[key] = _join(joined[key], node, problems) if key in joined else node
    return joined
