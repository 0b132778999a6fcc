"""Finds the right port when a wrong one was given: Triton's three are usually next to each other.

Knows where to look and how to make sure. Called by `diagnose` and `discover`.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gateway.faults import Fault
from gateway.ports import Clock
from gateway.upstream.addresses import join_address, split_address
from gateway.upstream.findings import Target
from gateway.upstream.identify import Seen, identify
from gateway.upstream.session import open_session, restricted_header

NEAREST_FIRST = (1, -1, 2, -2)
_MAX_PORT = 65535


async def look_at(addresses: Iterable[str], *, timeout_s: float) -> dict[str, Seen]:
    """Identify what listens at several addresses at once."""
    wanted = list(dict.fromkeys(addresses))
    seen = await asyncio.gather(
        *(identify(*split_address(address), timeout_s=timeout_s) for address in wanted)
    )
    return dict(zip(wanted, seen, strict=True))


def near(address: str, steps: Iterable[int] = NEAREST_FIRST) -> list[str]:
    """Return the addresses of the ports around this one."""
    host, port = split_address(address)
    return [join_address(host, port + step) for step in steps if 0 < port + step <= _MAX_PORT]


def of_kind(seen: Mapping[str, Seen], *kinds: object) -> list[str]:
    """Return the addresses at which one of these kinds was seen, in order."""
    return [address for address, what in seen.items() if what.kind in kinds]


async def first_triton(
    addresses: Iterable[str], like: Target, *, clock: Clock, timeout_s: float
) -> str | None:
    """Return the first address where a Triton answers over gRPC, reached like `like` is."""
    targets = [replace(like, grpc=address) for address in addresses]
    answers = await asyncio.gather(*(_is_triton(target, clock, timeout_s) for target in targets))
    for target, yes in zip(targets, answers, strict=True):
        if yes:
            return target.grpc
    return None


async def _is_triton(target: Target, clock: Clock, timeout_s: float) -> bool:
    async with open_session(target, clock=clock, timeout_s=timeout_s) as session:
        try:
            await session.metadata()
        except Fault as fault:
            return restricted_header(fault) is not None
    return True
