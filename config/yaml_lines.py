"""YAML text to a tree that knows its lines.

Decides which YAML an operator may use: one document of mappings, lists, text, decimal numbers,
true and false (YAML 1.2's reading, so `no` and `12:30` are text), anchors and merge keys. Refuses
tags, keys that are not text, keys written twice, and documents that unfold to an unreasonable
size. Knows no section of the configuration. Called by `config.loader`.
"""

import re
from collections.abc import Callable

import yaml

from config.tree import Node, Problem, Scalar, join

MAX_FILE_BYTES = 1_048_576
"""1 MiB: thousands of servers, and still read within seconds."""
MAX_VALUES = 100_000
"""Values of one file after its anchors were unfolded."""
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_BOOLS = {"true": True, "false": False}


def _text(text: str) -> str:
    if not _encodes(text):
        raise ValueError
    return text


def _encodes(text: str) -> bool:
    """Whether text is Unicode: an escape can write half a surrogate pair."""
    return not re.search("[\ud800-\udfff]", text)


_READ: dict[str, Callable[[str], Scalar]] = {
    _TAG + "str": _text,
    _TAG + "int": int,
    _TAG + "float": float,
    _TAG + "bool": lambda text: _BOOLS[text.lower()],
    _TAG + "null": lambda text: None,
}
_KINDS = {"map": yaml.MappingNode, "seq": yaml.SequenceNode, "str": yaml.ScalarNode}
_RESOLVERS = {
    None: [
        (_TAG + "null", re.compile(r"(~|null|Null|NULL|)$")),
        (_TAG + "bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$")),
        (_TAG + "int", re.compile(r"[-+]?[0-9]+$")),
        (_TAG + "float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")),
        (_TAG + "merge", re.compile(r"<<$")),
    ]
}
# PyYAML's message holds the alias or tag itself, which may be an unquoted secret.
_OWN_WORDS = (
    (r"'\\t'", "a tab where YAML allows only spaces - write spaces instead"),
    ("undefined alias", "an alias without its anchor - quote text that begins with *"),
    ("another document", "a second document begins here - write one document a file"),
    (r"\btag\b", "a tag that is not understood - quote text that begins with !"),
    ("too many values", f"more than {MAX_VALUES} values - split the file into a folder of files"),
    ("too many levels", f"nested deeper than {MAX_DEPTH} levels - remove levels"),
    ("duplicate anchor", "an anchor of the same name as an earlier one - rename one of them"),
)


class Refused(Exception):
    """Nothing of the file can be used; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's scalars and limits on depth and size."""

    yaml_implicit_resolvers = _RESOLVERS
    depth = 0
    count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.count += 1
        mark = parent.start_mark if parent else None
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="too many levels", problem_mark=mark)
        if self.count > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem="too many values", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse(data: bytes, file: str, *, may_be_list: bool = False) -> tuple[Node, list[Problem]]:
    """Read one file's bytes into a tree whose root is a mapping, and the problems found in it.

    With `may_be_list` the root may be a list, too. What a problem concerns is still in the tree,
    marked bad. Raises Refused when there is no tree.
    """
    root = _compose(_decode(data, file), file)
    if root is None:
        raise Refused(Problem(file, 1, "", "the file is empty - write at least `servers:`"))
    if not (_is(root, "map") or (may_be_list and _is(root, "seq"))):
        raise Refused(
            Problem(file, _line(root), "", "not a mapping - begin with a key such as `servers:`")
        )
    builder = _Builder(file)
    return builder.build(root, "", _line(root), 0), builder.problems


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_FILE_BYTES:
        message = f"larger than {MAX_FILE_BYTES} bytes - split it into a folder of files"
        raise Refused(Problem(file, 1, "", message))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused(Problem(file, line, "", "not UTF-8 text - save the file as UTF-8")) from None


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise Refused(Problem(file, line, "", _syntax(error))) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = "a control character that YAML does not allow - remove it"
        raise Refused(Problem(file, line, "", message)) from None
    except (ValueError, OverflowError):  # raised by PyYAML without a place
        message = "an escape or number is beyond what YAML can hold - put text in single quotes"
        raise Refused(Problem(file, _impossible_escape(text), "", message)) from None


