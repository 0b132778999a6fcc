"""The fleet as JSON, with the reason of everything that is not ready."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from gateway.ports import CoreView, Membership, SourceStatus
from routing.fleet import ModelRoute, ModelVersion, ServerRow, VersionRoute
from routing.pool import Pool
from routing.types import State


def fleet_view(view: CoreView, membership: Membership) -> dict[str, Any]:
    """Return the table server x model x version, and what is under way on each server."""
    snapshot, pool = view.fleet.snapshot, view.pool
    bad = pool.bad_versions()
    down = view.store.down_reason()
    return {
        "servers": [server_view(row, view, membership) for row in snapshot.servers.values()],
        "sources": [_source(source) for source in membership.sources()],
        "models": [
            _model(name, model, pool, bad) for name, model in sorted(snapshot.models.items())
        ],
        "findings": [*membership.findings(), *view.channels.findings()],
        "store": {
            "kind": view.store.kind,
            "up": down is None,
            **({} if down is None else {"reason": down}),
        },
        "limits": dict(view.limits.view()),
        "admission": _admission(view),
        "breakers": [
            {"of": of, "server": server, "circuit": breaker.circuit.value}
            for of, breakers in pool.breakers().items()
            for server, breaker in breakers.items()
        ],
    }


def server_view(row: ServerRow, view: CoreView, membership: Membership) -> dict[str, Any]:
    """Return one server: what it is, what it has, and what this gateway has under way there."""
    load = view.pool.loads[row.name]
    return {
        "name": row.name,
        "up": row.up,
        **({} if row.up else {"reason": row.reason}),
        "source": membership.source_of(row.name),
        "leaving": row.leaving,
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


def _admission(view: CoreView) -> dict[str, Any]:
    """Return what waits for room by model and class, and how much there is of it."""
    admission = view.admission
    if admission.mode == "off":
        return {"mode": admission.mode}
    return {
        "mode": admission.mode,
        "queued": admission.queued(),
        "limits": [
            {
                "server": server,
                "model": model,
                "limit_rows": round(room.limit, 1),
                "in_flight_rows": room.in_flight,
            }
            for (server, model), room in sorted(view.pool.limits().items())
        ],
    }


def _source(source: SourceStatus) -> dict[str, Any]:
    return {
        "name": source.name,
        "up": source.up,
        **({"problem": source.problem} if source.problem else {}),
        "last_success": _iso(source.answered_s),
        "servers": source.servers,
        "kept": list(source.kept),
    }


def _iso(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


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
