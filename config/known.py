"""What a tree is known to say: the questions that rules between keys ask of it.

What was reported already is not known, and neither is what may be meant by an unknown key beside
it. Knows no rule but that one number is at most another. Called by `config.checks`,
`config.model_checks`, `config.alias_checks` and `config.limit_checks`.
"""

from collections.abc import Iterator
from typing import Any

from config.admission import Admission
from config.discovery import DnsNames
from config.fields import Section
from config.listeners import Api
from config.policies import Breaker, Deadlines
from config.servers import Upstream
from config.tree import Loc, Node, Problem

_DEFAULTS: dict[str, Section] = {
    "admission": Admission(),
    "api": Api(),
    "breaker": Breaker(),
    "deadlines": Deadlines(),
    "dns": DnsNames(names=("localhost",)),
    "upstream": Upstream(),
}


def known(node: Node, *loc: str, default: Any = None) -> Any:
    """Return a value known to be right, the default when unwritten, None when not known."""
    nodes, rest = node.find(loc)
    if nodes[-1].bad:
        return None
    return default if rest else nodes[-1].value


def absent(node: Node, *loc: str) -> bool:
    """Whether it is known that nothing is written at `loc`."""
    nodes, rest = node.find(loc)
    return not nodes[-1].bad and (bool(rest) or nodes[-1].value is None)


def servers(root: Node) -> list[Node]:
    """Return the servers, none when they are not known."""
    value = known(root, "servers")
    return value if isinstance(value, list) else []


def sources(root: Node) -> list[Node]:
    """Return the sources of servers, none when they are not known."""
    value = known(root, "discovery")
    return value if isinstance(value, list) else []


def of_servers(root: Node, key: str) -> list[Any] | None:
    """Return what every server says at `key` (None: nothing), or None when one is not known.

    Those that will be discovered are not.
    """
    listed = servers(root)
    if not absent(root, "discovery"):
        return None
    values = [known(server, key) for server in listed]
    if all(
        value is not None or absent(server, key)
        for server, value in zip(listed, values, strict=True)
    ):
        return values or None
    return None


def ordered(root: Node, small: Loc, large: Loc) -> Iterator[Problem]:
    """Yield a problem when the number at `small` is above the one at `large`."""
    values = [_number(root, loc) for loc in (small, large)]
    if values[0] is None or values[1] is None or values[0] <= values[1]:
        return
    written = [loc for loc in (small, large) if not root.find(loc)[1]]
    names = [Node(None, "", 0).problem("", loc).key for loc in (small, large)]
    yield root.find(written[0])[0][-1].problem(
        f"{names[0]} ({values[0]:g}) is above {names[1]} ({values[1]:g}) - lower it or raise"
        f" {names[1]}"
    )


def _number(root: Node, loc: Loc) -> float | None:
    section = _DEFAULTS.get(str(loc[0]))
    default = getattr(section, str(loc[-1])) if section else None
    number: float | None = known(root, *map(str, loc), default=default)
    return number
