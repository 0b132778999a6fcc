"""The fleet as JSON, with the reason of everything that is not ready."""

from typing import Any

from gateway.ports import Channels, Fleet
from routing.fleet import ServerRow
from routing.pool import Pool
from routing.types import State


def fleet_view(fleet: Fleet, pool: Pool, channels: Channels) -> dict[str, Any]:
    """Return the table server x model x version, and what is under way on each server."""
    snapshot = fleet.snapshot
    return {
        "servers": [
            {
                **_server(row),
                "capacity": pool.loads[row.name].capacity,
                "in_flight_calls": pool.loads[row.name].calls,
                "in_flight_rows": pool.loads[row.name].in_flight,
                "detached_calls": pool.loads[row.name].detached,
                "channels": list(channels.states(row.name)),
            }
            for row in snapshot.servers.values()
        ],
        "models": [
            {
                "name": name,
                "default_version": model.default,
                "versions": {
                    str(version): list(route.servers)
                    for version, route in sorted(model.versions.items())
                },
            }
            for name, model in sorted(snapshot.models.items())
        ],
    }


def _server(row: ServerRow) -> dict[str, Any]:
    models = [
        {
            "name": key.model,
            "version": key.version,
            "state": model.state.value,
            **({} if model.state is State.READY else {"reason": model.reason or "not said"}),
        }
        for key, model in sorted(row.models.items())
    ]
    return {
        "name": row.name,
        "up": row.up,
        **({} if row.up else {"reason": row.reason}),
        "server_id": row.server_id,
        "triton_version": row.triton_version,
        "models": models,
        "not_loaded": sorted(row.unloaded),
    }
