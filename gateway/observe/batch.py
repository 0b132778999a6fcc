"""Settled requests, kept for a moment and then told to the observers all together.

Writing a line and counting costs a third in a batch of what it costs between two requests, when
none of that code and data is in the processor's caches.
"""

import asyncio
from collections.abc import Sequence

from gateway.exchange import Exchange
from gateway.ports import Observer

INTERVAL_S = 0.1
MOST = 100
"""Requests are held up while a batch is told, by about 20 us for each in it."""


class Batch:
    """Tells `observers` of settled requests, at the latest `INTERVAL_S` later."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._waiting: list[Exchange] = []

    def observe(self, exchange: Exchange) -> None:
        """Keep one settled exchange; see `gateway.ports.Observer`. Needs a running loop."""
        self._waiting.append(exchange)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(INTERVAL_S, self.flush)
        elif len(self._waiting) >= MOST:
            self.flush()

    def flush(self) -> None:
        """Tell the observers now."""
        waiting, self._waiting = self._waiting, []
        for observer in self._observers:
            for exchange in waiting:
                observer.observe(exchange)
