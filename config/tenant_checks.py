"""The rules between tenants, tiers and the rest of the configuration.

Works on the tree, like `config.checks`, which calls it. Files with hashes are looked into later,
see `config.key_files`.
"""

import os
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

from config.known import absent, known
from config.tenants import ANONYMOUS, split_subject
from config.tree import Node, Problem

_RECOGNISED_BY = ("keys", "key_files", "certificates", "networks", "claims")


def check_tenants(root: Node, folder: Path) -> Iterator[Problem]:
    """Yield every broken rule of every tenant. Relative file names count from `folder`."""
    tenants: dict[str, Node] = known(root, "tenants", default={}) or {}
    for name, tenant in tenants.items():
        yield from _tier(root, tenant)
        yield from _needs(root, tenant)
        yield from _key_files(tenant, folder)
        if name == ANONYMOUS:
            yield from _shows_nothing(tenant)
    yield from _once(tenants)


def _tier(root: Node, tenant: Node) -> Iterator[Problem]:
    tier, tiers = known(tenant, "tier"), known(root, "tiers", default={})
    if tier is not None and tiers is not None and tier not in tiers:
        yield tenant.find(("tier",))[0][-1].problem(
            f"there is no tier {tier!r} - write it below `tiers`, or correct it"
        )


def _needs(root: Node, tenant: Node) -> Iterator[Problem]:
    for key, needed in (
        ("certificates", ("api", "tls", "client_ca_file")),
        ("claims", ("auth", "jwt")),
    ):
        if known(tenant, key) and absent(root, *needed):
            yield tenant.find((key,))[0][-1].problem(
                f"nobody can show any without {'.'.join(needed)} - write it, or remove {key}"
            )


def _key_files(tenant: Node, folder: Path) -> Iterator[Problem]:
    for node in known(tenant, "key_files") or []:
        if node.bad:
            continue
        path = os.path.join(folder, node.value)
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            yield node.problem(
                f"{path!r} is not a file that can be read - create it or correct the name"
            )


def _shows_nothing(tenant: Node) -> Iterator[Problem]:
    for key in _RECOGNISED_BY:
        if known(tenant, key):
            yield tenant.find((key,))[0][-1].problem(
                "the tenant anonymous is of those who show nothing - give the others a tenant of"
                " their own"
            )


def _once(tenants: dict[str, Node]) -> Iterator[Problem]:
    """Whoever is recognised must be one tenant."""
    first: dict[object, Node] = {}
    for tenant in tenants.values():
        for what, mark, node in _marks(tenant):
            earlier = first.setdefault((what, mark), node)
            if earlier is not node:
                yield node.problem(
                    f"this {what} is also in {earlier.file}:{earlier.line} - remove one of them"
                )


def _marks(tenant: Node) -> Iterator[tuple[str, object, Node]]:
    for key in known(tenant, "keys") or []:
        text = known(key, "hash")
        if text is not None:
            yield "key", text.split(":")[1], key
    for node in known(tenant, "certificates") or []:
        if not node.bad:
            yield "certificate", tuple(sorted(split_subject(str(node.value)))), node
    for node in known(tenant, "networks") or []:
        if not node.bad:
            yield "network", ip_network(str(node.value)), node
