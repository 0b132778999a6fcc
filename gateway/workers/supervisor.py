"""Keeps one worker running for each slot: starts, restarts, replaces and stops them.

A slot is a listening socket of the shared port; the supervisor keeps it open whatever becomes of
its worker, so that no connection waiting there is lost. While a slot has no worker that is ready,
another one accepts for it. Refuses to know what workers do. Built by wiring.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.ports import Clock
from gateway.tasks import spawn, stop
from gateway.workers.link import LinkClosed, RemoteError, Service, pack
from gateway.workers.messages import AcceptFor, Draining, Retire, Stop
from gateway.workers.process import Child
from gateway.workers.worker import State, Worker

_SETTLED_S = 60.0
_LONGEST_BACKOFF_S = 30.0
_LONGEST_SILENCE_S = 30.0
_CHECK_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """How long workers may take, in seconds: to become ready, and to end once told to."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the supervisor is given to do with workers.

    `first` makes a new worker's first message. `on_message` gets everything
    workers tell, `on_end` each worker that is gone. `services` may be called by workers.
    """

    first: Callable[[Worker], object]
    on_message: Callable[[Worker, Any], None]
    on_end: Callable[[Worker], None]
    services: Mapping[str, Service] = field(default_factory=dict)


class Log(Protocol):
    """Where events go, with their fields."""

    def info(self, event: str, **fields: Any) -> None:
        """Log what is as it should be."""

    def warning(self, event: str, **fields: Any) -> None:
        """Log what an operator should look at."""


@dataclass(slots=True)
class _Slot:
    number: int
    worker: Worker | None = None
    replacement: Worker | None = None
    crashes: int = 0
    generation: int = 0
    waiting_s: float = 0.0


@dataclass(slots=True)
class Roll:
    """A rolling restart: how far it is, and why it ended early."""

    of: int
    done: int = 0
    running: bool = True
    failed: str | None = None

    def view(self) -> Mapping[str, Any]:
        """Return it as JSON."""
        return {"of": self.of, "done": self.done, "running": self.running, "failed": self.failed}


class Supervisor:
    """Runs the workers of one host. `start_child` starts a process with these sockets."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        start_child: Callable[[Sequence[socket.socket]], Child],
        hooks: Hooks,
        times: Callable[[], WorkerTimes],
        log: Log,
        clock: Clock,
    ) -> None:
        self._sockets = sockets
        self._start_child = start_child
        self._hooks = hooks
        self._times = times
        self._log = log
        self._clock = clock
        self._slots = [_Slot(number) for number in range(len(sockets))]
        self._live: dict[int, Worker] = {}
        self._accepts: dict[int, frozenset[int]] = {}
        self._started = 0
        self._stopping = False
        self._news = asyncio.Event()
        self._keeping: list[asyncio.Task[None]] = []
        self.roll: Roll | None = None
        self.left = 0
        self.crashes = 0

    # --- what there is

    @property
    def workers(self) -> Sequence[Worker]:
        """Every process that has not ended."""
        return tuple(self._live.values())

    @property
    def ready(self) -> int:
        """How many slots have a worker that is ready."""
        return sum(_is_ready(slot) for slot in self._slots)

    @property
    def slots(self) -> int:
        """How many workers there should be."""
        return len(self._slots)

    # --- talking to them

    def tell(self, message: object, *, but: Worker | None = None) -> None:
        """Send a message to every worker, or to all others."""
        packed = pack(message)
        for worker in self._live.values():
            if worker.link is not None and worker is not but:
                worker.link.send(packed)

    async def ask(self, service: str, *arguments: object, timeout_s: float) -> Mapping[Worker, Any]:
        """Call a service of every worker that has started; return what those said that answered.

        An answer may be an exception the service raised.
        """
        asked = [worker for worker in self._live.values() if worker.state is not State.STARTING]
        answers = await asyncio.gather(
            *(_ask(worker, service, arguments, timeout_s) for worker in asked),
            return_exceptions=True,
        )
        return {
            worker: answer
            for worker, answer in zip(asked, answers, strict=True)
            if not isinstance(answer, TimeoutError | LinkClosed | RemoteError)
        }

    # --- their lives

    async def start(self) -> None:
        """Start a worker for each slot, and keep it running."""
        self._keeping = [
            spawn(self._keep(slot), name=f"slot {slot.number}") for slot in self._slots
        ]

    async def complete(self) -> None:
        """Wait until every slot has a worker that is ready."""
        while self.ready < len(self._slots):
            self._news.clear()
            await self._news.wait()

    def not_serving(self) -> str | None:
        """Return why nothing is served, None if something is."""
        return None if self.ready else "no worker is ready"

    async def restart(self) -> Roll:
        """Replace every worker by a new one, one after the other.

        A new one that does not become ready is ended, the old one stays, and that is all.
        """
        roll = self.roll = Roll(of=len(self._slots))
        try:
            for slot in self._slots:
                roll.failed = await self._replace(slot)
                if roll.failed is not None:
                    self._log.warning("restart failed", reason=roll.failed, slot=slot.number)
                    break
                roll.done += 1
            else:
                self._log.info("restarted", workers=roll.done)
        finally:
            roll.running = False
        return roll

    def drain(self) -> None:
        """Have the workers say that the host is going down."""
        self._stopping = True
        self.tell(Draining())

    def stop_accepting(self) -> None:
        """Let the workers end what is under way, and accept nothing more."""
        self._stopping = True
        for sock in self._sockets:
            sock.close()
        for worker in self.workers:
            worker.enter(State.STOPPING)
            worker.tell(Stop())

    async def close(self, *, timeout_s: float) -> None:
        """Wait until all workers have ended; those that have not in this time are killed."""
        await self._gone(self.workers, timeout_s)
        await stop(*self._keeping)

    async def _keep(self, slot: _Slot) -> None:
        while not self._stopping:
            worker = slot.worker
            if worker is None:
                worker = slot.worker = self._new(slot)
                spawn(self._give_up_unready(worker), name=f"start of worker {worker.number}")
            await self._ended(worker)
            if slot.worker is worker and not self._stopping:
                await self._crashed(slot, worker)

    async def _ended(self, worker: Worker) -> None:
        """Wait for the end of a worker; end one that says nothing any more."""
        while not worker.ended.is_set():
            try:
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await worker.ended.wait()
            except TimeoutError:
                if (
                    worker.state is State.READY
                    and self._clock() - worker.heard_s > _LONGEST_SILENCE_S
                ):
                    worker.refused = f"nothing was heard of it for {_LONGEST_SILENCE_S:g} s"
                    worker.child.kill()

    async def _crashed(self, slot: _Slot, worker: Worker) -> None:
        slot.worker, slot.replacement = slot.replacement, None
        if slot.worker is not None:
            return
        slot.crashes += 1
        self.crashes += 1
        slot.waiting_s = min(2.0 ** (slot.crashes - 2), _LONGEST_BACKOFF_S)
        if slot.crashes == 1:
            slot.waiting_s = 0.0
        self._log.warning(
            "worker ended",
            slot=slot.number,
            pid=worker.child.pid,
            reason=worker.how_it_ended(),
            restart_in_s=slot.waiting_s,
        )
        await asyncio.sleep(slot.waiting_s)

    async def _replace(self, slot: _Slot) -> str | None:
        """Put a new worker in a slot; return why that failed."""
        old = slot.worker
        if old is None or self._stopping:
            return None  # a new one is about to start, or none any more
        new = slot.replacement = self._new(slot)
        await self._give_up_unready(new)
        if self._stopping:
            return None
        if new.state is not State.READY:
            if slot.replacement is new:
                slot.replacement = None
            return f"the new worker did not become ready ({new.how_it_ended()}); the old one stays"
        slot.worker, slot.replacement = new, None
        if old.state is not State.ENDED:
            old.enter(State.RETIRING)
            self._share_sockets()
            old.tell(Retire())
            await self._gone([old], self._times().end_s)
        return None

    def _new(self, slot: _Slot) -> Worker:
        slot.generation += 1
        self._started += 1
        child = self._start_child(self._sockets)
        worker = Worker(self._started, slot.number, slot.generation, child, self._clock)
        self._live[worker.number] = worker
        hooks = self._hooks
        spawn(
            worker.watch(
                first=lambda: hooks.first(worker),
                on_message=hooks.on_message,
                services=hooks.services,
                on_change=self._changed,
            ),
            name=f"worker {worker.number}",
        )
        return worker

    def _changed(self, worker: Worker) -> None:
        if worker.state is State.ENDED:
            del self._live[worker.number]
            self._accepts.pop(worker.number, None)
            self.left += worker.left
            self._hooks.on_end(worker)
        elif worker.state is State.READY:
            self._log.info("worker ready", slot=worker.slot, pid=worker.child.pid)
            spawn(self._forgive(worker), name=f"worker {worker.number} lives")
        self._share_sockets()
        self._news.set()

    def _share_sockets(self) -> None:
        """Have some worker accept for each slot that has none of its own ready."""
        ready = [slot.worker for slot in self._slots if slot.worker and _is_ready(slot)]
        alone = [slot.number for slot in self._slots if not _is_ready(slot)]
        for worker in ready:
            slots = frozenset(alone if worker is ready[0] else ())
            if self._accepts.get(worker.number, frozenset()) != slots:
                self._accepts[worker.number] = slots
                worker.tell(AcceptFor(slots))

    async def _give_up_unready(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(self._times().start_s):
                await worker.settled.wait()
        except TimeoutError:
            worker.refused = f"not ready within {self._times().start_s:g} s"
            worker.child.kill()
            await worker.ended.wait()

    async def _forgive(self, worker: Worker) -> None:
        """Forget earlier crashes of a slot once its worker has lived for some time."""
        try:
            async with asyncio.timeout(_SETTLED_S):
                await worker.ended.wait()
        except TimeoutError:
            self._slots[worker.slot].crashes = 0

    async def _gone(self, workers: Sequence[Worker], timeout_s: float) -> None:
        """Wait until workers that were told to end have ended; kill those that take too long."""
        try:
            async with asyncio.timeout(timeout_s):
                for worker in workers:
                    await worker.ended.wait()
        except TimeoutError:
            for worker in _alive(workers):
                self._log.warning(
                    "worker killed", slot=worker.slot, reason="it did not end in time"
                )
                worker.child.kill()
                await worker.ended.wait()


def _alive(workers: Sequence[Worker]) -> Iterator[Worker]:
    return (worker for worker in workers if not worker.ended.is_set())


def _is_ready(slot: _Slot) -> bool:
    return slot.worker is not None and slot.worker.state is State.READY


async def _ask(worker: Worker, service: str, arguments: Sequence[object], timeout_s: float) -> Any:
    assert worker.link is not None
    return await worker.link.ask(service, *arguments, timeout_s=timeout_s)
