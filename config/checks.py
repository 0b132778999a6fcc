"""The rules between keys, and between keys and the files they name.

Works on the tree instead of on a finished `Config`, so that these problems are reported together
with those of single keys. What is already known to be wrong is left out: nothing is concluded from
it. Called by `config.loader`.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from config.alias_checks import check_aliases
from config.discovery_checks import check_sources
from config.fields import parse_ip, same_address, same_host
from config.known import absent, known, ordered, servers, sources
from config.limit_checks import check_limits
from config.listeners import Api, Ops
from config.model_checks import check_models
from config.priority_checks import check_priorities
from config.stores import split_redis_url
from config.tenant_checks import check_tenants
from config.tree import Loc, Node, Problem


def check(root: Node, folder: Path) -> Iterator[Problem]:
    """Yield every broken rule. Relative file names count from `folder`."""
    yield from check_sources(root, folder)
    yield from _unique(root, "name", str)
    yield from _unique(root, "grpc", same_address)
    for server in servers(root):
        yield from _own_ports(server)
    for server in _with_tls(root):
        yield from _cert_and_key(server)
    yield from _cert_and_key(root, "redis")
    yield from _redis(root)
    yield from _files(root, folder)
    yield from _state_file(root, folder, "steering")
    yield from _state_file(root, folder, "model_control")
    yield from _state_file(root, folder, "usage")
    yield from _file_or_redis(root)
    yield from _one_file_each(root)
    yield from _restricted_once(root)
    yield from _durations(root)
    yield from ordered(root, ("api", "max_body_bytes"), ("api", "max_inbound_bytes"))
    yield from ordered(root, ("admission", "max_queued_per_tenant"), ("admission", "max_queued"))
    yield from _forwarded(root)
    yield from check_models(root)
    yield from check_aliases(root)
    yield from check_tenants(root, folder)
    yield from check_priorities(root)
    yield from check_limits(root)
    yield from _exposed_ops(root)
    yield from _listeners_apart(root)


def some_servers(root: Node) -> Iterator[Problem]:
    """Yield a problem when nothing says which servers there are."""
    nodes, unwritten = root.find(("discovery",))
    if not unwritten and nodes[-1].value != []:
        return
    if known(root, "servers") == []:
        yield root.find(("servers",))[0][-1].problem(
            "the list is empty - write at least one server, or use `discovery`"
        )
    elif absent(root, "servers") and not root.bad:
        yield root.problem(
            "missing - add it: the Triton servers, or `discovery` to find some", ("servers",)
        )


def _with_tls(root: Node) -> list[Node]:
    """Return whatever may hold the TLS section of a server."""
    found = [source.child("servers") for source in sources(root)]
    return [*servers(root), *(node for node in found if node is not None)]


def _unique(root: Node, key: str, same: Callable[[str], Any]) -> Iterator[Problem]:
    first: dict[Any, Node] = {}
    for server in servers(root):
        text = known(server, key)
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
    grpc = known(server, "grpc")
    for key, port in (("http", 8000), ("metrics", 8002)):
        other = known(server, key)
        if grpc and other and same_address(grpc) == same_address(other):
            yield server.find((key,))[0][-1].problem(
                f"{other!r} is the address of grpc too - write another port"
                f" (Triton's own are {port} for {key} and 8001 for grpc)"
            )


def _forwarded(root: Node) -> Iterator[Problem]:
    """A caller must not be able to send what a server is sent on the gateway's behalf."""
    reserved = {key.lower() for server in servers(root) for key in known(server, "metadata") or {}}
    for name in known(root, "api", "forward_headers") or []:
        if not name.bad and str(name.value).lower() in reserved:
            yield name.problem(
                f"{name.value!r} is metadata of a server, which callers must not set - remove it"
            )


def _cert_and_key(owner: Node, *section: str) -> Iterator[Problem]:
    tls = (*section, "tls")
    for key, missing in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if not absent(owner, *tls, key) and absent(owner, *tls, missing):
            yield owner.find((*tls, key))[0][-1].problem(
                f"{missing} is missing - write both for mutual TLS, or neither"
            )


def _redis(root: Node) -> Iterator[Problem]:
    url = known(root, "redis", "url")
    if url is None:
        return
    address = split_redis_url(url)
    for key, used, where in (
        ("tls", address.tls, "a rediss:// URL"),
        ("sentinel_password", address.kind == "sentinel", "Sentinels"),
    ):
        if not used and not absent(root, "redis", key):
            yield root.find(("redis", key))[0][-1].problem(
                f"is used with {where} only, and url is {url!r} - correct the url or remove {key}"
            )


