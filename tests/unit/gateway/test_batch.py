"""Settled requests are told to the observers together, each once, and soon."""

import asyncio

from gateway.exchange import Exchange
from gateway.observe.batch import INTERVAL_S, MOST, Batch


class Observer:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def observe(self, exchange: Exchange) -> None:
        self.told.append(exchange.request_id)


def exchange(number: int) -> Exchange:
    return Exchange(str(number), "caller", "infer", lambda: 0.0, 0.0)


async def test_they_wait_for_a_moment_and_are_told_in_order() -> None:
    one, other = Observer(), Observer()
    batch = Batch((one, other))
    for number in range(3):
        batch.observe(exchange(number))
    assert one.told == []
    async with asyncio.timeout(INTERVAL_S * 20):
        while not one.told:
            await asyncio.sleep(INTERVAL_S / 10)
    assert one.told == other.told == ["0", "1", "2"]


async def test_many_do_not_wait() -> None:
    observer = Observer()
    batch = Batch((observer,))
    for number in range(MOST + 1):
        batch.observe(exchange(number))
    assert len(observer.told) == MOST
    batch.flush()
    assert len(observer.told) == MOST + 1


async def test_nothing_is_told_twice() -> None:
    observer = Observer()
    batch = Batch((observer,))
    batch.observe(exchange(1))
    batch.flush()
    batch.flush()
    await asyncio.sleep(INTERVAL_S * 1.5)  # the timer of the first one
    assert observer.told == ["1"]
