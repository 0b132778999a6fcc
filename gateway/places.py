"""The places one request takes up under limits of concurrency, until the last holder lets go.

Holders are the request itself, and calls on servers that go on after their caller is gone. Knows
neither the limits nor the store; `on_free` is called once, at the end.
"""

from collections.abc import Callable


class Places:
    """Held from the beginning by the request itself, which has to `drop` them."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._holders = 1
        self._on_free = on_free

    def drop(self) -> None:
        """Let go; to be called once by each holder."""
        self._holders -= 1
        if self._holders == 0:
            self._on_free()

    def until(self, on_end: Callable[[], None]) -> Callable[[], None]:
        """Hold the places until what is returned is called; it calls `on_end` too."""
        self._holders += 1

        def ended() -> None:
            self.drop()
            on_end()

        return ended