def _files(root: Node, folder: Path) -> Iterator[Problem]:
    owners: list[tuple[Node, Loc]] = [(server, ("tls",)) for server in _with_tls(root)]
    sections = ("api", "ops", "redis")
    for node, loc in [*owners, *((root, (section, "tls")) for section in sections)]:
        nodes, rest = node.find(loc)
        if not rest:
            yield from _tls_files(nodes[-1], folder)


def _tls_files(tls: Node, folder: Path) -> Iterator[Problem]:
    for key in ("ca_file", "cert_file", "key_file", "client_ca_file"):
        name = known(tls, key)
        if name is None:
            continue
        path = os.path.join(folder, name)
        if not _is_readable(path):
            yield tls.find((key,))[0][-1].problem(
                f"{path!r} is not a file that can be read - create it or correct the name"
            )


def _one_file_each(root: Node) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for section in ("steering", "model_control", "usage"):
        name = known(root, section, "state_file")
        if name is None:
            continue
        earlier = first.setdefault(str(name), section)
        if earlier != section:
            yield root.find((section, "state_file"))[0][-1].problem(
                f"{name!r} is the file of {earlier}.state_file too - name another one"
            )


def _file_or_redis(root: Node) -> Iterator[Problem]:
    if known(root, "usage", "state_file") is not None and not absent(root, "redis"):
        yield root.find(("usage", "state_file"))[0][-1].problem(
            "is used without `redis` only, which keeps the months otherwise - remove one of them"
        )


def _restricted_once(root: Node) -> Iterator[Problem]:
    first: dict[str, Node] = {}
    entries: list[Node] = known(root, "api", "restricted") or []
    for entry in entries:
        apis: list[Node] = known(entry, "apis") or []
        for node in apis:
            earlier = first.setdefault(str(node.value), node)
            if earlier is not node and not node.bad:
                yield node.problem(
                    f"{node.value!r} is restricted in line {earlier.line} already - name it once"
                )


def _state_file(root: Node, folder: Path, section: str) -> Iterator[Problem]:
    name = known(root, section, "state_file")
    if name is None:
        return
    node = root.find((section, "state_file"))[0][-1]
    path = os.path.join(folder, name)
    parent = os.path.dirname(path) or os.curdir
    if "\0" in path or (os.path.exists(path) and not _is_readable(path)):
        yield node.problem(f"{path!r} is not a file that can be read - name another one")
    elif not os.path.isdir(parent):
        yield node.problem(f"{parent!r} is not a folder - create it or correct the name")
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield node.problem(
            f"no file can be written in {parent!r} - let the gateway's user write there, or name"
            " another folder"
        )


def _is_readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _durations(root: Node) -> Iterator[Problem]:
    for section, small, large in (
        ("deadlines", "default_s", "max_s"),
        ("deadlines", "stream_idle_s", "stream_max_s"),
        ("upstream", "reconnect_backoff_min_s", "reconnect_backoff_max_s"),
        ("breaker", "open_min_s", "open_max_s"),
    ):
        yield from ordered(root, (section, small), (section, large))


def _exposed_ops(root: Node) -> Iterator[Problem]:
    host = known(root, "ops", "host", default=Ops().host)
    if host is None or _is_loopback(host):
        return
    if not absent(root, "ops", "key"):
        return
    if known(root, "ops", "allow_unauthenticated", default=False) is not False:
        return
    yield root.find(("ops", "host"))[0][-1].problem(
        f"{host!r} can be reached from other machines - add ops.key, listen on 127.0.0.1, or"
        " write `allow_unauthenticated: true` when the network keeps strangers out"
    )


def _is_loopback(host: str) -> bool:
    parsed = parse_ip(host)
    return parsed.is_loopback if parsed else same_host(host) == "localhost"


def _listeners_apart(root: Node) -> Iterator[Problem]:
    port = known(root, "ops", "port", default=Ops().port)
    if not port or port != known(root, "api", "port", default=Api().port):
        return
    hosts = [
        known(root, "api", "host", default=Api().host),
        known(root, "ops", "host", default=Ops().host),
    ]
    if None in hosts:
        return
    api, ops = map(same_host, hosts)
    if api == ops or {api, ops} & {"0.0.0.0", "::"}:
        written = [loc for loc in (("ops", "port"), ("api", "port")) if not root.find(loc)[1]]
        yield root.find(written[0])[0][-1].problem(
            f"{port} is the port of both api and ops - give one of them another port"
        )
