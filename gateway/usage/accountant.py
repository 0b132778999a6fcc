"""Keeps the accounts: takes over what was counted, shares out compute time, and tells the store.

Decides to which month something belongs (when it is taken over, UTC), when the store is told, and
what becomes of it while the store is down: it waits here, and is added later, once. Refuses to know
where months are kept. One in a gateway, in the supervisor where there is one; outlasts reloads.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from gateway.ports import Clock, StoreDown, UsageStore
from gateway.tasks import spawn, stop
from gateway.usage.counting import Used
from routing.shares import Executed, Shares
from routing.types import ModelVersion
from routing.usage import UNITS, Amounts, Flush, Pair, Pairs, Totals, add_to

MOST_TOLD_APART = 2000
"""Pairs of tenant and model that a process tells apart, in its metrics and in each month."""
MOST_TOGETHER = 500
"""Pairs in one flush: Redis does nothing else meanwhile."""
_LAST_TRIES_S = (0.1, 0.3, 1.1)  # the last one behind the second in which Redis is not asked
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


class Accountant:
    """The accounts of one gateway.

    `taken` hands over what this process has counted itself, None if nothing. `me` names this
    process like no other. `is_known` tells whether there is a server of a name. `wall_clock` is
    seconds of the epoch.
    """

    def __init__(
        self,
        store: UsageStore,
        *,
        taken: Callable[[], Used | None],
        me: str,
        is_known: Callable[[str], bool],
        interval_s: float,
        clock: Clock,
        wall_clock: Clock,
        log: Callable[..., Any],
    ) -> None:
        self._store = store
        self._taken = taken
        self._me = me
        self._is_known = is_known
        self._interval_s = interval_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._log = log
        self._shares = Shares()
        self._totals: dict[Pair, Amounts] = {}
        self._told = Pairs(MOST_TOLD_APART)
        self._month = ""
        self._told_in_month = Pairs(MOST_TOLD_APART)
        self._waiting: dict[str, dict[Pair, Amounts]] = {}
        self._sending: Flush | None = None
        self._number = 0
        self._one_at_a_time = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None

    # --- what comes in

    def take(self, used: Used) -> None:
        """Take over what a process has counted."""
        now_s = self._clock()
        for (server, key), rows in used.rows.items():
            self._shares.ran(server, key, rows, now_s)
        self._add(used.amounts)

    def executed(self, server: str, counters: Mapping[ModelVersion, Executed]) -> None:
        """Take what a server says it has executed so far, and share out what is new."""
        self._take_own()
        used: dict[Pair, Amounts] = {}
        for model, shared in self._shares.observed(server, counters, self._clock()):
            for tenant, compute_us in shared.items():
                add_to(used, {(tenant, model): Amounts(compute_us=compute_us)})
        self._add(used)

    def totals(self) -> Totals:
        """Return what was used since the process began."""
        self._take_own()
        return self._totals

    def _take_own(self) -> None:
        used = self._taken()
        if used is not None:
            self.take(used)

    def _add(self, amounts: Totals) -> None:
        month = month_of(self._wall_clock())
        if month != self._month:
            self._month, self._told_in_month = month, Pairs(MOST_TOLD_APART)
        waiting = self._waiting.setdefault(month, {}) if amounts else {}
        for pair, used in amounts.items():
            add_to(self._totals, {self._told.apart(pair): used})
            add_to(waiting, {self._told_in_month.apart(pair): used})

    # --- what goes out

    def start(self) -> None:
        """Begin to tell the store."""
        self._flushing = spawn(self._flush_for_ever(), name="usage")

    async def close(self) -> None:
        """Tell the store the last; log what it could not be told."""
        if self._flushing is not None:
            await stop(self._flushing)
        for pause_s in _LAST_TRIES_S:
            with contextlib.suppress(StoreDown):
                await self.flush()
                return
            await asyncio.sleep(pause_s)
        try:
            await self.flush()
        except StoreDown as down:
            for month, pair, amounts in self._unkept():
                used = {unit: getattr(amounts, unit) for unit in UNITS}
                tenant, model = pair
                what = {"month": month, "tenant": tenant, "model": model, **used}
                self._log("usage lost", reason=str(down), **what)

    async def flush(self) -> None:
        """Tell the store everything there is. Raises StoreDown; it will be told again then."""
        self._take_own()
        self._shares.keep(self._is_known)
        async with self._one_at_a_time:
            while self._pack():
                assert self._sending is not None
                await self._store.add(self._sending)
                self._sending = None

    async def view(self, month: str | None, tenant: str | None) -> Mapping[str, Any]:
        """Return what was used in a month (None: in this one), by all tenants or one, as JSON.

        Raises StoreDown, and ValueError for what is no month.
        """
        if month is not None and not _MONTH.fullmatch(month):
            raise ValueError(f"month '{month[:20]}' is none - write it as in 2026-11")
        await self.flush()
        month = month or month_of(self._wall_clock())
        totals = await self._store.month(month)
        shown = {pair: totals[pair] for pair in sorted(totals) if tenant in (None, pair[0])}
        return {"month": month, "kept_in": self._store.kind, **_by_tenant(shown)}

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with contextlib.suppress(StoreDown):
                await self.flush()

    def _pack(self) -> bool:
        """Make the next flush, unless one is still to be told; return whether there is any."""
        if self._sending is None and self._waiting:
            month, waiting = next(iter(self._waiting.items()))
            some = dict(islice(waiting.items(), MOST_TOGETHER))
            for pair in some:
                del waiting[pair]
            if not waiting:
                del self._waiting[month]
            self._number += 1
            self._sending = Flush(self._me, self._number, {month: some})
        return self._sending is not None

    def _unkept(self) -> Iterator[tuple[str, Pair, Amounts]]:
        sending = self._sending.months if self._sending is not None else {}
        for months in (sending, self._waiting):
            for month, totals in months.items():
                for pair, amounts in totals.items():
                    yield month, pair, amounts


def month_of(wall_s: float) -> str:
    """Return the month of a moment in UTC, as `2026-11`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m")


def _by_tenant(totals: Totals) -> dict[str, Any]:
    everything = Amounts()
    tenants: dict[str, tuple[Amounts, list[dict[str, Any]]]] = {}
    for (tenant, model), amounts in totals.items():
        total, models = tenants.setdefault(tenant, (Amounts(), []))
        total.add(amounts)
        everything.add(amounts)
        models.append({"model": model, **_shown(amounts)})
    rows = [
        {"tenant": tenant, **_shown(total), "models": models}
        for tenant, (total, models) in tenants.items()
    ]
    return {"total": _shown(everything), "tenants": rows}


def _shown(amounts: Amounts) -> dict[str, Any]:
    shown: dict[str, Any] = {unit: getattr(amounts, unit) for unit in UNITS}
    shown["compute_seconds"] = shown.pop("compute_us") / 1_000_000
    return shown
