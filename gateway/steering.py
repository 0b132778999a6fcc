"""What operators do by hand while the gateway runs.

They cordon servers, block models, reset breakers, and switch off for a while what refuses requests.

Every command takes effect at once, is kept for the next start, logged, and shown in the fleet view.
A version that a command leaves without a server stays known: requests for it are refused as "not
ready", and those that name no version still mean the default one. Called by the ops listener;
changes the pool.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import Any

from gateway.names import UnknownName, listed
from gateway.ports import CurrentView, Fleet, StateStore
from gateway.switchboard import Switchboard
from gateway.switches import Feature
from routing.fleet import FleetSnapshot, ModelVersion
from routing.pool import Pool
from routing.steering import Block, Steering

KEPT_ENTRIES = 50
MAX_VERSION = 2**63 - 1
"""The highest version there can be: Triton's are signed 64-bit numbers."""


class SteeringDesk:
    """Carries out operators' commands. `now` returns the wall-clock time as ISO 8601 text.

    Commands return their entry in the audit, with whether it is `kept` over a restart and
    `warnings` for the operator.
    """

    def __init__(
        self,
        view: CurrentView,
        store: StateStore,
        switchboard: Switchboard,
        *,
        log: Callable[..., Any],
        now: Callable[[], str],
    ) -> None:
        self._view = view
        self._store = store
        self._switchboard = switchboard
        switchboard.keep = self._keep
        self._log = log
        self._now = now
        self._audit: deque[dict[str, Any]] = deque(maxlen=KEPT_ENTRIES)
        self._writing = asyncio.Lock()

    def restore(self) -> None:
        """Take over what was kept. Raises ValueError for what cannot be used."""
        state = self._store.read()
        blocks = frozenset(Block(**block) for block in state.get("blocks", ()))
        steering = Steering(frozenset(state.get("cordoned", ())), blocks)
        self._audit.extend(state.get("audit", ()))
        self._switchboard.restore(state.get("disabled", ()))
        self._pool.steer(steering)
        if steering != Steering():
            self._log("steering restored", **_in_force(steering))
        # They stay: a server taken out of the configuration for a day comes back as it was, and
        # those that are discovered are not there yet.
        if absent := sorted(_servers_of(steering) - self._pool.loads.keys()):
            self._log("steering names servers that are not there", servers=absent)

    async def cordon(self, server: str, *, by: str) -> dict[str, Any]:
        """Send nothing new to the server. Requests on it end as usual."""
        self._require_server(server)
        return await self._change(self._steering.cordon(server), "cordon", by, server=server)

    async def uncordon(self, server: str, *, by: str) -> dict[str, Any]:
        """Use the server again."""
        if server not in self._steering.cordoned:
            self._require_server(server)
        return await self._change(self._steering.uncordon(server), "uncordon", by, server=server)

    async def block(self, block: Block, *, by: str) -> dict[str, Any]:
        """Do not serve a model (or one version, or on one server).

        A version that no server has yet may be blocked; a model must be known.
        """
        if block.server is not None:
            self._require_server(block.server)
        self._require_model(block.model)
        done = await self._change(self._steering.block(block), "block", by, **_fields(block))
        known = self._fleet.snapshot.models.get(block.model)
        if block.version is not None and (known is None or block.version not in known.versions):
            versions = listed(map(str, sorted(known.versions))) if known else "none"
            done["warnings"].append(
                f"no server has version {block.version} now; known are {versions}"
            )
        return done

    async def unblock(self, block: Block, *, by: str) -> dict[str, Any]:
        """Take a block back. Raises UnknownName when there is none like it."""
        if block not in self._steering.blocks:
            known = (_told(known) for known in self._steering.blocks)
            raise UnknownName.among("block", _told(block), known)
        return await self._change(self._steering.unblock(block), "unblock", by, **_fields(block))

    async def reset_breakers(
        self, server: str | None, model: str | None, version: int | None, *, by: str
    ) -> dict[str, Any]:
        """Close the breakers that match; None matches all. The entry lists what was `closed`."""
        if server is not None:
            self._require_server(server)
        if model is not None:
            self._require_model(model, version)
        before = self._open_breakers()
        self._pool.reset_breakers(server, model, version)
        closed = sorted(before - self._open_breakers())
        names = {"server": server, "model": model, "version": version}
        given = {name: value for name, value in names.items() if value is not None}
        return await self._note("reset breakers", by, {**given, "closed": closed})

    async def disable(self, feature: str, for_s: float, reason: str, *, by: str) -> dict[str, Any]:
        """Switch a feature off for a while, on all gateways that share a store."""
        wanted = _feature(feature)
        until, alone = await self._switchboard.disable(wanted, for_s, reason, by=by)
        given = {"until": until, **({"reason": reason} if reason else {})}
        done = await self._note("disable", by, {"feature": wanted.value, **given})
        if not (self._store.keeps or self._switchboard.shares):
            done["warnings"].append("forgotten at a restart: steering.state_file is not set")
        return self._reaching(done, alone)

    async def enable(self, feature: str, *, by: str) -> dict[str, Any]:
        """Switch a feature on again, before its time is over."""
        wanted = _feature(feature)
        changed, alone = await self._switchboard.enable(wanted, by=by)
        done = await self._note("enable", by, {"feature": wanted.value, "changed": changed})
        return self._reaching(done, alone)

    def view(self) -> dict[str, Any]:
        """Return what is in force, and the last commands."""
        disabled = self._switchboard.view()
        return {**self._state(), "disabled": disabled, "survives_restart": self._store.keeps}

    def _reaching(self, done: dict[str, Any], alone: str | None) -> dict[str, Any]:
        """Say which gateways a command has reached; `alone` is why it is no more than this host."""
        if alone is not None:
            done["warnings"].append(
                "on this host only; other gateways follow when the shared store is back, which is"
                f" down ({alone})"
            )
        return {**done, "reach": "fleet" if self._switchboard.shares and not alone else "host"}

    @property
    def _pool(self) -> Pool:
        return self._view().pool

    @property
    def _fleet(self) -> Fleet:
        return self._view().fleet

    @property
    def _steering(self) -> Steering:
        return self._pool.steering

    def _state(self) -> dict[str, Any]:
        disabled = self._switchboard.entries()
        return {**_in_force(self._steering), "disabled": disabled, "audit": list(self._audit)}

    async def _change(
        self, steering: Steering, command: str, by: str, **fields: object
    ) -> dict[str, Any]:
        before = self._steering
        snapshot = self._fleet.snapshot
        lost = _unserved(snapshot, steering) - _unserved(snapshot, before)
        self._pool.steer(steering)
        done = await self._note(command, by, {**fields, "changed": steering != before})
        if lost:
            done["warnings"].append(_lost(snapshot, lost))
        if steering != Steering() and not self._store.keeps:
            done["warnings"].append("forgotten at a restart: steering.state_file is not set")
        return done

    async def _note(self, command: str, by: str, fields: Mapping[str, object]) -> dict[str, Any]:
        entry = {"at": self._now(), "command": command, "by": by, **fields}
        self._audit.append(entry)
        self._log("steering", command=command, by=by, **fields)
        try:
            await self._keep()
        except OSError as error:
            warning = f"in force, but forgotten at a restart: it cannot be kept ({error})"
            return {**entry, "kept": False, "warnings": [warning]}
        return {**entry, "kept": self._store.keeps, "warnings": []}

    async def _keep(self) -> None:
        # A slow disk holds up the operator, not the requests.
        async with self._writing:
            await asyncio.to_thread(self._store.write, self._state())

    def _open_breakers(self) -> set[str]:
        return {
            f"{of} on {server}" if of != "server" else f"connection to {server}"
            for of, breakers in self._pool.breakers().items()
            for server in breakers
        }

    def _require_server(self, server: str) -> None:
        if server not in self._pool.loads:
            raise UnknownName.among("server", server, self._pool.loads)

    def _require_model(self, model: str, version: int | None = None) -> None:
        models = self._fleet.snapshot.models
        if model not in models:
            raise UnknownName.among("model", model, models)
        versions = models[model].versions
        if version is not None and version not in versions:
            raise UnknownName.version(model, version, versions)