def _impossible_escape(text: str) -> int:
    """Return the line of the first escape beyond Unicode, or 1."""
    found = re.search(r"\\U(?!000|0010)[0-9A-Fa-f]{8}", text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _syntax(error: yaml.MarkedYAMLError) -> str:
    said = ", ".join(part for part in (error.context, error.problem) if part)
    for pattern, words in _OWN_WORDS:
        if re.search(pattern, said):
            return words
    return f"not valid YAML: {said} - check indentation, quotes and brackets here"


def _is(node: yaml.Node, tag: str) -> bool:
    """Whether a node is what its tag says: anybody can write `!!map [1]`."""
    return node.tag == _TAG + tag and isinstance(node, _KINDS[tag])


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Builder:
    """Turns PyYAML's nodes into ours, counting what anchors unfold to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._count = 0

    def build(self, raw: yaml.Node, key: str, line: int, depth: int) -> Node:
        """Build the tree of one value; `line` is where its key, or else itself, is written."""
        self._limit(line, depth)
        node = Node(None, self.file, line, key)
        if isinstance(raw, yaml.ScalarNode):
            self._scalar(raw, node)
        elif _is(raw, "map"):
            node.value = self._mapping(raw, node, depth)
        elif _is(raw, "seq"):
            node.value = [
                self.build(item, join(key, position), _line(item), depth + 1)
                for position, item in enumerate(raw.value)
            ]
        else:
            self._bad(node, "a tag is not understood here - remove it")
        return node

    def _limit(self, line: int, depth: int) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            message = f"unfolds to more than {MAX_VALUES} values - use fewer anchors and aliases"
            raise Refused(Problem(self.file, line, "", message))
        if depth > MAX_DEPTH:
            message = "nested too deeply - an anchor must not contain itself"
            raise Refused(Problem(self.file, line, "", message))

    def _bad(self, node: Node, message: str, line: int | None = None) -> None:
        node.bad = True
        self.problems.append(Problem(self.file, line or node.line, node.key, message))

    def _scalar(self, raw: yaml.ScalarNode, node: Node) -> None:
        if raw.tag == _TAG + "null" and not raw.value:
            self._bad(node, "nothing is written here - write a value, or remove the key")
        elif raw.tag not in _READ:
            self._bad(node, "a tag is not understood here - remove it, or quote the text")
        else:
            try:
                node.value = _READ[raw.tag](raw.value)
            except (ValueError, KeyError):
                self._bad(node, "the value does not fit its type - write it as plain text")

    def _mapping(self, raw: yaml.Node, node: Node, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        for key, value in raw.value:
            if key.tag == _TAG + "merge":
                for name, child in self._merged(value, node, depth).items():
                    inherited.setdefault(name, child)
            elif not _is(key, "str") or not _encodes(key.value):
                self._bad(node, "a key is not text - put it in quotes", _line(key))
            elif key.value in own:
                self._twice(own[key.value], _line(key))
            else:
                at = join(node.key, key.value)
                own[key.value] = self.build(value, at, _line(key), depth + 1)
        return inherited | own

    def _twice(self, first: Node, line: int) -> None:
        self._bad(first, f"written twice, first in line {first.line} - keep one of them", line)

    def _merged(self, raw: yaml.Node, node: Node, depth: int) -> dict[str, Node]:
        if _is(raw, "map"):
            self._limit(_line(raw), depth + 1)
            return self._mapping(raw, node, depth + 1)
        if not _is(raw, "seq"):
            self._bad(node, "`<<` takes an alias of a mapping - write one, or remove it")
            return {}
        merged: dict[str, Node] = {}
        for item in raw.value:
            self._limit(_line(item), depth + 1)
            merged = self._merged(item, node, depth + 1) | merged
        return merged
