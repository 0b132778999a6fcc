"""The fleet as JSON, with the reason of everything that is not ready."""

from collections.abc import Collection
from typing import Any

from gateway.ports import CoreView
from routing.fleet import ModelRoute, ModelVersion, ServerRow, VersionRoute
from routing.pool import Pool
from routing.types import State


def fleet_view(view: CoreView) -> dict[str, Any]:
    """Return the table server x model x version, and what is under way on each server."""
    snapshot, pool = view.fleet.snapshot, view.pool
    bad = pool.bad_versions()
    down = view.store.down_reason()
    return {
        "servers": [server_view(row, view) for row in snapshot.servers.values()],
        "models": [
            _model(name, model, pool, bad) for name, model in sorted(snapshot.models.items())
        ],
        "findings": list(view.channels.findings()),
        "store": {
            "kind": view.store.kind,
            "up": down is None,
            **({} if down is None else {"reason": down}),
        },
        "breakers": [
            {"of": of, "server": server, "circuit": breaker.circuit.value}
            for of, breakers in pool.breakers().items()
            for server, breaker in breakers.items()
        ],
    }


def server_view(row: ServerRow, view: CoreView) -> dict[str, Any]:
    """Return one server: what it is, what it has, and what this gateway has under way there."""
    load = view.pool.loads[row.name]
    return {
        "name": row.name,
        "up": row.up,
        **({} if row.up else {"reason": row.reason}),
        "cordoned": row.name in view.pool.steering.cordoned,
        "server_id": row.server_id,
        "triton_version": row.triton_version,
        "capacity": load.server.capacity,
        "zone": load.server.zone,
        "in_flight_calls": load.calls,
        "in_flight_rows": load.rows,
        "detached_calls": load.detached,
        "open_sequences": view.sequences.by_server().get(row.name, 0),
        "channels": list(view.channels.states(row.name)),
        "models": _held(row),
        "not_loaded": sorted(row.unloaded),
    }


def _held(row: ServerRow) -> list[dict[str, Any]]:
    return [
        {
            "name": key.model,
            "version": key.version,
            "state": model.state.value,
            **({} if model.state is State.READY else {"reason": model.reason or "not said"}),
        }
        for key, model in sorted(row.models.items())
    ]


def _model(
    name: str, model: ModelRoute, pool: Pool, bad: Collection[ModelVersion]
) -> dict[str, Any]:
    return {
        "name": name,
        "default_version": model.default,
        "versions": {
            str(version): {
                "servers": list(route.servers),
                "steered_off": _steered_off(name, version, route, pool),
                "left_out": dict(route.left_out),
                "bad": ModelVersion(name, version) in bad,
            }
            for version, route in sorted(model.versions.items())
        },
    }


def _steered_off(name: str, version: int, route: VersionRoute, pool: Pool) -> dict[str, str]:
    """Return the servers of a version that operators have taken out, each with how."""
    reasons = {server: pool.steering.reason(name, version, server) for server in route.servers}
    return {server: reason for server, reason in reasons.items() if reason is not None}
