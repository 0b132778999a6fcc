"""The rules between keys of a source of servers.

Works on the tree, like `config.checks`, which calls it. What a source will find is no matter of
these rules.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from config.discovery import FoundServers
from config.known import absent, known, ordered, sources
from config.tree import Node, Problem

_KINDS = ("dns", "file", "kubernetes")


def check_sources(root: Node, folder: Path) -> Iterator[Problem]:
    """Yield every broken rule of every source. Relative file names count from `folder`."""
    names: dict[str, Node] = {}
    for source in sources(root):
        yield from _one_kind(source)
        yield from _own_name(source, names)
        yield from _own_ports(source)
        yield from _kubeconfig(source, folder)
        yield from ordered(source, ("dns", "min_interval_s"), ("dns", "max_interval_s"))


def _one_kind(source: Node) -> Iterator[Problem]:
    if source.bad:
        return
    written = [kind for kind in _KINDS if not absent(source, kind)]
    if len(written) != 1:
        have = " and ".join(written) or "none of them"
        yield source.problem(
            f"a source has exactly one of dns, file and kubernetes - here is {have}"
        )


def _own_name(source: Node, names: dict[str, Node]) -> Iterator[Problem]:
    name = known(source, "name")
    if name is None:
        return
    node = source.find(("name",))[0][-1]
    earlier = names.setdefault(name, node)
    if earlier is not node:
        yield node.problem(
            f"{name!r} is also the name of the source in {earlier.file}:{earlier.line} - each"
            " source needs its own"
        )


def _own_ports(source: Node) -> Iterator[Problem]:
    grpc = known(source, "servers", "grpc_port", default=FoundServers().grpc_port)
    for key in ("http_port", "metrics_port"):
        port = known(source, "servers", key)
        if port is not None and port == grpc:
            yield source.find(("servers", key))[0][-1].problem(
                f"{port} is the gRPC port too - write another port"
            )


def _kubeconfig(source: Node, folder: Path) -> Iterator[Problem]:
    if not absent(source, "kubernetes", "context") and absent(source, "kubernetes", "kubeconfig"):
        yield source.find(("kubernetes", "context"))[0][-1].problem(
            "kubeconfig is missing - write the file that has this context, or remove it"
        )
    name = known(source, "kubernetes", "kubeconfig")
    if name is not None:
        path = os.path.join(folder, name)
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            yield source.find(("kubernetes", "kubeconfig"))[0][-1].problem(
                f"{path!r} is not a file that can be read - create it or correct the name"
            )
