"""Which server a request of a sequence has to go to, and what becomes of its place there.

A sequence's state lives in one version on one server. Its beginning picks the server; every later
request goes there, until the end or until it was silent for too long. Where it is, its *pin*, is
kept in the store that gateways share, and asked for with every request, since another gateway may
have begun the same sequence anew. Refuses to send anything: the pipeline calls `join` when it has
read a request, and tells the `Turn` it gets how that went.

While the store is down, sequences that this process knows go on and new ones begin, to be made
known later; one that it does not know is refused, since it may be on any server.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.codec.types import InferCall, InferReply, Scalar
from gateway.exchange import Exchange
from gateway.faults import RETRY_AFTER_S, Blame, Fault, Kind, Origin
from gateway.ports import Clock, Descriptions, Fleet, SharedStore, StoreDown
from gateway.sequence_ids import pin_key, wire_id
from gateway.tasks import spawn
from routing.errors import RoutingError
from routing.fleet import ModelVersion, VersionRoute
from routing.pool import Pool
from routing.sequences import Open, OpenSequences, Pin

_UNKNOWN = "must specify the START flag"  # in Triton's words for a sequence it does not have
_GONE = frozenset({Kind.UNREACHABLE, Kind.DRAINING, Kind.NOT_READY, Kind.NOT_FOUND})


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """How many sequences there may be, and how long their pins are kept, in seconds.

    That is `margin_s` longer than the model keeps a silent sequence; `idle_s` stands for the time
    of models that state none.
    """

    margin_s: float
    idle_s: float
    max_open: int


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where the pin of one request's sequence is kept.

    `own` is for the way the request names the model, `other` for another one: a sequence may begin
    without a version and go on with the one it got, or the reverse. `name` is what the request
    calls the model, which may be an alias.
    """

    name: str
    own: str
    other: str
    keep_s: float


@dataclass(slots=True)
class Turn:
    """One request of a sequence, from `join` to `left`.

    `route` is where its version can be served. `began` says that the sequence begins with it.
    """

    route: VersionRoute
    key: str
    entry: Open
    pin: Pin
    own_id: Scalar
    wire_id: Scalar
    began: bool
    ends: bool
    since_s: float
    _sequences: "Sequences" = field(repr=False)

    async def answered(self, reply: InferReply) -> None:
        """The server has answered, and will not again."""
        self.restore(reply)
        await self.ended()

    def restore(self, reply: InferReply) -> None:
        """Put the id of the caller into one answer."""
        if "sequence_id" in reply.parameters:
            reply.parameters = {**reply.parameters, "sequence_id": self.own_id}

    async def ended(self) -> None:
        """The server has answered as often as it will."""
        if self.ends:
            await self._sequences.forget(self)

    async def failed(self, fault: Fault) -> Fault:
        """The request failed; return what to tell the caller."""
        gone = _is_gone(fault)
        if self.wire_id != self.own_id:
            fault.message = fault.message.replace(str(self.wire_id), str(self.own_id))
        if not self.began:
            if not gone:
                return fault
            await self._sequences.lose(self)
            return _lost(self.entry.name, self.own_id, fault.detail or fault.message)
        if gone or fault.kind is Kind.OVERLOADED:  # it has not begun, or not for long
            await self._sequences.forget(self)
        return fault

    def left(self) -> None:
        """The request is over, whichever way. To be called once, at last."""
        self._sequences.leave(self)