def _in_force(steering: Steering) -> dict[str, Any]:
    return {
        "cordoned": sorted(steering.cordoned),
        "blocks": [_fields(block) for block in sorted(steering.blocks, key=_order)],
    }


def _servers_of(steering: Steering) -> set[str]:
    return {*steering.cordoned, *(block.server for block in steering.blocks if block.server)}


def _unserved(snapshot: FleetSnapshot, steering: Steering) -> set[ModelVersion]:
    """Return the versions that servers have ready and none may serve."""
    return {
        ModelVersion(name, version)
        for name, model in snapshot.models.items()
        for version, route in model.versions.items()
        if route.servers and all(steering.reason(name, version, server) for server in route.servers)
    }


def _lost(snapshot: FleetSnapshot, lost: Set[ModelVersion]) -> str:
    names = (
        f"{key.model} {key.version}"
        + (" (the default version)" if snapshot.models[key.model].default == key.version else "")
        for key in sorted(lost)
    )
    return f"no server is left for {listed(names)}: requests are refused with 503"


def _feature(name: str) -> Feature:
    if name not in frozenset(Feature):
        raise UnknownName.among("feature", name, Feature)
    return Feature(name)


def _fields(block: Block) -> dict[str, Any]:
    return {"model": block.model, "version": block.version, "server": block.server}


def _told(block: Block) -> str:
    version = "" if block.version is None else f" version {block.version}"
    server = "" if block.server is None else f" on {block.server}"
    return f"{block.model}{version}{server}"


def _order(block: Block) -> tuple[str, int, str]:
    return (block.model, block.version or 0, block.server or "")
