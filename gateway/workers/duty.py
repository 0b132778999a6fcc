"""What a worker does with what the supervisor tells it, and what it tells in return.

Built by wiring, around the parts of a worker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.lifecycle import Phase, Store
from gateway.members import Event, ServerAdded, ServerChanged, ServerRemoved
from gateway.observe.pages import Page
from gateway.ports import Clock, CurrentView
from gateway.switches import Switches
from gateway.tasks import spawn, stop
from gateway.workers.fleet_mirror import FleetMirror
from gateway.workers.life import WorkerLife
from gateway.workers.link import Link
from gateway.workers.messages import (
    AcceptFor,
    BreakerNews,
    Drained,
    Draining,
    FleetCall,
    FleetKnown,
    Load,
    NewConfig,
    Open,
    Ready,
    Refused,
    Report,
    ResetBreakers,
    Retire,
    ServerWaits,
    SlotsChanged,
    Steer,
    Stop,
    SwitchedOff,
    View,
)
from routing.fleet import ModelVersion

REPORT_INTERVAL_S = 1.0
NEWS_INTERVAL_S = 0.02


class SupervisorGone(Exception):
    """The link is closed: there is nobody to work for."""


class Duty:
    """One worker's work, from the first message to its end.

    `fleet` and `view` return what is in force now. `apply` takes a server in or lets it go: if that
    fails the worker ends, and its successor is told anew. `exchange` puts another configuration in
    force; it may raise OSError or ValueError. `close` ends the watch over connections and closes
    them.
    """

    def __init__(
        self,
        link: Link,
        life: WorkerLife,
        *,
        fleet: Callable[[], FleetMirror],
        apply: Callable[[Event[Any]], None],
        exchange: Callable[[NewConfig], None],
        close: Callable[[], Awaitable[None]],
        store: Store,
        switches: Switches,
        view: CurrentView,
        in_flight: Callable[[], int],
        page: Callable[[], Page],
        flush: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._link = link
        self._life = life
        self._fleet = fleet
        self._apply = apply
        self._exchange = exchange
        self._close = close
        self._store = store
        self._switches = switches
        self._view = view
        self._in_flight = in_flight
        self._page = page
        self._flush = flush
        self._clock = clock
        self._ending = asyncio.Event()
        self._replaced = False
        self._reports = 0

    async def run(self) -> int:
        """Work until told to end; return how many calls are left behind on servers.

        Raises SupervisorGone.
        """
        await self._store.start()
        self._fleet().start()
        await self._fleet().connect()
        await self._life.listener.start()
        self._link.tell(Ready())
        tasks = [
            spawn(self._become_ready(), name="first probe of the fleet"),
            spawn(self._report(), name="reports"),
            spawn(self._tell_news(), name="news of breakers"),
        ]
        await self._ending.wait()
        if self._link.closed:
            raise SupervisorGone
        left = await (self._life.retire() if self._replaced else self._life.stop())
        await stop(*tasks)
        await self._close()
        await self._store.close()
        self._link.tell(self.report())
        self._link.tell(Drained(left))
        return left

    def link_closed(self) -> None:
        """End now."""
        self._ending.set()

    def take(self, message: object) -> None:
        """Do what the supervisor says."""
        match message:
            case FleetCall():
                self._fleet().apply(message)
            case ServerAdded() | ServerChanged() | ServerRemoved():
                self._apply(message)
            case NewConfig():
                self._take_up(message)
            case FleetKnown():
                self._fleet().first_pass_over()
            case SwitchedOff():
                self._switches.until_s = message.until_s
            case AcceptFor():
                self._life.listener.accept_for(message.slots)
            case Draining():
                self._life.drain()
            case Stop() | Retire():
                self._replaced = isinstance(message, Retire)
                self._ending.set()
            case _:
                self._tell_pool(message)

    def _tell_pool(self, message: object) -> None:
        pool = self._view().pool
        match message:
            case Steer():
                pool.steer(message.steering)
            case ResetBreakers():
                pool.reset_breakers(message.server, message.model, message.version)
            case SlotsChanged():
                pool.assign(message.slots)
            case ServerWaits():
                pool.observe_waits(message.server, message.news, self._clock())
            case BreakerNews():
                pool.learn_foreign(message.rows, self._clock())

    def _take_up(self, new: NewConfig) -> None:
        try:
            self._exchange(new)
        except (OSError, ValueError) as error:  # a secret or certificate that has just gone
            self._link.tell(Refused(str(error)))

    def report(self) -> Report:
        """Return what there is to tell now."""
        self._flush()
        self._reports += 1
        return Report(self._reports, self._page(), self._own_view())

    def _own_view(self) -> View:
        view = self._view()
        return View(
            requests=self._in_flight(),
            loads={
                name: Load(
                    load.calls,
                    load.rows,
                    load.detached,
                    load.last_reply_s,
                    tuple(view.channels.states(name)),
                )
                for name, load in view.pool.loads.items()
            },
            open=tuple(
                Open(server, _key(of), breaker.circuit)
                for of, breakers in view.pool.breakers().items()
                for server, breaker in breakers.items()
            ),
            bad=tuple(view.pool.bad_versions()),
            sequences=dict(view.sequences.by_server()),
            limits=view.pool.limits(news_only=True),
            queued=view.admission.queued(),
        )

    async def _become_ready(self) -> None:
        await self._fleet().first_pass()
        if self._life.readiness.phase is Phase.STARTING:
            self._life.readiness.phase = Phase.READY

    async def _tell_news(self) -> None:
        while True:
            await asyncio.sleep(NEWS_INTERVAL_S)
            if rows := self._view().pool.news():
                self._link.tell(BreakerNews(rows))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self._link.tell(self.report())


def _key(of: str) -> ModelVersion | None:
    model, _, version = of.rpartition("/")
    return ModelVersion(model, int(version)) if model else None
