"""The host as operators see it: the workers' figures, added up.

`HostPool` and `HostChannels` stand where a single process has its own pool and channels, so the
fleet view, the metrics and the commands are the same. No request runs through either. `WorkerHost`
is what the ops listener asks; see `gateway.ports.Host`. Built by wiring.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from gateway.names import UnknownName
from gateway.observe.pages import Page, Pages, render
from gateway.ports import Clock
from gateway.tasks import spawn
from gateway.workers.fleet_feed import Tell, nobody
from gateway.workers.messages import Open, Report, ResetBreakers, ServerWaits, Steer, View
from gateway.workers.supervisor import Supervisor
from gateway.workers.worker import State, Worker
from routing.admission.limits import Room, Waits, WaitsNews
from routing.fleet import ModelVersion
from routing.health.breaker import Breaker, BreakerSettings, Circuit
from routing.pool import Pool
from routing.steering import Steering

_ANSWER_S = 1.0


class HostPool(Pool):
    """The workers' pools together. What operators command is passed on with `tell`."""

    tell: Tell = staticmethod(nobody)
    _open: Collection[Open] = ()
    _bad: Sequence[ModelVersion] = ()
    _rooms: Mapping[tuple[str, str], Room] = MappingProxyType({})

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.told_waits: dict[str, dict[str, Waits | None]] = {}

    def take(self, views: Collection[View]) -> None:
        """Show these views of the workers."""
        for name, load in self.loads.items():
            parts = [view.loads[name] for view in views if name in view.loads]
            load.calls = sum(part.calls for part in parts)
            load.rows = sum(part.rows for part in parts)
            load.detached = sum(part.detached for part in parts)
            load.replied_s = max([load.replied_s, *(part.last_reply_s for part in parts)])
        self._open = {each for view in views for each in view.open}
        self._bad = sorted({key for view in views for key in view.bad})
        self._rooms = _together(views)

    def steer(self, steering: Steering) -> None:
        """Have all workers take it into account."""
        super().steer(steering)
        self.tell(Steer(steering))

    def observe_waits(self, server: str, news: WaitsNews, now_s: float) -> None:
        """Have all workers take it into account."""
        super().observe_waits(server, news, now_s)
        known = self.told_waits.setdefault(server, {})
        known.update({model: waits and Waits(waits.shape) for model, waits in news.items()})
        self.tell(ServerWaits(server, news))

    def remove(self, name: str) -> None:
        """Forget a server."""
        super().remove(name)
        self.told_waits.pop(name, None)

    def take_over(self, before: Pool, kept: Collection[str]) -> None:
        """Go on from `before` for the `kept` servers."""
        super().take_over(before, kept)
        told = cast(HostPool, before).told_waits
        self.told_waits |= {name: waits for name, waits in told.items() if name in kept}

    def limits(self, *, news_only: bool = False) -> Mapping[tuple[str, str], Room]:
        """Return the limits the workers have found out, and what all of them have in flight.

        Where no worker has found out anything, the limits they begin with.
        """
        return {**super().limits(news_only=news_only), **self._rooms}

    def reset_breakers(self, server: str | None, model: str | None, version: int | None) -> None:
        """Close the breakers of all workers that match."""
        reset = ResetBreakers(server, model, version)
        self._open = {each for each in self._open if not each.matches(reset)}
        self.tell(reset)

    def breakers(self) -> Mapping[str, Mapping[str, Breaker]]:
        """Return the breakers that are not closed in some worker; open counts before half-open."""
        found: dict[str, dict[str, Breaker]] = {}
        for each in self._open:
            shown = found.setdefault(each.of, {}).setdefault(each.server, _half_open())
            if each.circuit is Circuit.OPEN:
                shown.circuit = Circuit.OPEN
        return found

    def bad_versions(self) -> list[ModelVersion]:
        """Return the versions that most of their servers fail, as some worker sees it."""
        return list(self._bad)


def _together(views: Iterable[View]) -> Mapping[tuple[str, str], Room]:
    """Return the highest limit of some worker, and what all of them have in flight."""
    found: dict[tuple[str, str], Room] = {}
    for view in views:
        for pair, (limit, in_flight) in view.limits.items():
            before = found.get(pair, Room(0.0, 0))
            found[pair] = Room(max(before.limit, limit), before.in_flight + in_flight)
    return found


def _half_open() -> Breaker:
    shown = Breaker(BreakerSettings(), lambda: 0.0)
    shown.circuit = Circuit.HALF_OPEN
    return shown


