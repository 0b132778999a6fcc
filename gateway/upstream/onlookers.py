"""Those who wait until a server was looked at anew.

Decides who is let go when. Does not probe: `gateway.upstream.prober` says when a probe begins and
ends.
"""

import asyncio
from collections.abc import Callable


class Onlookers:
    """Let go when a probe has ended that began after they came. `wake` asks for one now."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: list[asyncio.Future[None]] = []
        self._looking: list[asyncio.Future[None]] = []
        self._is_over = False

    @property
    def some_wait(self) -> bool:
        """Whether another probe is needed."""
        return bool(self._waiting)

    async def wait(self) -> None:
        """Wait for the end of a probe that begins after this call, or of all probing."""
        if self._is_over:
            return
        looked = asyncio.get_running_loop().create_future()
        self._waiting.append(looked)
        self._wake()
        await looked

    def begin(self) -> None:
        """Note that a probe begins."""
        self._looking, self._waiting = self._waiting, []

    def end(self) -> None:
        """Note that it has ended."""
        for looked in self._looking:
            if not looked.done():
                looked.set_result(None)
        self._looking = []

    def close(self) -> None:
        """Note that nobody probes any more."""
        self._is_over = True
        self._looking += self._waiting
        self.end()
