"""One worker, as the supervisor sees it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.ports import Clock
from gateway.tasks import spawn
from gateway.workers.link import Link, Service
from gateway.workers.messages import Drained, Ready, Refused, Report
from gateway.workers.process import Child

_EXIT_S = 5.0


class State(Enum):
    """Where in its life a worker is."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"  # replaced: it ends what is under way
    STOPPING = "stopping"  # the host goes down
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Worker:
    """A process, its link, and what it said of itself. `number` is unique on this host."""

    number: int
    slot: int
    generation: int
    child: Child
    clock: Clock
    state: State = State.STARTING
    since_s: float = 0.0
    heard_s: float = 0.0
    link: Link | None = None
    report: Report | None = None
    refused: str | None = None
    left: int = 0
    exit_code: int | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It is ready, or will never be."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(
        self,
        *,
        first: Callable[[], object],
        on_message: Callable[["Worker", Any], None],
        services: Mapping[str, Service],
        on_change: Callable[["Worker"], None],
    ) -> None:
        """Open the link, send the first message, and stay until the process has ended."""

        def take(message: object) -> None:
            before, self.heard_s = self.state, self.clock()
            self._take(message)
            on_message(self, message)
            if self.state is not before:
                on_change(self)

        self.since_s = self.heard_s = self.clock()
        self.link = await Link.open(self.child.link, on_message=take, services=services)
        self.link.tell(first())  # what is told from now on comes behind it
        running = spawn(self.link.run(), name=f"link to worker {self.number}")
        killer = spawn(self._kill_silent(running), name=f"end of worker {self.number}")
        self.exit_code = await self.child.ended()
        await running  # what it said last is still to be read
        killer.cancel()
        self.enter(State.ENDED)
        self.settled.set()
        self.ended.set()
        on_change(self)

    def enter(self, state: State) -> None:
        """Note a new state."""
        self.state, self.since_s = state, self.clock()

    def tell(self, message: object) -> None:
        """Send a message; nothing happens if it is gone."""
        if self.link is not None:
            self.link.tell(message)

    def how_it_ended(self) -> str:
        """Return why it is gone, in an operator's words."""
        if self.refused is not None:
            return self.refused
        code = self.exit_code or 0
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _take(self, message: object) -> None:
        match message:
            case Ready() if self.state is State.STARTING:
                self.enter(State.READY)
                self.settled.set()
            case Refused() if self.state is State.STARTING:
                self.refused = message.reason
            case Drained():
                self.left = message.left
                # An end that is closed with messages unread would lose the last ones it has sent.
                if self.link is not None:
                    self.link.close()

    async def _kill_silent(self, running: "asyncio.Task[None]") -> None:
        """End a process that has closed its link and does not go."""
        await asyncio.wait([running])
        await asyncio.sleep(_EXIT_S)
        self.child.kill()
