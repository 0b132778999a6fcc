"""What the supervisor does besides keeping workers alive: it knows the fleet for all of them.

It brings a new worker up to date, passes on what is observed from then on, and looks after what
workers report. Built by wiring, which gives it the fleet of each configuration.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from gateway.ports import Fleet
from gateway.switches import Switches
from gateway.workers.counters import Columns, Slots
from gateway.workers.fleet_feed import ToldBook, ToldRoster, ToldTable, nobody
from gateway.workers.host import HostPool
from gateway.workers.messages import (
    Broken,
    Exiting,
    FleetKnown,
    NewConfig,
    NotReady,
    SlotsChanged,
    Start,
    Unreachable,
    View,
)
from gateway.workers.worker import Worker


@dataclass(frozen=True, slots=True, eq=False)
class AgentFleet:
    """The fleet of one configuration, as the agent keeps it. `config` is passed on as it is."""

    config: Any
    roster: ToldRoster[Any, Any]
    table: ToldTable
    book: ToldBook
    pool: HostPool
    watcher: Fleet

    def connect(self, tell: Callable[[object], None]) -> None:
        """Tell what is observed and commanded with `tell`."""
        for part in (self.roster, self.table, self.book, self.pool):
            part.tell = tell


class Agent:
    """Keeps the workers' picture of the fleet. `tell` sends a message to all of them.

    `columns` and `slots` are those of the table they count in, `switches` those of the host.
    """

    tell: Callable[[object], None]
    switches: Switches

    def __init__(self, columns: Columns, slots: Slots) -> None:
        self._columns = columns
        self._slots = slots
        self._fleet: AgentFleet | None = None
        self._known = False

    def use(self, fleet: AgentFleet) -> None:
        """Keep this fleet from now on, and tell of it alone."""
        before, self._fleet = self._fleet, fleet
        if before is not None:
            before.connect(nobody)
        fleet.connect(self.tell)

    def exchange(self, fleet: AgentFleet) -> None:
        """Keep this fleet from now on, and have the workers take up its configuration."""
        self.use(fleet)
        servers = fleet.roster.replay()
        self.tell(NewConfig(fleet.config, servers, fleet.table.plain(), fleet.book.plain()))

    def first(self, worker: Worker) -> Start:
        """Return the first message of a new worker: everything there is to know.

        It must be sent before anything else happens.
        """
        fleet = self._current
        return Start(
            config=fleet.config,
            slot=worker.slot,
            generation=worker.generation,
            servers=fleet.roster.replay(),
            table=fleet.table.plain(),
            book=fleet.book.plain(),
            steering=fleet.pool.steering,
            switched_off=self.switches.until_s,
            known=self._known,
            column=self._columns.take(worker.number),
            slots=self._slots.given,
            waits=fleet.pool.told_waits,
        )

    def end(self, worker: Worker) -> None:
        """Forget what a worker that is gone had under way."""
        self._columns.give_back(worker.number)

    def number_rows(self) -> None:
        """Have workers count together what they may have found in the fleet since the last call."""
        news = self._slots.follow(self._current.table.snapshot)
        if news:
            self.tell(SlotsChanged(news))

    def take(self, message: object) -> None:
        """Look after what a worker ran into. A server that is gone meanwhile is nobody's affair."""
        watcher = self._current.watcher
        match message:
            # Its word is not enough: the reason may be this one worker's.
            case Unreachable() | Broken() if message.server in watcher.snapshot.servers:
                watcher.broken(message.server)
            case Exiting() if message.server in watcher.snapshot.servers:
                watcher.exiting(message.server, message.reason)
            case NotReady() if message.server in watcher.snapshot.servers:
                watcher.not_ready(message.server, message.key, message.reason)

    def show(self, views: Collection[View]) -> None:
        """Show operators these views of the workers."""
        self._current.pool.take(views)

    def first_pass_over(self) -> None:
        """Tell the workers that every server was probed once."""
        self._known = True
        self.tell(FleetKnown())

    @property
    def _current(self) -> AgentFleet:
        assert self._fleet is not None
        return self._fleet
