"""Counts what settled requests have used, until somebody takes it over.

Decides which requests count, for whom, and where their rows have run. Refuses to know what becomes
of the counts: `accountant` does, in this process or in the supervisor. Told of requests in batches.
"""

from dataclasses import dataclass, field

from gateway.exchange import INFERENCE, Exchange
from gateway.faults import Fault, Kind
from routing.lease import Lease
from routing.types import ModelVersion
from routing.usage import Amounts, Pair

Place = tuple[str, ModelVersion]
"""A server and a version on it."""


@dataclass(slots=True)
class Used:
    """What requests have used, and the rows of tenants by where they have run."""

    amounts: dict[Pair, Amounts] = field(default_factory=dict)
    rows: dict[Place, dict[str, int]] = field(default_factory=dict)


_Ran = tuple[str, str, str, str]
"""A server, a model and version on it, and whose rows have run there."""


class UsageCounts:
    """Counts settled requests; see `gateway.ports.Observer`."""

    def __init__(self) -> None:
        self._amounts: dict[Pair, Amounts] = {}
        self._rows: dict[_Ran, int] = {}
        self._left: list[tuple[Lease, _Ran, int]] = []

    def observe(self, exchange: Exchange) -> None:
        """Count one settled request, if it was for a model."""
        model = exchange.model
        if not model or exchange.route not in INFERENCE:
            return
        tenant = exchange.tenant  # one of the configuration, or anonymous
        amounts = self._amounts.get((tenant, model))
        if amounts is None:
            amounts = self._amounts[tenant, model] = Amounts()
        rows = exchange.rows
        amounts.requests += 1
        amounts.rows += rows
        amounts.input_bytes += exchange.bytes_in
        amounts.output_bytes += exchange.bytes_out
        if exchange.fault is not None:
            amounts.errors += 1
        if not rows:
            return
        for lease in exchange.detached:
            self._left.append((lease, (lease.server, model, exchange.version, tenant), rows))
        if exchange.fault is None or _has_run(exchange, exchange.fault):
            self._count((exchange.server, model, exchange.version, tenant), rows)

    def _count(self, ran: _Ran, rows: int) -> None:
        self._rows[ran] = self._rows.get(ran, 0) + rows

    def take(self) -> Used | None:
        """Hand over what was counted since the last call, None if nothing was."""
        left, self._left = self._left, []
        for each in left:
            lease, ran, rows = each
            if lease.held:
                self._left.append(each)
            else:
                self._count(ran, rows)
        if not self._amounts and not self._rows:
            return None
        used = Used(self._amounts)
        for (server, model, version, tenant), rows in self._rows.items():
            place = (server, ModelVersion(model, int(version)))
            used.rows.setdefault(place, {})[tenant] = rows
        self._amounts, self._rows = {}, {}
        return used


def _has_run(exchange: Exchange, fault: Fault) -> bool:
    """Whether a request that failed has run on its last server, and is not left running there."""
    if fault.kind is Kind.FAILED:
        return True
    gave_up = exchange.server not in exchange.tried  # no word of the server against it
    return gave_up and not exchange.detached
