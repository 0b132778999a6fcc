"""What concerns many servers at once: statistics, and the merged view of the repository.

Outside the eight stages of inference. Only statistics ask the servers; everything else is answered
from the snapshot, so that no client can keep a server's control thread busy.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin
from gateway.ports import Clock, Fleet, StatisticsSource
from gateway.tasks import spawn
from routing.errors import RoutingError
from routing.fleet import FleetSnapshot, ModelRow
from routing.types import State

T = TypeVar("T")

_SEVERITY = {
    State.READY: 4,
    State.LOADING: 3,
    State.UNLOADING: 2,
    State.UNAVAILABLE: 1,
    State.UNKNOWN: 0,
}


class SharedRounds(Generic[T]):
    """Lets callers that ask for the same at the same time share one round of calls."""

    def __init__(self) -> None:
        self._asking: dict[Hashable, asyncio.Task[T]] = {}

    async def share(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the round of `key` that is under way brings, or else what `ask` brings."""
        task = self._asking.get(key)
        if task is None:
            task = spawn(ask(), name="a round of calls to the fleet")
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key))
        return await asyncio.shield(task)


class FleetStatistics:
    """The statistics of models, summed over the servers."""

    def __init__(
        self, fleet: Fleet, source: StatisticsSource, *, timeout_s: float, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._source = source
        self._timeout_s = timeout_s
        self._clock = clock
        self._rounds: SharedRounds[list[dict[str, Any]]] = SharedRounds()

    async def read(self, model: str, version: int | None) -> list[dict[str, Any]]:
        """Return Triton's `model_stats` rows for one model, or for all with an empty name.

        Raises Fault.
        """
        return await self._rounds.share((model, version), lambda: self._ask(model, version))

    async def _ask(self, model: str, version: int | None) -> list[dict[str, Any]]:
        servers = holders(self._fleet.snapshot, model, version, self._clock())
        answers = await asyncio.gather(
            *(self._one(server, model, version) for server in servers), return_exceptions=True
        )
        rows: list[dict[str, Any]] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                rows.extend(answer)
        if failures and len(failures) == len(servers):
            raise failures[0]
        return merge_statistics(rows)

    async def _one(self, server: str, model: str, version: int | None) -> list[dict[str, Any]]:
        text = "" if version is None else str(version)
        return await self._source.statistics(server, model, text, timeout_s=self._timeout_s)


def holders(
    snapshot: FleetSnapshot, model: str, version: int | None, now_s: float
) -> Sequence[str]:
    """Return the servers that hold a model (or one version), those that are up with an empty name.

    Raises Fault.
    """
    if not model:
        return [row.name for row in snapshot.servers.values() if row.up]
    try:
        found = snapshot.resolve(model, version, now_s)
    except RoutingError as error:
        raise Fault.of_routing(error) from None
    if version is not None:
        return found.servers
    routes = snapshot.models[model].versions.values()
    return sorted({server for route in routes for server in route.servers})


def merge_statistics(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the rows of equal model and version; the last inference is the latest one."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["name"], row["version"])
        merged[key] = _merge_row(merged[key], row) if key in merged else dict(row)
    return [merged[key] for key in sorted(merged)]


def _merge_row(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: _add(one[name], other[name]) for name in one if name in other}
    merged["last_inference"] = max(one["last_inference"], other["last_inference"])
    return {**other, **one, **merged}


def _add(one: Any, other: Any) -> Any:
    if isinstance(one, int):
        return one + other
    if isinstance(one, Mapping):
        names = [*one, *(name for name in other if name not in one)]
        return {
            name: _add(one[name], other[name])
            if name in one and name in other
            else one.get(name, other.get(name))
            for name in names
        }
    if isinstance(one, list):
        return _add_lists(one, other)
    return one


def _add_lists(one: list[Any], other: list[Any]) -> list[Any]:
    # batch_stats are one entry a batch size; memory_usage stays one entry a device and server.
    sizes: dict[int, Any] = {}
    rest = []
    for entry in (*one, *other):
        size = entry.get("batch_size")
        if size is None:
            rest.append(entry)
        elif size in sizes:
            sizes[size] = {**_add(sizes[size], entry), "batch_size": size}
        else:
            sizes[size] = entry
    return [sizes[size] for size in sorted(sizes)] + rest


def repository_index(snapshot: FleetSnapshot, *, ready_only: bool) -> list[dict[str, str]]:
    """Return the merged repository index: each version once, in its best state anywhere.

    Names that lie in a repository and were never loaded come without a version, as on Triton.
    """
    best: dict[tuple[str, int], ModelRow] = {}
    for server in snapshot.servers.values():
        for key, found in server.models.items():
            # Why a server is down names its address, which is for operators only.
            row = found if server.up else ModelRow(State.UNKNOWN, "its server is down")
            known = best.get(key)
            if known is None or _SEVERITY[row.state] > _SEVERITY[known.state]:
                best[key] = row
    loaded = {model for model, _ in best}
    names = {name for server in snapshot.servers.values() for name in server.unloaded}
    entries = [
        _index_entry(model, version, row)
        for (model, version), row in sorted(best.items())
        if row.state is State.READY or not ready_only
    ]
    if not ready_only:
        entries += [{"name": name} for name in sorted(names - loaded)]
    return entries


def _index_entry(model: str, version: int, row: ModelRow) -> dict[str, str]:
    entry = {"name": model, "version": str(version), "state": row.state.value}
    if row.reason:
        entry["reason"] = row.reason
    return entry


def unavailable(message: str) -> Fault:
    """Return the fault of something the fleet cannot tell at the moment."""
    return Fault(Kind.NOT_READY, message, origin=Origin.GATEWAY, retry_after_s=RETRY_AFTER_S)
