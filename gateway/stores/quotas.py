"""The quotas of rate limits in Redis, or in the memory of one process: see `ports.QuotaStore`.

In Redis the decisions of one turn of the event loop go there together, as one run of one script: a
decision costs a fraction of a command then. Who asks is not known here.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.ports import Clock, StoreDown
from gateway.stores.redis_connection import RedisConnection, RedisScript
from gateway.tasks import spawn
from routing.limits import SECOND_US
from routing.quota import Answer, Ask, Counted, Quotas

_MOST_TOGETHER = 64
"""Decisions in one run of the script: Redis does nothing else meanwhile."""


class MemoryQuotas:
    """Keeps the quotas of this process, by its own clock."""

    def __init__(self, clock: Clock) -> None:
        self.quotas = Quotas()
        self._clock = clock

    async def decide(self, ask: Ask) -> Answer:
        """Charge all that is asked for, or nothing."""
        return self.quotas.decide(ask, self._now_us())

    async def give_back(self, amounts_us: Mapping[str, int]) -> None:
        """Take back charges."""
        now_us = self._now_us()
        for key, amount_us in amounts_us.items():
            self.quotas.give_back(key, amount_us, now_us)

    async def hold(self, places: Sequence[tuple[str, str]], *, ttl_s: float) -> list[int]:
        """Keep places for longer."""
        now_us = self._now_us()
        until_us = now_us + round(ttl_s * SECOND_US)
        return [self.quotas.hold(key, holder, until_us, now_us) for key, holder in places]

    async def free(self, places: Sequence[tuple[str, str]]) -> None:
        """Give places back."""
        for key, holder in places:
            self.quotas.free(key, holder)

    async def forget(self, keys: Sequence[str]) -> None:
        """Make quotas as if they had never been used."""
        for key in keys:
            self.quotas.forget(key)

    def _now_us(self) -> int:
        return int(self._clock() * SECOND_US)


class _Asked(NamedTuple):
    ask: Ask
    answer: "asyncio.Future[Answer]"


class RedisQuotas:
    """Keeps quotas in the Redis of a connection; time is what Redis says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._decide, self._give_back, self._hold, self._free = (
            RedisScript(Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8"))
            for name in ("decide", "give_back", "hold", "free")
        )
        self._waiting: list[_Asked] = []

    async def decide(self, ask: Ask) -> Answer:
        """Charge all that is asked for, or nothing."""
        loop = asyncio.get_running_loop()
        asked = _Asked(ask, loop.create_future())
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            loop.call_soon(self._send_all)
        return await asked.answer

    async def give_back(self, amounts_us: Mapping[str, int]) -> None:
        """Take back charges."""
        keys = [self._connection.key(key) for key in amounts_us]
        await self._connection.script(self._give_back, keys, list(amounts_us.values()))

    async def hold(self, places: Sequence[tuple[str, str]], *, ttl_s: float) -> list[int]:
        """Keep places for longer."""
        keys, holders = self._split(places)
        arguments: list[str | int] = [max(1, round(ttl_s * 1000)), *holders]
        return list(await self._connection.script(self._hold, keys, arguments))

    async def free(self, places: Sequence[tuple[str, str]]) -> None:
        """Give places back."""
        await self._connection.script(self._free, *self._split(places))

    async def forget(self, keys: Sequence[str]) -> None:
        """Make quotas as if they had never been used."""
        await self._connection.command("DEL", *(self._connection.key(key) for key in keys))

    def _split(self, places: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        return [self._connection.key(key) for key, _ in places], [holder for _, holder in places]

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), _MOST_TOGETHER):
            spawn(self._send(waiting[first : first + _MOST_TOGETHER]), name="decisions on limits")

    async def _send(self, together: Sequence[_Asked]) -> None:
        keys: list[str] = []
        arguments: list[str | int] = []
        for ask, _ in together:
            names = [*(each.key for each in ask.charges), *(each.key for each in ask.places)]
            keys += map(self._connection.key, names)
            arguments += _words(ask)
        try:
            said = iter(await self._connection.script(self._decide, keys, arguments))
            answers = [_answer(ask, said) for ask, _ in together]
        except Exception as error:  # a script that fails must not leave anybody waiting
            for _, waiting in together:
                if not waiting.done():
                    waiting.set_exception(StoreDown(*error.args))
            return
        for (_, waiting), answer in zip(together, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)


def _words(ask: Ask) -> Iterator[str | int]:
    yield from (len(ask.charges), len(ask.places), ask.ttl_ms)
    for charge in ask.charges:
        yield from (charge.cost_us, charge.extra_us, charge.burst_us, int(charge.enforce))
    for place in ask.places:
        yield from (place.most, place.holder, int(place.enforce))


def _answer(ask: Ask, said: Iterator[int]) -> Answer:
    return Answer(
        next(said) == 1,
        tuple(Counted(next(said) == 1, next(said), next(said)) for _ in ask.charges),
        tuple(Counted(next(said) == 1, next(said)) for _ in ask.places),
    )
