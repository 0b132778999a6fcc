"""What was used in each month, in Redis, or in memory and a file: see `gateway.ports.UsageStore`.

In Redis a month is a hash, a field a tenant, model and unit, and a flush is one run of a script:
all of it is added or nothing, and a flush whose answer was lost is known again by its number.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.ports import StateStore
from gateway.stores.redis_connection import RedisConnection, RedisScript
from gateway.tasks import spawn
from routing.usage import UNITS, Amounts, Flush, Pair, Totals, add_to

_DAY_S = 86_400
LONGEST_MONTH_S = 31 * _DAY_S
WRITER_S = 7 * _DAY_S
"""How long it is remembered which flush of a writer was the last: the longest outage after which a
flush whose answer was lost is not added twice."""
PATIENCE_S = 1.0
"""No request waits for any of this."""

ADD = RedisScript(
    """\
if tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[1]) then
  return 0
end
local at = 4
for month = 2, #KEYS do
  local last = at + 2 * tonumber(ARGV[at])
  for each = at + 1, last, 2 do
    redis.call('HINCRBY', KEYS[month], ARGV[each], ARGV[each + 1])
  end
  redis.call('EXPIRE', KEYS[month], ARGV[3])
  at = last + 1
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
)


class RedisUsage:
    """Keeps months in the Redis of a connection, each for `months` after it was last added to."""

    kind = "redis"

    def __init__(self, connection: RedisConnection, *, months: int) -> None:
        self._connection = connection
        self._kept_s = months * LONGEST_MONTH_S

    async def add(self, flush: Flush) -> None:
        """Add amounts once."""
        names = [f"usage:by:{flush.writer}", *map(_name, flush.months)]
        arguments: list[str | int] = [flush.number, WRITER_S, self._kept_s]
        for totals in flush.months.values():
            used = _fields(totals)
            arguments += [len(used), *(word for field in used.items() for word in field)]
        keys = list(map(self._connection.key, names))
        await self._connection.script(ADD, keys, arguments, wait_s=PATIENCE_S)

    async def month(self, month: str) -> Totals:
        """Return what was used in a month."""
        key = self._connection.key(_name(month))
        found = await self._connection.command("HGETALL", key, wait_s=PATIENCE_S)
        totals: dict[Pair, Amounts] = {}
        for field, amount in found.items():
            tenant, _, rest = field.partition("/")
            model, _, unit = rest.rpartition("/")
            if unit in UNITS:
                setattr(totals.setdefault((tenant, model), Amounts()), unit, int(amount))
        return totals


def _name(month: str) -> str:
    return f"usage:{month}"


def _fields(totals: Totals) -> dict[str, int]:
    return {
        f"{tenant}/{model}/{unit}": amount
        for (tenant, model), amounts in totals.items()
        for unit in UNITS
        if (amount := getattr(amounts, unit))
    }


class MemoryUsage:
    """Keeps the last `months` in memory and in `file`. `log` is told when that cannot be written.

    A flush is kept once it is in memory; the file follows.
    """

    def __init__(self, file: StateStore, *, months: int, log: Callable[..., Any]) -> None:
        self.kind = "file" if file.keeps else "memory"
        self._file = file
        self._most = months
        self._log = log
        self._months: dict[str, dict[Pair, Amounts]] = {}
        self._last: dict[str, int] = {}
        self._changes = self._written = 0
        self._writing = asyncio.Lock()

    def restore(self) -> None:
        """Take over what was kept. Raises ValueError for what cannot be used."""
        for entry in self._file.read().get("usage", ()):
            used = Amounts(*(entry[unit] for unit in UNITS))
            pair = (entry["tenant"], entry["model"])
            add_to(self._months.setdefault(entry["month"], {}), {pair: used})

    async def add(self, flush: Flush) -> None:
        """Add amounts once."""
        if self._last.get(flush.writer, 0) < flush.number:
            self._last[flush.writer] = flush.number
            for month, totals in flush.months.items():
                add_to(self._months.setdefault(month, {}), totals)
            for month in sorted(self._months)[: -self._most]:
                del self._months[month]
            self._changes += 1
        if self._file.keeps:
            # To its end, whatever becomes of the caller: the next one must not write beside it.
            await asyncio.shield(spawn(self._write(), name="file of usage"))

    async def month(self, month: str) -> Totals:
        """Return what was used in a month."""
        return self._months.get(month, {})

    async def _write(self) -> None:
        async with self._writing:
            changes = self._changes
            if changes == self._written:
                return
            try:
                await asyncio.to_thread(self._file.write, {"usage": self._entries()})
            except OSError as error:
                self._log("usage cannot be kept over a restart", error=str(error))
            else:
                self._written = changes

    def _entries(self) -> list[Mapping[str, Any]]:
        return [
            {
                "month": month,
                "tenant": tenant,
                "model": model,
                **{unit: getattr(amounts, unit) for unit in UNITS},
            }
            for month, totals in self._months.items()
            for (tenant, model), amounts in totals.items()
        ]
