"""Where each value was written, and the one form every complaint about it takes.

Knows files, lines and dotted keys; knows neither YAML nor which keys exist. Built by
`config.yaml_lines`, joined by `config.merge`, read by everything that reports a problem.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

Scalar = str | int | float | bool | None
Loc = tuple[str | int, ...]
"""A path into the tree: mapping keys and list positions."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing an operator has to change: where it is written, and what to do about it."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(Exception):
    """The configuration was refused. `problems` holds every reason, in file and line order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(slots=True)
class Node:
    """One value of the configuration and the place it was written at.

    `key` is dotted and counts list positions within its own file. `bad` means that a problem with
    this value, or with one of a mapping's own keys, has been reported already: nobody judges it a
    second time, and nothing is concluded from it.
    """

    value: "Scalar | dict[str, Node] | list[Node]"
    file: str
    line: int
    key: str = ""
    bad: bool = False

    def problem(self, message: str, rest: Loc = ()) -> Problem:
        """Build the problem of this value, or of `rest` below it that was never written."""
        key = self.key
        for part in rest:
            key = join(key, part)
        return Problem(self.file, self.line, key, message)

    def plain(self) -> object:
        """Return the value as plain dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, part: str | int) -> "Node | None":
        """Return the value one step below, or None where nothing is written there."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None

    def find(self, loc: Loc) -> "tuple[list[Node], Loc]":
        """Walk down `loc`: the nodes on the way (this one first), and what was not written."""
        nodes = [self]
        for depth, part in enumerate(loc):
            child = nodes[-1].child(part)
            if child is None:
                return nodes, loc[depth:]
            nodes.append(child)
        return nodes, ()


@dataclass(frozen=True, slots=True)
class Origin:
    """The tree a configuration was built from.

    It takes no part in comparisons: configurations are equal when their values are.
    """

    root: Node = field(default_factory=lambda: Node({}, "configuration", 1), compare=False)


def join(key: str, part: str | int) -> str:
    """Append one step to a dotted key: `servers` + 0 + `grpc` is `servers[0].grpc`."""
    if isinstance(part, int):
        return f"{key}[{part}]"
    if not _PLAIN_KEY.fullmatch(part):
        return f"{key}[{json.dumps(part)}]"
    return f"{key}.{part}" if key else part
