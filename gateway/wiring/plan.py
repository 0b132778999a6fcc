"""What a configuration would change, for operators to read before it does.

What it means for the models is worked out by the same table that would route requests, on what is
known of the fleet now. Changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from config.compare import Difference, differences, digest
from config.models import Config
from config.servers import Server as ServerConfig
from gateway.members import ServerAdded
from gateway.names import listed
from gateway.wiring.clock import CLOCK
from gateway.wiring.core import Core, Surroundings, links_of, said_by, same_links
from gateway.wiring.fleet import server_of, table_of
from gateway.wiring.identity import keys_in_files
from gateway.wiring.restart import in_force
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion

Plan = dict[str, Any]


def plan_of(core: Core, written: Config, around: Surroundings) -> Plan:
    """Return what would change if `written` replaced the configuration of `core`.

    `servers` has the names that are added, removed and connected anew, `settings` each changed
    value, `needs_restart` the keys that stay as they are until then. Raises OSError or ValueError
    for secrets and certificates that are not there any more.
    """
    applied = in_force(written, core.config)
    servers = around.members.preview(said_by(applied, around.members, {}))
    before = [server.name for server in core.roster.servers()]
    after = [added.server.name for added in servers]
    kept = same_links(core, links_of(around.connecting(applied), servers))
    changed = differences(core.config, applied)
    return {
        "from": core.digest,
        "to": digest(written),
        "servers": {
            "added": [name for name in after if name not in before],
            "removed": [name for name in before if name not in after],
            "reconnected": [name for name in after if name in before and name not in kept],
        },
        "settings": [
            *(_setting(found) for found in changed if not _is_whole_server(found)),
            *_of_key_files(core, applied),
        ],
        "needs_restart": [_setting(found) for found in differences(applied, written)],
        "consequences": [*_for_calls(core, after), *_for_models(core, applied, servers)],
    }


def changes_nothing(plan: Plan) -> bool:
    """Whether everything would be as before. (A new secret reconnects its servers.)"""
    return not any((plan["settings"], *plan["servers"].values()))


def _is_whole_server(found: Difference) -> bool:
    return len(found.loc) == 2 and found.loc[0] == "servers"


def _setting(found: Difference) -> dict[str, Any]:
    return {"key": found.key, "from": found.before, "to": found.after}


def _of_key_files(core: Core, applied: Config) -> Iterator[dict[str, Any]]:
    """Yield whose files of key hashes say something else now, under the same names."""
    before, after = core.keys_in_files, keys_in_files(applied)
    for tenant in before.keys() & after.keys():
        old, new = before[tenant], after[tenant]
        if old != new:
            yield {
                "key": f"tenants.{tenant}.key_files",
                "from": f"{len(old)} keys",
                "to": f"{len(new)} keys, {len(new - old)} of them new",
            }


def _for_calls(core: Core, after: Sequence[str]) -> Iterator[str]:
    for name, load in core.view.pool.loads.items():
        if name not in after and load.calls:
            calls = "1 call" if load.calls == 1 else f"{load.calls} calls"
            yield f"{calls} in flight on {name} will end there as usual"


def _for_models(
    core: Core, applied: Config, servers: Sequence[ServerAdded[ServerConfig]]
) -> Iterator[str]:
    now_s = CLOCK()
    table = table_of(applied, FleetTable)
    for added in servers:
        table.add(server_of(applied, added.server), now_s=now_s)
    # A server that is connected anew is taken to hold what it holds now.
    both = [added.server.name for added in servers if core.roster.has(added.server.name)]
    table.take_over(core.table, both, now_s=now_s)
    before, after = _served(core.table.snapshot), _served(table.snapshot)
    if lost := [key for key in before if key not in after]:
        names = listed(f"{key.model} {key.version}" for key in lost)
        yield f"{_of_models(lost)} without a server: {names} - refused with 503 from then on"
    fewer = [key for key in before if len(after.get(key, ())) in range(1, len(before[key]))]
    if fewer:
        names = listed(
            f"{key.model} {key.version} ({len(before[key])} -> {len(after[key])})" for key in fewer
        )
        yield f"{_of_models(fewer)} with fewer servers: {names}"
    yield from _for_defaults(core.table.snapshot, table.snapshot)


def _served(snapshot: FleetSnapshot) -> Mapping[ModelVersion, Sequence[str]]:
    """Return the servers of each version that has any."""
    return {
        ModelVersion(name, number): version.servers
        for name, model in sorted(snapshot.models.items())
        for number, version in sorted(model.versions.items())
        if version.servers
    }


def _for_defaults(before: FleetSnapshot, after: FleetSnapshot) -> Iterator[str]:
    for name, model in sorted(before.models.items()):
        new = after.models[name].default if name in after.models else None
        if None not in (model.default, new) and new != model.default:
            yield f"{name}: the default version goes from {model.default} to {new}"


def _of_models(keys: Sequence[ModelVersion]) -> str:
    models = len({key.model for key in keys})
    left = "1 model is" if models == 1 else f"{models} models are"
    return f"{left} left"
