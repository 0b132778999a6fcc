"""Loading and unloading models on the servers: where, how many at a time, and how far it is.

A command goes to the servers it names, or to the model's declared placement; there is no
"everywhere". It is carried out to its end whether or not its caller stays, a few servers at a
time, and never at once on all the servers that serve the model. Commands for one model follow one
another. When a server has done its part it is looked at, so that what it has is routed to at once.

Called by the edge, the ops listener and the command line through it. Everything it knows is in this
object, and its methods are coroutines: it may live in another process than its callers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakValueDictionary

from gateway.faults import Fault, Kind, Origin
from gateway.names import UnknownName
from gateway.operations import NoPlacement, Operation, Operations, Order, Report
from gateway.ports import Fleet, FleetProbe, ModelControl
from gateway.replay import WITH_FILES, KeptLoad, KeptLoads
from gateway.tasks import spawn
from routing.types import State

_BY_REPLAY = "replay"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How commands are carried out; `placement` has server names or patterns by model."""

    concurrency: int
    timeout_s: float
    placement: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class ControlParts:
    """What a reload of the configuration replaces, as far as commands need it."""

    fleet: Fleet
    probe: FleetProbe
    calls: ModelControl
    settings: ControlSettings


class ModelDesk:
    """Carries out commands to load and unload models.

    `parts` returns what is in force now, `now` the wall-clock time as ISO 8601 text, `new_id` a
    name for an operation. Without `kept` nothing is loaded again on servers that come back.
    """

    def __init__(
        self,
        parts: Callable[[], ControlParts],
        *,
        kept: KeptLoads | None,
        log: Callable[..., Any],
        now: Callable[[], str],
        new_id: Callable[[], str],
    ) -> None:
        self._parts = parts
        self._kept = kept
        self._log = log
        self._now = now
        self._new_id = new_id
        self._operations = Operations()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def carry_out(self, order: Order, *, by: str) -> Report:
        """Carry out a command and wait for its end; see `gateway.ports.ModelCommands`."""
        operation = self._begin(order, by)
        await asyncio.shield(spawn(self._run(operation, order), name=f"{order.command} a model"))
        return operation.report()

    async def start(self, order: Order, *, by: str) -> dict[str, Any]:
        """Begin a command and return it as `operation` shows it.

        Raises UnknownName and NoPlacement.
        """
        operation = self._begin(order, by)
        spawn(self._run(operation, order), name=f"{order.command} a model")
        return operation.view()

    async def operation(self, operation_id: str) -> dict[str, Any]:
        """Return how far a command is: its `state`, and that of each of its `servers`.

        Raises UnknownName.
        """
        found = self._operations.find(operation_id)
        if found is None:
            raise UnknownName(f"there is no operation '{operation_id[:64]}' (any more)")
        return found.view()

    async def view(self) -> dict[str, Any]:
        """Return the commands under way, the last ones, and what will be loaded again."""
        replay = None if self._kept is None else self._kept.view()
        return {"operations": self._operations.view(), "replay": replay}

    def server_back(self, server: str) -> None:
        """Load again what the server had by placement and does not have now."""
        if self._kept is not None and self._kept.of(server):
            spawn(self._replay(server, self._kept.of(server)), name=f"replay on {server}")

    def _begin(self, order: Order, by: str) -> Operation:
        servers = self._servers(order)
        operation = Operation(self._new_id(), order, servers, by=by, now=self._now)
        if self._kept is not None and order.files and self._is_placed(order.model, servers):
            operation.warnings.append(f"not loaded again after a restart: {WITH_FILES}")
        self._operations.add(operation)
        self._log(
            "model control",
            operation=operation.id,
            command=order.command,
            model=order.model,
            servers=servers,
            by=by,
            config=order.config is not None,
            files=len(order.files),
        )
        return operation

    def _servers(self, order: Order) -> list[str]:
        parts = self._parts()
        known = parts.fleet.snapshot.staying()
        patterns = order.servers or parts.settings.placement.get(order.model, ())
        if not patterns:
            raise NoPlacement(
                "it is not said where: name servers, or declare the model's placement"
                f" (models.{order.model}.placement) in the gateway's configuration"
            )
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise UnknownName.among("server", pattern, known)
        return [name for name in known if any(fnmatchcase(name, p) for p in patterns)]

    async def _run(self, operation: Operation, order: Order) -> None:
        turn = self._turns.setdefault(order.model, asyncio.Lock())
        async with turn:
            limit = asyncio.Semaphore(self._at_once(order.model, operation.servers))
            steps = (self._step(operation, order, server, limit) for server in operation.servers)
            await asyncio.gather(*steps)
        self._operations.ended(operation)
        results = {each.server: each.message or "done" for each in operation.report().outcomes}
        self._log("model control ended", operation=operation.id, results=results)

    def _at_once(self, model: str, servers: Sequence[str]) -> int:
        """Return how many servers may change at a time: never all that serve the model."""
        parts = self._parts()
        found = parts.fleet.snapshot.models.get(model)
        routes = found.versions.values() if found else ()
        serving = {server for route in routes for server in route.servers}
        if serving and serving <= set(servers):
            return min(parts.settings.concurrency, max(1, len(serving) - 1))
        return parts.settings.concurrency

    async def _step(
        self, operation: Operation, order: Order, server: str, limit: asyncio.Semaphore
    ) -> None:
        async with limit:
            operation.begin(server)
            try:
                await self._tell(self._parts(), server, order)
                await self._keep(server, order)
            except Fault as fault:
                operation.end(server, fault)
            except Exception as error:
                _log.exception("operation %s failed inside the gateway", operation.id)
                operation.end(server, _internal(error))
            else:
                operation.end(server)

    async def _tell(self, parts: ControlParts, server: str, order: Order) -> None:
        if server not in parts.fleet.snapshot.staying():
            raise _gone()
        timeout_s = parts.settings.timeout_s
        try:
            async with parts.probe.changing(server, order.model):
                await _call(parts.calls, server, order, timeout_s)
        except Fault as fault:
            raise (_too_late(timeout_s) if fault.kind is Kind.DEADLINE else fault) from None

    async def _keep(self, server: str, order: Order) -> None:
        if self._kept is None:
            return
        if order.command == "unload":
            await self._kept.unloaded(order.model, server)
        elif self._is_placed(order.model, (server,)):
            with_files = bool(order.files)
            config = None if with_files else order.config
            await self._kept.loaded(KeptLoad(order.model, server, config, with_files))

    def _is_placed(self, model: str, servers: Sequence[str]) -> bool:
        placement = self._parts().settings.placement.get(model, ())
        return any(fnmatchcase(server, p) for server in servers for p in placement)

    async def _replay(self, server: str, loads: Sequence[KeptLoad]) -> None:
        """Repeat the loads one after the other: a server that comes back has enough to do."""
        for load in loads:
            if load.with_files:
                self._log("load not replayed", model=load.model, server=server, reason=WITH_FILES)
            elif self._is_placed(load.model, (server,)) and self._lacks(server, load.model):
                order = Order("load", load.model, (server,), config=load.config)
                await self.carry_out(order, by=_BY_REPLAY)

    def _lacks(self, server: str, model: str) -> bool:
        """Whether a server is there to stay and does not have the model."""
        row = self._parts().fleet.snapshot.servers.get(server)
        if row is None or row.leaving:
            return False
        held = row.models.items()
        return not any(key.model == model and found.state is State.READY for key, found in held)


async def _call(calls: ModelControl, server: str, order: Order, timeout_s: float) -> None:
    model = order.model
    if order.command == "load":
        await calls.load(server, model, config=order.config, files=order.files, timeout_s=timeout_s)
    else:
        await calls.unload(
            server, model, with_dependents=order.with_dependents, timeout_s=timeout_s
        )


def _too_late(timeout_s: float) -> Fault:
    text = f"not done within {timeout_s:g} s; it may still go on there"
    return Fault(Kind.DEADLINE, text, origin=Origin.UPSTREAM)


def _gone() -> Fault:
    text = "it has left the fleet"
    return Fault(Kind.UNREACHABLE, text, origin=Origin.GATEWAY)


def _internal(error: Exception) -> Fault:
    return Fault(
        Kind.INTERNAL, "internal error of the gateway", origin=Origin.GATEWAY, detail=repr(error)
    )
