"""Switchboards of several hosts over one store, on a manual clock."""

from collections.abc import Mapping
from typing import Any

from gateway.ports import SharedStore
from gateway.switchboard import Switchboard
from gateway.switches import Switches
from tests.pipeline.scripted import Clock


class Board:
    """The switchboard of one host, with all it logged and told its workers.

    Its clock on the wall is `ahead_s` of that of the others.
    """

    def __init__(
        self, clock: Clock, store: SharedStore | None = None, *, ahead_s: float = 0.0
    ) -> None:
        self.switches = Switches(clock)
        self.logged: list[tuple[str, dict[str, Any]]] = []
        self.told: list[Mapping[str, float]] = []
        self.it = Switchboard(
            self.switches,
            store,
            told=self.told.append,
            log=lambda event, **fields: self.logged.append((event, fields)),
            clock=clock,
            wall_clock=lambda: 1_000_000.0 + clock() + ahead_s,
        )

    @property
    def off(self) -> list[str]:
        """What is off, as operators see it, which is what requests see."""
        shown = [row["feature"] for row in self.it.view()]
        assert shown == [f for f in ("admission", "auth", "limits") if self.switches.disabled(f)]
        return shown

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.logged]


def switchboard() -> Switchboard:
    """The switchboard of a host that shares nothing."""
    return Board(Clock()).it
