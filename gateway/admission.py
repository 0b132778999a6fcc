"""Requests that wait for room on a server, and what becomes of them while they do.

A request for which some server has room passes at once, without a task or a future. What finds none
waits in the queue of its model, one future each, and gets its place from whoever gives one back:
what is under way, and a look every few milliseconds for what nobody tells (other workers' places,
limits that grew, servers that came back). Whose turn it is decides `routing.admission.queue`, what
a server takes `routing.admission.limits`. Called by the pipeline between limits and pick.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.codec.types import InferCall
from gateway.exchange import Admitted, Exchange
from gateway.faults import RETRY_AFTER_S, Blame, Fault, Kind, Origin
from gateway.ports import Clock
from gateway.switches import Feature, Switches
from routing.admission.queue import AdmissionQueue, QueueSettings, Space, Waiting
from routing.endpoint import ModelLoads
from routing.errors import NoRoom
from routing.lease import Lease
from routing.pool import Pool
from routing.types import ModelSpec

LOOK_INTERVAL_S = 0.005

Pick = Callable[[float], Lease]
"""Takes a place where less than this share of a server's limit is in use.

Raises NoRoom, and Fault when there is no server any more.
"""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Whether requests wait (`enforce`) or it is only counted which would have, and how many may.

    `max_bytes` are those of the tensors of all that wait.
    """

    enforce: bool
    queue: QueueSettings
    max_bytes: int
    max_wait_s: float


@dataclass(slots=True)
class _Turn:
    """One request that waits. `is_urgent` when its deadline is what ends its time here."""

    exchange: Exchange
    pick: Pick
    is_urgent: bool
    given: "asyncio.Future[Lease]" = field(repr=False)


@dataclass(slots=True)
class _ModelQueue:
    """The queue of a model; `look` is what its loads call when there may be room."""

    loads: ModelLoads
    waiting: AdmissionQueue[_Turn]
    look: Callable[[], None]