class Sequences:
    """The open sequences; `begun` returns the next `Pin.begun`."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        pool: Pool,
        store: SharedStore,
        opened: OpenSequences,
        descriptions: Descriptions,
        settings: SequenceSettings,
        begun: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._pool = pool
        self._store = store
        self._descriptions = descriptions
        self._settings = settings
        self._begun = begun
        self._clock = clock
        self._open = opened

    def by_server(self) -> Mapping[str, int]:
        """Return how many open sequences this process knows on each server."""
        self._open.expire(self._clock())
        return self._open.by_server()

    async def join(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, *, asked: int | None
    ) -> Turn:
        """Find the server of a sequence, or choose it if the sequence begins.

        `route` is that of the version the request resolved to, `asked` the version it names. Sets
        `exchange.pin`, and in `call` the model, version and id that the server is to see. Raises
        Fault for a sequence that is lost, unknown, or cannot be found out about.
        """
        own_id = call.parameters["sequence_id"]
        keys = self._keys(exchange, route, own_id, asked)
        begins = bool(call.parameters.get("sequence_start"))
        found = None if begins else await self._find(keys, route, own_id)
        key, entry = found or await self._begin(keys, route)
        if entry.pin.is_lost:
            raise _lost(keys.name, own_id, "it was lost before")
        turn = Turn(
            route,
            key,
            entry,
            pin=entry.pin,
            own_id=own_id,
            wire_id=wire_id(exchange.tenant, own_id),
            began=found is None,
            ends=bool(call.parameters.get("sequence_end")),
            since_s=self._clock(),
            _sequences=self,
        )
        if not _is_of(turn.pin, route):
            turn.route = await self._pinned_route(turn)
        exchange.pin = turn.pin
        exchange.model = call.model = turn.pin.model
        exchange.version = call.version = str(turn.pin.version)
        if turn.wire_id != own_id:
            call.parameters = {**call.parameters, "sequence_id": turn.wire_id}
        entry.running += 1
        return turn

    async def forget(self, turn: Turn) -> None:
        """Drop a sequence that has ended, or has never begun."""
        if turn.entry.pin == turn.pin:
            self._open.forget(turn.entry.name, turn.key)
        with contextlib.suppress(StoreDown):  # then it goes by itself, after its time
            await self._store.forget(turn.key, turn.pin.text())

    async def lose(self, turn: Turn) -> None:
        """Note that a sequence is lost: it must not go on by chance, but begin again."""
        entry = turn.entry
        if entry.pin != turn.pin:
            return
        self._keep(turn.key, entry.name, turn.pin.lost(), entry.keep_s, shared=False)
        with contextlib.suppress(StoreDown):
            await self._look(entry.name, turn.key, entry.keep_s)

    def leave(self, turn: Turn) -> None:
        """End a turn. What ran longer than the margin may have outlived its pin."""
        entry, now_s = turn.entry, self._clock()
        if self._open.find(entry.name, turn.key, now_s) is entry:
            self._keep(turn.key, entry.name, entry.pin, entry.keep_s, shared=entry.shared)
            if now_s - turn.since_s > self._settings.margin_s:
                spawn(self._peek(entry.name, turn.key, entry.keep_s), name="renewal of a pin")
        entry.running -= 1

    async def _find(
        self, keys: _Keys, route: VersionRoute, own_id: Scalar
    ) -> tuple[str, Open] | None:
        """Return the pin of a sequence that has begun, None if this request may begin it."""
        try:
            own = await self._look(keys.name, keys.own, keys.keep_s)
            if own is not None:
                return keys.own, own
            other = await self._look(keys.name, keys.other, keys.keep_s)
        except StoreDown:
            raise _unsure(keys.name, own_id) from None
        if other is not None and _is_of(other.pin, route):
            return keys.other, other
        if route.spec.sequence:
            raise Fault.invalid(
                f"inference request for sequence {own_id} to model '{keys.name}' {_UNKNOWN} on "
                "the first request of the sequence"
            )
        return None

    async def _begin(self, keys: _Keys, route: VersionRoute) -> tuple[str, Open]:
        """Choose a server, unless the same sequence is open on one: it is begun anew there."""
        now_s = self._clock()
        self._open.expire(now_s)
        if len(self._open) >= self._settings.max_open:
            raise _too_many()
        before, beside = await asyncio.gather(
            self._peek(keys.name, keys.own, keys.keep_s),
            self._peek(keys.name, keys.other, keys.keep_s),
        )
        server = self._place(keys, route, (before, beside))
        pin = Pin(route.spec.model, route.spec.version, server, self._begun())
        entry = self._keep(keys.own, keys.name, pin, keys.keep_s, shared=False)
        with contextlib.suppress(StoreDown):
            in_force = await self._claim(keys, pin, instead_of=before)
            if in_force.is_lost:  # just now, by a request of the old one
                in_force = await self._claim(keys, pin, instead_of=in_force)
            entry = self._keep(keys.own, keys.name, in_force, keys.keep_s, shared=True)
            if beside is not None and _is_of(beside, route):
                self._open.forget(keys.name, keys.other)
                await self._store.forget(keys.other, beside.text())
        return keys.own, entry

    async def _claim(self, keys: _Keys, pin: Pin, *, instead_of: Pin | None) -> Pin:
        text = await self._store.claim(
            keys.own,
            pin.text(),
            ttl_s=keys.keep_s,
            instead_of=instead_of.text() if instead_of else None,
        )
        return Pin.of_text(text)

    def _place(self, keys: _Keys, route: VersionRoute, open_already: Iterable[Pin | None]) -> str:
        now_s = self._clock()
        for pin in open_already:
            is_same = pin is not None and _is_of(pin, route)
            if pin and is_same and self._pool.takes_sequences(route, pin.server, now_s):
                return pin.server
        try:
            held = self._open.held(route.spec.model)
            return self._pool.place_sequence(route, keys.own, held, now_s=now_s)
        except RoutingError as error:
            raise Fault.of_routing(error) from None

    async def _pinned_route(self, turn: Turn) -> VersionRoute:
        try:
            return self._fleet.snapshot.resolve(turn.pin.model, turn.pin.version, self._clock())
        except RoutingError as error:
            raise await turn.failed(Fault.of_routing(error)) from None

    async def _peek(self, name: str, key: str, keep_s: float) -> Pin | None:
        """Return the pin at a key as far as that can be found out."""
        try:
            found = await self._look(name, key, keep_s)
        except StoreDown:
            return None
        return found.pin if found else None

    async def _look(self, name: str, key: str, keep_s: float) -> Open | None:
        """Return what is at a key, renewed. Raises StoreDown if that is not known here either."""
        known = self._open.find(name, key, self._clock())
        try:
            text = await self._store.renew(key, ttl_s=keep_s)
            if known is not None and _is_missing(known, text):
                mine = known.pin.text()
                text = await self._store.claim(key, mine, ttl_s=keep_s, instead_of=text)
        except StoreDown:
            if known is None:
                raise
            return self._keep(key, name, known.pin, keep_s, shared=known.shared)
        if text is None:
            return None
        return self._keep(key, name, Pin.of_text(text), keep_s, shared=True)

    def _keep(self, key: str, name: str, pin: Pin, keep_s: float, *, shared: bool) -> Open:
        return self._open.keep(name, key, pin, keep_s=keep_s, now_s=self._clock(), shared=shared)

    def _keys(
        self, exchange: Exchange, route: VersionRoute, own_id: Scalar, asked: int | None
    ) -> _Keys:
        tenant, name = exchange.tenant, exchange.alias or route.spec.model
        version = ModelVersion(route.spec.model, route.spec.version)
        stated = [self._descriptions.sequence_idle_s(each, version) for each in route.servers]
        idle_s = max((s for s in stated if s is not None), default=self._settings.idle_s)
        with_version = pin_key(tenant, version.model, str(version.version), own_id)
        without = pin_key(tenant, name, "", own_id)
        own, other = (without, with_version) if asked is None else (with_version, without)
        return _Keys(name, own, other, idle_s + self._settings.margin_s)


def _is_of(pin: Pin, route: VersionRoute) -> bool:
    return (pin.model, pin.version) == (route.spec.model, route.spec.version)


def _is_missing(known: Open, text: str | None) -> bool:
    """Whether the store, which has `text`, has yet to learn of what is known here.

    It was down when that changed, or has lost its memory since.
    """
    if text is None:
        return True
    return not known.shared and known.pin.replaces(Pin.of_text(text))


def _is_gone(fault: Fault) -> bool:
    """Whether the server that had the state, or the state, is gone after this failure.

    With a lost connection nobody knows whether the request was counted. A dead stub process takes
    the state with it although the server still knows the sequence.
    """
    if fault.kind is Kind.INVALID:
        return _UNKNOWN in fault.message
    return fault.kind in _GONE or fault.blame in (Blame.SERVER, Blame.FATAL)


def _lost(model: str, own_id: Scalar, why: str) -> Fault:
    return Fault(
        Kind.LOST,
        f"sequence {own_id} of model '{model}' is lost: the server no longer has its state; "
        "begin it again with sequence_start",
        origin=Origin.UPSTREAM,
        detail=why,
    )


def _unsure(model: str, own_id: Scalar) -> Fault:
    return Fault(
        Kind.NOT_READY,
        f"it is not known at the moment which server has sequence {own_id} of model '{model}'",
        origin=Origin.GATEWAY,
        detail="the shared store is down",
        retry_after_s=RETRY_AFTER_S,
    )


def _too_many() -> Fault:
    return Fault(
        Kind.OVERLOADED,
        "too many sequences are open",
        origin=Origin.GATEWAY,
        retry_after_s=RETRY_AFTER_S,
    )
