"""A loop in which time passes only while nobody has anything to do: a minute takes a second.

For tests of what delays do to limits; there must be no sockets, and nothing in threads.
"""

import asyncio
import selectors
from typing import Any


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`loop.time` is the clock for everything under test."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s