class Admission:
    """Lets inference requests to the servers of `pool`.

    While admission is switched off it only observes, and nobody waits any longer.
    """

    def __init__(
        self,
        pool: Pool,
        settings: AdmissionSettings,
        *,
        switches: Switches,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._switches = switches
        self._clock = clock
        self._space = Space(settings.max_bytes)
        self._queues: dict[str, _ModelQueue] = {}  # of the models for which requests wait
        self._idle: dict[str, _ModelQueue] = {}  # they remember which class has a claim
        self._seen: set[tuple[str, str]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def enforces(self) -> bool:
        """Whether requests wait, and are refused, at the moment."""
        return self._settings.enforce and not self._switches.disabled(Feature.ADMISSION)

    def room(self, exchange: Exchange) -> float | None:
        """Return the share of a server's limit that a new request may fill.

        None when others wait for the same model: their turn may be first.
        """
        return None if exchange.model in self._queues else exchange.priority_class.ceiling

    def spare(self, exchange: Exchange) -> float | None:
        """Return the share that a second attempt beside the first may fill, None for any.

        Raises NoRoom when others wait.
        """
        if not self.enforces:
            return None
        room = self.room(exchange)
        if room is None:
            raise NoRoom
        return room

    def observe(self, exchange: Exchange, lease: Lease) -> None:
        """Note what would have become of a request that has got its place without being asked."""
        share, loads = exchange.priority_class.ceiling, lease.choices.loads
        if loads.has_room(lease.place, share, less=lease.rows):
            exchange.admission = Admitted.PASSED
            return
        others = [c.place for c in lease.choices.everyone() if c.place != lease.place]
        if loads.with_room(others, share):
            exchange.admission = Admitted.PASSED
            return
        # What is under way beyond the limits would be the queue, and this process has its part.
        queue = loads.beyond((lease.place, *others)) * loads.own_share
        would_refuse = queue > self._settings.queue.most * share
        exchange.admission = Admitted.WOULD_REFUSE if would_refuse else Admitted.WOULD_QUEUE

    async def wait(self, exchange: Exchange, spec: ModelSpec, call: InferCall, pick: Pick) -> Lease:
        """Wait for a place, and return it. Raises Fault.

        A caller that leaves gives its turn up, or the place it has just got.
        """
        exchange.enter("admit")
        since_s = self._clock()
        given: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        queue = self._queue(spec.model)
        waiting = self._waiting(exchange, spec, call, queue, _Turn(exchange, pick, False, given))
        try:
            self._offer(queue, waiting)
            at_once = given.done()
            lease = await given
        except asyncio.CancelledError:
            exchange.admission = Admitted.LEFT
            queue.waiting.remove(waiting)
            self._give_up(given)
            raise
        finally:
            exchange.queued_s = self._clock() - since_s
        exchange.admission = Admitted.PASSED if at_once else Admitted.QUEUED
        return lease

    def queued(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many requests wait, by model and class; 0 where none do any more."""
        found: dict[str, dict[str, int]] = {}
        for model, kind in sorted(self._seen):
            found.setdefault(model, {})[kind] = 0
        for model, queue in self._queues.items():
            found[model] |= queue.waiting.by_class()
        return found

    def _waiting(
        self, exchange: Exchange, spec: ModelSpec, call: InferCall, queue: _ModelQueue, turn: _Turn
    ) -> Waiting[_Turn]:
        # Later than this it could not be answered in time.
        begin_by_s = exchange.deadline_s - queue.loads.limits.compute_s()
        patient_s = self._clock() + self._settings.max_wait_s
        turn.is_urgent = begin_by_s < patient_s
        return Waiting(
            turn,
            kind=exchange.priority_class,
            tenant=exchange.tenant,
            version=spec.version,
            rows=call.rows() if spec.max_batch_size > 0 else 1,
            until_s=min(begin_by_s, patient_s),
            size_bytes=sum(len(tensor.raw) for tensor in call.inputs),
        )

    def _offer(self, queue: _ModelQueue, waiting: Waiting[_Turn]) -> None:
        exchange = waiting.item.exchange
        is_first = queue.waiting.is_first(waiting)
        offered = queue.waiting.offer(waiting)
        for evicted in offered.evicted:
            evicted.item.exchange.admission = Admitted.EVICTED
            self._refuse(evicted.item, self._full(evicted.item.exchange))
        if not offered.taken:
            exchange.admission = Admitted.REFUSED
            raise self._full(exchange)
        self._seen.add((exchange.model, exchange.priority_class.name))
        if is_first:  # otherwise those before it would have found the room
            queue.look()

    def _queue(self, model: str) -> _ModelQueue:
        found = self._queues.get(model)
        if found is None:
            known = model in self._idle
            found = self._idle.pop(model) if known else self._new_queue(model)
            self._queues[model] = found
            found.loads.on_room += (found.look,)
            if self._timer is None:
                self._set_timer()
        return found

    def _new_queue(self, model: str) -> _ModelQueue:
        waiting = AdmissionQueue[_Turn](self._settings.queue, self._space)
        return _ModelQueue(self._pool.model(model), waiting, look=lambda: self._look(model))

    def _look(self, model: str) -> None:
        """Give places to those whose turn it is, as long as there is room."""
        queue = self._queues.get(model)
        if queue is None:
            return
        for late in queue.waiting.late(self._clock()):
            late.item.exchange.admission = Admitted.EXPIRED
            self._refuse(late.item, self._late(late.item))
        take = _take if self.enforces else _take_any
        while queue.waiting.serve(take) is not None:
            pass
        if not queue.waiting:
            self._idle[model] = self._queues.pop(model)
            queue.loads.on_room = tuple(each for each in queue.loads.on_room if each != queue.look)

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_INTERVAL_S, self._look_around)

    def _look_around(self) -> None:
        self._timer = None
        for model in tuple(self._queues):
            self._look(model)
        if self._queues:
            self._set_timer()

    def _give_up(self, given: "asyncio.Future[Lease]") -> None:
        """Give a place back that came too late."""
        if given.done() and not given.cancelled() and given.exception() is None:
            lease = given.result()
            lease.settle(Blame.UNTOLD, self._clock())
            lease.release()

    def _refuse(self, turn: _Turn, fault: Fault) -> None:
        if not turn.given.done():
            turn.given.set_exception(fault)

    def _late(self, turn: _Turn) -> Fault:
        if turn.is_urgent:
            return Fault(
                Kind.DEADLINE,
                "no server had room for the request early enough for its deadline",
                origin=Origin.GATEWAY,
            )
        wait_s = self._settings.max_wait_s
        return self._overloaded(f"no server had room for the request within {wait_s:g} s")

    def _full(self, exchange: Exchange) -> Fault:
        return self._overloaded(
            f"too many requests of class '{exchange.priority_class.name}' wait for the model"
        )

    def _overloaded(self, message: str) -> Fault:
        return Fault(
            Kind.OVERLOADED,
            message,
            origin=Origin.GATEWAY,
            retry_after_s=RETRY_AFTER_S,
        )


def _take(waiting: Waiting[_Turn], share: float) -> bool:
    """Take a place for a request, or end it if there is no server; return whether that is it."""
    turn = waiting.item
    if turn.given.done():  # its caller has gone
        return True
    try:
        lease = turn.pick(share)
    except NoRoom:
        return False
    except Fault as fault:
        turn.given.set_exception(fault)
    else:
        turn.given.set_result(lease)
    return True


def _take_any(waiting: Waiting[_Turn], _: float) -> bool:
    return _take(waiting, math.inf)
