"""The rules between keys, and between keys and the files they name.

Works on the tree instead of on a finished `Config`, so that these problems are reported together
with those of single keys. What is already known to be wrong is left out: nothing is concluded from
it. Called by `config.loader`.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from config.fields import parse_ip, same_address, same_host
from config.listeners import Api, Ops
from config.policies import Deadlines
from config.servers import Upstream
from config.tree import Loc, Node, Problem


def check(root: Node, folder: Path) -> Iterator[Problem]:
    """Yield every broken rule. Relative file names count from `folder`."""
    yield from _unique(root, "name", str)
    yield from _unique(root, "grpc", same_address)
    for server in _servers(root):
        yield from _own_ports(server)
        yield from _cert_and_key(server)
    yield from _files(root, folder)
    yield from _durations(root)
    yield from _exposed_ops(root)
    yield from _listeners_apart(root)


def _known(node: Node, *loc: str, default: Any = None) -> Any:
    """Return a value known to be right, the default when unwritten, None when not known."""
    nodes, rest = node.find(loc)
    if nodes[-1].bad:
        return None
    return default if rest else nodes[-1].value


def _absent(node: Node, *loc: str) -> bool:
    """Whether it is known that nothing is written at `loc`."""
    nodes, rest = node.find(loc)
    return not nodes[-1].bad and (bool(rest) or nodes[-1].value is None)


def _servers(root: Node) -> list[Node]:
    value = _known(root, "servers")
    return value if isinstance(value, list) else []


def _unique(root: Node, key: str, same: Callable[[str], Any]) -> Iterator[Problem]:
    first: dict[Any, Node] = {}
    for server in _servers(root):
        text = _known(server, key)
        if text is None:
            continue
        node = server.find((key,))[0][-1]
        earlier = first.setdefault(same(text), node)
        if earlier is not node:
            where = f"{earlier.file}:{earlier.line}"
            yield node.problem(
                f"{text!r} is also the {key} of the server in {where} - each server needs its own"
            )


def _own_ports(server: Node) -> Iterator[Problem]:
    grpc = _known(server, "grpc")
    for key, port in (("http", 8000), ("metrics", 8002)):
        other = _known(server, key)
        if grpc and other and same_address(grpc) == same_address(other):
            yield server.find((key,))[0][-1].problem(
                f"{other!r} is the address of grpc too - write another port"
                f" (Triton's own are {port} for {key} and 8001 for grpc)"
            )


def _cert_and_key(server: Node) -> Iterator[Problem]:
    for key, missing in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if not _absent(server, "tls", key) and _absent(server, "tls", missing):
            yield server.find(("tls", key))[0][-1].problem(
                f"{missing} is missing - write both for mutual TLS, or neither"
            )


def _files(root: Node, folder: Path) -> Iterator[Problem]:
    owners: list[tuple[Node, Loc]] = [(server, ("tls",)) for server in _servers(root)]
    for node, loc in [*owners, (root, ("api", "tls")), (root, ("ops", "tls"))]:
        nodes, rest = node.find(loc)
        if not rest:
            yield from _tls_files(nodes[-1], folder)


def _tls_files(tls: Node, folder: Path) -> Iterator[Problem]:
    for key in ("ca_file", "cert_file", "key_file", "client_ca_file"):
        name = _known(tls, key)
        if name is None:
            continue
        path = os.path.join(folder, name)
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            yield tls.find((key,))[0][-1].problem(
                f"{path!r} is not a file that can be read - create it or correct the name"
            )


def _durations(root: Node) -> Iterator[Problem]:
    longest: Loc = ("deadlines", "max_s")
    yield from _ordered(root, ("deadlines", "default_s"), longest)
    yield from _ordered(
        root, ("upstream", "reconnect_backoff_min_s"), ("upstream", "reconnect_backoff_max_s")
    )
    for model in _known(root, "models", default={}) or {}:
        yield from _ordered(root, ("models", model, "deadline_s"), longest)


_DEFAULTS: dict[str, Deadlines | Upstream] = {"deadlines": Deadlines(), "upstream": Upstream()}


def _ordered(root: Node, small: Loc, large: Loc) -> Iterator[Problem]:
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
    number: float | None = _known(root, *map(str, loc), default=default)
    return number


def _exposed_ops(root: Node) -> Iterator[Problem]:
    host = _known(root, "ops", "host", default=Ops().host)
    if host is None or _is_loopback(host):
        return
    if not _absent(root, "ops", "key"):
        return
    if _known(root, "ops", "allow_unauthenticated", default=False) is not False:
        return
    yield root.find(("ops", "host"))[0][-1].problem(
        f"{host!r} can be reached from other machines - add ops.key, listen on 127.0.0.1, or"
        " write `allow_unauthenticated: true` when the network keeps strangers out"
    )


def _is_loopback(host: str) -> bool:
    parsed = parse_ip(host)
    return parsed.is_loopback if parsed else same_host(host) == "localhost"


def _listeners_apart(root: Node) -> Iterator[Problem]:
    port = _known(root, "ops", "port", default=Ops().port)
    if not port or port != _known(root, "api", "port", default=Api().port):
        return
    hosts = [
        _known(root, "api", "host", default=Api().host),
        _known(root, "ops", "host", default=Ops().host),
    ]
    if None in hosts:
        return
    api, ops = map(same_host, hosts)
    if api == ops or {api, ops} & {"0.0.0.0", "::"}:
        written = [loc for loc in (("ops", "port"), ("api", "port")) if not root.find(loc)[1]]
        yield root.find(written[0])[0][-1].problem(
            f"{port} is the port of both api and ops - give one of them another port"
        )
