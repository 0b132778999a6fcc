"""Server files: the list of servers that something else writes and the gateway reads again.

Understands our own form, a list of what `servers[]` takes, and groups of `targets` and `labels` as
Prometheus' `file_sd` has them. Both are turned into the tree of a configuration, so that the rules
and the words for what is wrong are the same. Called by wiring, for each new content of a file.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from config.discovery import Discovery, server_name
from config.fields import split_address
from config.loader import judge
from config.servers import Server, ServerTraits
from config.tree import ConfigError, Node, Problem, Scalar
from config.yaml_lines import Refused, parse

_LABELS = ("zone", "pool", "capacity")
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+):[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")


def servers_in(data: bytes, path: Path, source: Discovery) -> tuple[Server, ...]:
    """Read the content of a server file. Raises ConfigError with every problem found."""
    try:
        root, problems = parse(_without_tabs(data), str(path), may_be_list=True)
    except Refused as refused:
        raise ConfigError([refused.problem]) from None
    listed = root.child("servers") if isinstance(root.value, dict) else root
    if listed is None or not isinstance(listed.value, list) or problems:
        wrong = root.problem("neither a list of servers nor a mapping with `servers`")
        raise ConfigError(problems or [wrong])
    entries = [server for entry in listed.value for server in _entries(entry, source, problems)]
    if not entries and not problems:
        return ()
    servers = Node(entries, root.file, listed.line)
    return judge([Node({"servers": servers}, root.file, 1)], problems, path.parent).servers


def _without_tabs(data: bytes) -> bytes:
    """Return JSON that is indented with tabs so that YAML allows it; no text holds bare ones."""
    if b"\t" in data:
        try:
            json.loads(data)
        except ValueError:
            return data
    return data.replace(b"\t", b" ")


def _entries(entry: Node, source: Discovery, problems: list[Problem]) -> Iterator[Node]:
    if not isinstance(entry.value, dict):
        yield entry  # told with the other problems
    elif "targets" in entry.value:
        yield from _group(entry, source, problems)
    else:
        yield _completed(entry, entry.value, source)


def _group(group: Node, source: Discovery, problems: list[Problem]) -> Iterator[Node]:
    assert isinstance(group.value, dict)
    targets, labels = group.value["targets"], group.child("labels")
    said = _understood(labels, problems) if labels else {}
    if not isinstance(targets.value, list):
        problems.append(targets.problem("not a list - write `targets` as a list of host:port"))
        return
    for target in targets.value:
        if isinstance(target.value, str) and target.value:
            yield _completed(target, said | _addresses(target, source), source)
        else:
            problems.append(target.problem("not text - write host:port"))


def _understood(labels: Node, problems: list[Problem]) -> dict[str, Node]:
    if not isinstance(labels.value, dict):
        problems.append(labels.problem("not a mapping - write the labels by name"))
        return {}
    said = {name: node for name, node in labels.value.items() if name in _LABELS and node.value}
    capacity = said.get("capacity")
    if capacity is not None and isinstance(capacity.value, str):
        if _NUMBER.fullmatch(capacity.value):
            said["capacity"] = _like(capacity, float(capacity.value))
        else:
            problems.append(capacity.problem(f"{capacity.value[:60]!r} is not a number"))
    return said


def _addresses(target: Node, source: Discovery) -> dict[str, Node]:
    text = str(target.value)
    if re.search(r"(^[^:]*|\])$", text):  # no port
        return {"grpc": _like(target, f"{text}:{source.servers.grpc_port}")}
    if source.file is None or source.file.targets == "grpc":
        return {"grpc": target}
    host = text.rpartition(":")[0]
    return {"metrics": target, "grpc": _like(target, f"{host}:{source.servers.grpc_port}")}


def _completed(entry: Node, said: dict[str, Node], source: Discovery) -> Node:
    """Add what the source says of all its servers, unless it is said of this one."""
    common = {name: _tree(value, entry) for name, value in _common(source).items()}
    derived = {name: _like(entry, text) for name, text in _derived(said.get("grpc"), source)}
    unnamed = {"name": Node(None, entry.file, entry.line, entry.key, bad=True)}
    whole = unnamed | derived | common | said
    return Node(whole, entry.file, entry.line, entry.key, entry.bad)


def _derived(grpc: Node | None, source: Discovery) -> Iterator[tuple[str, str]]:
    text = str(grpc.value) if grpc else ""
    if not _ADDRESS.fullmatch(text):
        return  # told with the other problems
    yield "name", server_name(source.name, *split_address(text))
    ports = (("http", source.servers.http_port), ("metrics", source.servers.metrics_port))
    for key, port in ports:
        if port is not None:
            yield key, f"{text.rpartition(':')[0]}:{port}"


def _common(source: Discovery) -> dict[str, Any]:
    return source.servers.model_dump(
        include=set(ServerTraits.model_fields), exclude_unset=True, exclude_none=True
    )


def _tree(value: Any, at: Node) -> Node:
    """Return a value of the configuration as if it was written in an entry of the file."""
    if isinstance(value, dict):
        return _like(at, {name: _tree(item, at) for name, item in value.items()})
    if isinstance(value, tuple):
        return _like(at, [_tree(item, at) for item in value])
    return _like(at, os.path.abspath(value) if isinstance(value, Path) else value)


def _like(at: Node, value: "Scalar | dict[str, Node] | list[Node]") -> Node:
    return Node(value, at.file, at.line, at.key)
