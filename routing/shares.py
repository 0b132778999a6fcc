"""Whose compute time it was: what a server has spent on a version, shared out by rows.

A server tells how many rows of a version it has executed so far and how long it computed; tenants'
rows are noted as their requests end. What was executed between two looks is shared out by rows:
rows of a tenant over all rows. Rows that nobody here has sent are others', and so is their time.

The two sides never meet exactly: a request is told of a little later than its server counts it. So
rows wait for the server's next word, and what the server has executed waits for rows, newest first,
for `GRACE_S` each. Everything is whole microseconds and rows: what is shared out, what still waits
and what is left to others add up to what the server has measured. Called by `gateway.usage`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from routing.types import ModelVersion

GRACE_S = 10.0


class Executed(NamedTuple):
    """What a server says of a version, counted since it was loaded."""

    rows: int
    compute_us: int


@dataclass(slots=True)
class _Open:
    """What a server has executed and nobody has claimed."""

    at_s: float
    rows: int
    compute_us: int

    def take(self, rows: int) -> int:
        """Take rows out of it; return the time that belongs to them."""
        part_us = self.compute_us * rows // self.rows
        self.rows -= rows
        self.compute_us -= part_us
        return part_us


@dataclass(slots=True)
class _Ran:
    """Rows of tenants that wait to be found in a server's count."""

    at_s: float
    rows: dict[str, int]


@dataclass(slots=True)
class _Version:
    """One version on one server."""

    counted: Executed
    open: list[_Open] = field(default_factory=list)
    ran: list[_Ran] = field(default_factory=list)

    def observe(self, counted: Executed, now_s: float) -> dict[str, int]:
        """Take the server's word; return what it means for each tenant, in microseconds."""
        if counted == self.counted and not self.open and not self.ran:
            return {}
        self._note(counted, now_s)
        claimed = self._claim()
        compute_us = self._take(sum(claimed.values()))
        since_s = now_s - GRACE_S
        self.open = [each for each in self.open if each.at_s >= since_s]
        self.ran = [each for each in self.ran if each.at_s >= since_s]
        return split(compute_us, claimed)

    def _note(self, counted: Executed, now_s: float) -> None:
        before, self.counted = self.counted, counted
        if counted.rows < before.rows or counted.compute_us < before.compute_us:
            before = Executed(0, 0)  # it was loaded anew
        rows, compute_us = counted.rows - before.rows, counted.compute_us - before.compute_us
        if not rows and not compute_us:
            return
        last = self.open[-1] if self.open else None
        if last is None or last.rows:
            self.open.append(_Open(now_s, rows, compute_us))
            return
        # Time without a row belongs to the next ones: the two are not counted at the same moment.
        last.compute_us += compute_us
        if rows:
            last.at_s, last.rows = now_s, rows

    def _claim(self) -> dict[str, int]:
        """Take the rows that can be found, the oldest first."""
        left = sum(each.rows for each in self.open)
        claimed: dict[str, int] = {}
        for ran in self.ran:
            found = split(min(left, sum(ran.rows.values())), ran.rows)
            for tenant, rows in found.items():
                claimed[tenant] = claimed.get(tenant, 0) + rows
                ran.rows[tenant] -= rows
            left -= sum(found.values())
        self.ran = [each for each in self.ran if any(each.rows.values())]
        return claimed

    def _take(self, rows: int) -> int:
        """Take executed rows, the newest first, and return the time that was spent on them."""
        compute_us = 0
        for each in reversed(self.open):
            if rows and each.rows:
                taken = min(rows, each.rows)
                compute_us += each.take(taken)
                rows -= taken
        self.open = [each for each in self.open if each.rows or each.compute_us]
        return compute_us


class Shares:
    """The versions on all servers."""

    def __init__(self) -> None:
        self._servers: dict[str, dict[ModelVersion, _Version]] = {}

    def ran(self, server: str, key: ModelVersion, rows: Mapping[str, int], now_s: float) -> None:
        """Note rows, by tenant, that have run on a server and are over."""
        version = self._servers.get(server, {}).get(key)
        if version is not None:
            version.ran.append(_Ran(now_s, dict(rows)))

    def observed(
        self, server: str, counters: Mapping[ModelVersion, Executed], now_s: float
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Take what a server counts; yield a model, and microseconds by tenant, for each version.

        What it had counted before it was first asked is nobody's.
        """
        versions = self._servers.get(server)
        is_new = versions is None
        if versions is None:
            versions = self._servers[server] = {}
        for key, counted in counters.items():
            version = versions.get(key)
            if version is None:
                version = versions[key] = _Version(counted if is_new else Executed(0, 0))
            shared = version.observe(counted, now_s)
            if shared:
                yield key.model, shared

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forget the servers that have left."""
        for server in [name for name in self._servers if not is_known(name)]:
            del self._servers[server]


def split(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split a whole amount by weight, so that the parts add up to it exactly.

    What does not divide goes to those that lose most by it. No part is negative, and with an amount
    up to the sum of the weights none is above its weight.
    """
    total = sum(weights.values())
    if not amount or not total:
        return {}
    parts = {name: amount * weight // total for name, weight in weights.items()}
    lost = sorted(weights, key=lambda name: (-(amount * weights[name] % total), name))
    for name in lost[: amount - sum(parts.values())]:
        parts[name] += 1
    return parts
