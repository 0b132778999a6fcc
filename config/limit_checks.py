"""The rules between the keys of a limit.

Works on the tree, like `config.checks`, which calls it.
"""

from collections.abc import Iterator

from config.known import absent, known
from config.tree import Node, Problem

_KINDS = ("per_s", "per_minute", "concurrent")


def check_limits(root: Node) -> Iterator[Problem]:
    """Yield every broken rule of every limit."""
    limits: dict[str, Node] = known(root, "limits", default={}) or {}
    for limit in limits.values():
        yield from _one_kind(limit)
        yield from _rates_only(limit)


def _one_kind(limit: Node) -> Iterator[Problem]:
    if all(absent(limit, key) for key in _KINDS):
        yield limit.problem(
            "does not say how much - write `per_s` or `per_minute`, or `concurrent`"
        )
    written = [key for key in _KINDS if known(limit, key) is not None]
    for key in written[1:]:
        yield limit.find((key,))[0][-1].problem(
            f"{written[0]} is written too, and a limit has one measure - remove one, or make"
            " two limits"
        )


def _rates_only(limit: Node) -> Iterator[Problem]:
    if known(limit, "concurrent") is None:
        return
    for key in ("burst", "of"):
        if known(limit, key) is not None:
            yield limit.find((key,))[0][-1].problem(
                "is for rates, and `concurrent` counts requests at a time - remove it"
            )