class HostChannels:
    """The workers' channels; see `gateway.ports.Channels`. `diagnosed` returns the findings."""

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        diagnosed: Callable[[], Sequence[Mapping[str, str]]],
    ) -> None:
        self._workers = workers
        self._diagnosed = diagnosed

    def states(self, server: str) -> Iterable[Mapping[str, Any]]:
        """Return the state of every channel to the server, with the slot of its worker."""
        return [
            {"worker": worker.slot, **channel}
            for worker in self._workers()
            if worker.report is not None and server in worker.report.view.loads
            for channel in worker.report.view.loads[server].channels
        ]

    def findings(self) -> Sequence[Mapping[str, str]]:
        """Return what is wrong with the servers, and how to mend it."""
        return self._diagnosed()


class HostSequences:
    """The workers' open sequences; see `gateway.ports.OpenSequenceCounts`.

    One whose requests came to several workers is counted by each of them.
    """

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers

    def by_server(self) -> Mapping[str, int]:
        """Return how many sequences are open on each server."""
        total: Counter[str] = Counter()
        for worker in self._workers():
            if worker.report is not None:
                total.update(worker.report.view.sequences)
        return total


class HostQueues:
    """The requests that wait in the workers."""

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers

    def queued(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many wait, by model and class."""
        total: dict[str, Counter[str]] = {}
        for worker in self._workers():
            if worker.report is not None:
                for model, waiting in worker.report.view.queued.items():
                    total.setdefault(model, Counter()).update(waiting)
        return total


class WorkerHost:
    """A supervisor and its workers.

    `own` returns this process's page; `show` gets the last views of all workers.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        pages: Pages,
        *,
        own: Callable[[], Page],
        show: Callable[[Collection[View]], None],
        clock: Clock,
    ) -> None:
        self._supervisor = supervisor
        self._pages = pages
        self._own = own
        self._show = show
        self._clock = clock

    def report(self, worker: Worker, message: Report) -> None:
        """Take what a worker told, unless it has told something later meanwhile."""
        if worker.report is not None and worker.report.number >= message.number:
            return
        worker.report = message
        self._pages.take(worker.number, message.page)
        self._show_all()

    def end(self, worker: Worker) -> None:
        """Forget a worker that is gone, but for what it has counted."""
        self._pages.end(worker.number)
        self._show_all()

    async def refresh(self) -> None:
        """Ask every worker for its figures; of one that does not answer the last ones stand."""
        for worker, said in (await self._supervisor.ask("report", timeout_s=_ANSWER_S)).items():
            if isinstance(said, Report) and worker.state is not State.ENDED:
                self.report(worker, said)

    async def metrics(self) -> bytes:
        """Return the page of all processes."""
        await self.refresh()
        return render(self._own(), self._pages.total())

    async def explain_request(self, request_id: str) -> Mapping[str, Any]:
        """Explain a past request, whichever worker had it."""
        said = await self._supervisor.ask("explain_request", request_id, timeout_s=_ANSWER_S)
        found = [answer for answer in said.values() if isinstance(answer, Mapping)]
        if not found:
            raise _refusal(said.values())
        return min(found, key=lambda answer: float(answer["ended_s_ago"]))

    async def explain_model(
        self, model: str, version: int | None, tenant: str | None
    ) -> Mapping[str, Any]:
        """Explain where a request would go now, as the first worker that answers sees it."""
        asked = (model, version, tenant)
        said = await self._supervisor.ask("explain_model", *asked, timeout_s=_ANSWER_S)
        for answer in said.values():
            if isinstance(answer, Mapping):
                return answer
        raise _refusal(said.values())

    def workers(self) -> Mapping[str, Any]:
        """Return the processes, and how a restart goes."""
        roll = self._supervisor.roll
        return {
            "workers": [self._worker(worker) for worker in self._supervisor.workers],
            "restart": None if roll is None else roll.view(),
        }

    def restart(self) -> None:
        """Begin to replace every worker."""
        roll = self._supervisor.roll
        if roll is not None and roll.running:
            raise ValueError("a restart is under way already: `triton-gateway fleet` shows it")
        spawn(self._supervisor.restart(), name="rolling restart")

    def _show_all(self) -> None:
        self._show([worker.report.view for worker in self._supervisor.workers if worker.report])

    def _worker(self, worker: Worker) -> Mapping[str, Any]:
        return {
            "slot": worker.slot,
            "pid": worker.child.pid,
            "generation": worker.generation,
            "state": worker.state.value,
            "since_s": round(self._clock() - worker.since_s, 1),
            "requests_in_flight": worker.report.view.requests if worker.report else 0,
            "resident_bytes": worker.child.resident_bytes(),
        }


def _refusal(said: Iterable[object]) -> Exception:
    for answer in said:
        if isinstance(answer, UnknownName):
            return answer
    return ValueError("no worker answers at the moment; ask again")
