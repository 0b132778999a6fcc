"""The rules between the keys of an alias.

Works on the tree, like `config.checks`, which calls it.
"""

from collections.abc import Iterator

from config.known import absent, known
from config.tree import Node, Problem


def check_aliases(root: Node) -> Iterator[Problem]:
    """Yield every broken rule of every alias."""
    aliases: dict[str, Node] = known(root, "aliases", default={}) or {}
    for alias in aliases.values():
        yield from _weights(alias)
        yield from _header(alias)


def _weights(alias: Node) -> Iterator[Problem]:
    arms = known(alias, "arms")
    if not isinstance(arms, list) or not arms:
        return
    weights = [known(arm, "weight") for arm in arms]
    if None not in weights and not sum(weights):
        yield alias.find(("arms",))[0][-1].problem(
            "every weight is 0, so no request could go anywhere - give one arm a weight above 0"
        )
    first: dict[tuple[object, object], Node] = {}
    for arm in arms:
        model, version = known(arm, "model"), known(arm, "version")
        if model is None or (version is None and not absent(arm, "version")):
            continue
        if first.setdefault((model, version), arm) is not arm:
            named = model if version is None else f"{model} version {version}"
            yield arm.problem(f"{named} is another arm already - write it once")


def _header(alias: Node) -> Iterator[Problem]:
    sticky = known(alias, "sticky", default="nothing")
    if sticky == "header" and absent(alias, "header"):
        yield alias.find(("sticky",))[0][-1].problem(
            "no header is named - write the one to stick to as `header`"
        )
    if sticky in ("nothing", "tenant") and known(alias, "header") is not None:
        yield alias.find(("header",))[0][-1].problem(
            f"is not looked at with sticky: {sticky} - write sticky: header, or leave it out"
        )
