"""What every server holds and in which state, and the immutable picture requests are routed on.

`FleetTable` collects observations (the prober's polls, and what requests themselves run into) and
builds a `FleetSnapshot` from them; readers hold one reference to a snapshot and never see half of
a change. It refuses to know how observations are made. The clock is passed in: every `now_s` is
monotonic seconds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from routing.catalogue import choose_default
from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.holders import NOTHING, Holders
from routing.observed import NO_RULES, Observed
from routing.types import ModelRow, ModelRules, ModelSpec, ModelVersion, Server

__all__ = [
    "NEVER",
    "FleetSnapshot",
    "FleetTable",
    "ModelRoute",
    "ModelRow",
    "ModelRules",
    "ModelVersion",
    "ServerRow",
    "VersionRoute",
]

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One server as last seen. `reason` explains why it is not up.

    `models` is what it has loaded or tried to load, `unloaded` the names that are only in its
    repository. One that is `leaving` gets nothing new and is removed when its calls have ended.
    """

    name: str
    up: bool
    reason: str
    server_id: str
    triton_version: str
    models: Mapping[ModelVersion, ModelRow]
    unloaded: frozenset[str] = frozenset()
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class VersionRoute:
    """Where one model version can be served: the names of the servers that have it ready.

    `left_out` have it ready and are not used for it, with why; `lost` had it until they went down.
    """

    spec: ModelSpec
    servers: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    loading: bool = False
    last_ready_s: float = NEVER

    def expected(self, now_s: float, recently_ready_s: float) -> bool:
        """Whether it may become ready soon: it is loading, or was ready a short time ago."""
        return self.loading or now_s - self.last_ready_s <= recently_ready_s


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """All known versions of one model. `default` answers requests that name no version."""

    versions: Mapping[int, VersionRoute]
    default: int | None


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The whole fleet at one moment. Immutable; replaced as one reference."""

    servers: Mapping[str, ServerRow] = field(default_factory=dict)
    models: Mapping[str, ModelRoute] = field(default_factory=dict)
    recently_ready_s: float = 0.0

    def staying(self) -> list[str]:
        """Return the names of the servers that are not leaving."""
        return [name for name, row in self.servers.items() if not row.leaving]

    def resolve(self, model: str, version: int | None, now_s: float) -> VersionRoute:
        """Return where `model` can be served, choosing the default version if none is given.

        Raises NoSuchModel when the fleet does not have it, and NoReadyEndpoint when it should
        come (back) soon: it is loading, was ready a short time ago, or no server was ever reached.
        """
        route = self.models.get(model)
        if route is None:
            raise self.unknown(model)
        if version is None:
            version = route.default
        if version is None:
            raise self._not_ready(model, None, route.versions.values(), now_s)
        found = route.versions.get(version)
        if found is None:
            raise NoSuchModel(model, version, "is not found")
        if not found.servers:
            raise self._not_ready(model, version, (found,), now_s)
        return found

    def unknown(self, model: str) -> NoSuchModel | NoReadyEndpoint:
        """Return what is said of a model that the fleet does not have."""
        if not any(row.triton_version for row in self.servers.values()):
            return NoReadyEndpoint("no server of the fleet has answered yet")
        return NoSuchModel(model, None, "is not found")

    def _not_ready(
        self, model: str, version: int | None, routes: Iterable[VersionRoute], now_s: float
    ) -> NoSuchModel | NoReadyEndpoint:
        reason = "has no available versions" if version is None else "is not at ready state"
        fault = NoSuchModel(model, version, reason)
        if any(route.expected(now_s, self.recently_ready_s) for route in routes):
            return NoReadyEndpoint(str(fault))
        return fault


class FleetTable:
    """Collects what is observed of the servers and keeps `snapshot` up to date.

    `quorum` is the share of a model's servers a version needs to become its default; `rules` are
    what the operator laid down, by model. A version that was ready at most `recently_ready_s` ago
    is answered with "not ready", not with "unknown".
    """

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        quorum: float,
        recently_ready_s: float,
        rules: Mapping[str, ModelRules] | None = None,
    ) -> None:
        self._observed: dict[str, Observed] = {}
        self._names: dict[int, str] = {}
        self._next_number = 0
        for server in servers:
            self._take_in(server)
        self._holders: dict[ModelVersion, Holders] = {}
        self._quorum = quorum
        self._recently_ready_s = recently_ready_s
        self._rules = dict(rules or {})
        self._last_ready_s: dict[ModelVersion, float] = {}
        self._unserved: set[ModelVersion] = set()  # to be forgotten some day
        self._defaults: dict[str, int] = {}
        self._signatures: dict[ModelSpec, ModelSpec] = {}
        self.snapshot = FleetSnapshot(
            servers={name: self._server_row(name) for name in self._observed},
            recently_ready_s=recently_ready_s,
        )

    def take_over(self, before: "FleetTable", kept: Collection[str], *, now_s: float) -> None:
        """Go on from what another table knows of the `kept` servers, and of versions now gone."""
        for name in kept:
            seen = before._observed[name].of(self._observed[name])
            # Equal signatures are one object here, too.
            seen.specs = {
                key: self._signatures.setdefault(spec, spec) for key, spec in seen.specs.items()
            }
            self._observed[name] = seen
        self._last_ready_s = before._last_ready_s | self._last_ready_s
        self._defaults |= before._defaults
        for seen in self._observed.values():
            for key in tuple(seen.keys()):
                self._note(seen, key)
        for key in self._last_ready_s:
            self._holders.setdefault(key, Holders())
        self._publish(self._observed, tuple(self._holders), now_s)

    def add(self, server: Server, *, now_s: float) -> None:
        """Take a server in; nothing is known of it, so nothing is routed to it yet."""
        self._take_in(server)
        self._refresh(server.name, (), now_s)

    def update(self, server: Server, *, now_s: float) -> None:
        """Take over what is configured differently now. A server that was leaving stays."""
        seen = self._observed[server.name]
        seen.server, seen.leaving = server, False
        self._refresh(server.name, seen.keys(), now_s)

    def leave(self, name: str, *, now_s: float) -> None:
        """Route nothing to a server any more: it is to be removed once its calls have ended."""
        seen = self._observed[name]
        seen.leaving = True
        self._refresh(name, seen.keys(), now_s)

    def remove(self, name: str, *, now_s: float) -> None:
        """Forget a server. Of what it held only when it was last ready is remembered."""
        seen = self._observed.pop(name)
        held = [key for key in seen.keys() if key in self._holders]  # noqa: SIM118 - no mapping
        moved = {key for key in held if self._holders[key].note(seen.number, NOTHING)}
        del self._names[seen.number]
        self._publish((), moved | self._forgotten(now_s), now_s)

    def _take_in(self, server: Server) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        self._observed[server.name] = Observed(server, number)
        self._names[number] = server.name

    def server_up(self, name: str, *, server_id: str, triton_version: str, now_s: float) -> None:
        """Note that the server answered, and who it says it is."""
        seen = self._observed[name]
        before = (seen.up, seen.server_id, seen.triton_version)
        seen.up, seen.reason = True, ""
        seen.server_id, seen.triton_version = server_id, triton_version
        if before != (True, server_id, triton_version):
            self._refresh(name, seen.keys(), now_s)

    def server_down(self, name: str, reason: str, *, now_s: float) -> None:
        """Note that nothing may be sent to the server, and why."""
        seen = self._observed[name]
        changed = seen.up or seen.reason != reason
        seen.up, seen.reason = False, reason
        if changed:
            self._refresh(name, seen.keys(), now_s)

    def observe_ready(
        self, name: str, ready: Iterable[ModelVersion], *, asked_s: float, now_s: float
    ) -> None:
        """Replace the set of versions the server has ready, as asked for at `asked_s`.

        A suspicion raised after `asked_s` stands: the answer may be older than what raised it.
        """
        seen = self._observed[name]
        new = frozenset(ready)
        changed = {key for key, (_, since_s) in seen.suspected.items() if since_s <= asked_s}
        for key in changed:
            del seen.suspected[key]
        self._last_ready_s.update(dict.fromkeys(new, now_s))
        changed |= new ^ seen.ready
        if changed:
            seen.ready = new
            seen.specs = {key: spec for key, spec in seen.specs.items() if key in new}
            self._refresh(name, changed, now_s)

    def observe_index(
        self,
        name: str,
        index: Mapping[ModelVersion, ModelRow],
        unloaded: Iterable[str],
        *,
        now_s: float,
    ) -> None:
        """Replace the states and reasons from the server's repository index.

        `unloaded` are the names that lie in the repository and were never loaded.
        """
        seen = self._observed[name]
        names = frozenset(unloaded)
        changed = {key for key in {*index, *seen.index} if index.get(key) != seen.index.get(key)}
        if changed or names != seen.unloaded:
            seen.index, seen.unloaded = dict(index), names
            self._refresh(name, changed, now_s)

    def learn_spec(self, name: str, spec: ModelSpec, *, now_s: float) -> None:
        """Keep the signature of a version as the server reports it."""
        key = ModelVersion(spec.model, spec.version)
        seen = self._observed[name]
        if seen.specs.get(key) != spec:
            # Equal signatures are one object, so that they can be counted by identity.
            seen.specs[key] = self._signatures.setdefault(spec, spec)
            if key in seen.ready:
                self._refresh(name, (key,), now_s)

    def missing_specs(self, name: str, ready: Iterable[ModelVersion]) -> list[ModelVersion]:
        """Return those of `ready` whose signature on this server is not known."""
        known = self._observed[name].specs
        return sorted(key for key in ready if key not in known)

    def suspect(self, name: str, key: ModelVersion, reason: str, *, now_s: float) -> None:
        """Take one version on one server out at once, until a later poll lists it again."""
        seen = self._observed[name]
        if key not in seen.suspected:
            seen.suspected[key] = (reason, now_s)
            self._refresh(name, (key,), now_s)

    def pinned_versions(self) -> dict[str, int]:
        """Return the default versions the operator laid down, by model."""
        return {
            model: rules.default_version
            for model, rules in self._rules.items()
            if rules.default_version is not None
        }

    def disagreements(self) -> dict[ModelVersion, dict[str, ModelSpec]]:
        """Return the signatures, by server, of every version that looks different on some."""
        return {
            key: holders.signatures(self._names)
            for key, holders in self._holders.items()
            if not holders.agree()
        }

    def _refresh(self, name: str, changed: Iterable[ModelVersion], now_s: float) -> None:
        """Make a new snapshot: a server's row, and those of `changed` it says something new of."""
        moved = {key for key in changed if self._note(self._observed[name], key)}
        self._publish((name,), moved | self._forgotten(now_s), now_s)

    def _forgotten(self, now_s: float) -> set[ModelVersion]:
        return {key for key in self._unserved if not self._is_known(key, now_s)}

    def _publish(self, names: Iterable[str], moved: Collection[ModelVersion], now_s: float) -> None:
        servers = {n: row for n, row in self.snapshot.servers.items() if n in self._observed}
        self.snapshot = FleetSnapshot(
            servers={**servers, **{name: self._server_row(name) for name in names}},
            models=self._reroute(moved, now_s) if moved else self.snapshot.models,
            recently_ready_s=self._recently_ready_s,
        )

    def _note(self, seen: Observed, key: ModelVersion) -> bool:
        said = seen.says(key, self._rules.get(key.model, NO_RULES))
        if said is not NOTHING:
            self._holders.setdefault(key, Holders())
        return key in self._holders and self._holders[key].note(seen.number, said)

    def _reroute(self, moved: Iterable[ModelVersion], now_s: float) -> Mapping[str, ModelRoute]:
        """Return the models of the snapshot with new routes of the `moved` versions."""
        models = dict(self.snapshot.models)
        by_model: dict[str, list[ModelVersion]] = {}
        for key in moved:
            by_model.setdefault(key.model, []).append(key)
        for model, keys in by_model.items():
            before = models.get(model)
            versions = dict(before.versions) if before else {}
            for key in keys:
                self._unserved.discard(key)
                if self._is_known(key, now_s):
                    route = versions[key.version] = self._route(key)
                    if not route.servers:
                        self._unserved.add(key)
                else:
                    versions.pop(key.version, None)
                    del self._holders[key]
            if versions:
                models[model] = ModelRoute(versions, self._default(model, versions))
            else:
                models.pop(model, None)
        return models

    def _is_known(self, key: ModelVersion, now_s: float) -> bool:
        recent_s = now_s - self._recently_ready_s
        if self._last_ready_s.get(key, NEVER) >= recent_s:
            return True
        self._last_ready_s.pop(key, None)
        return self._holders[key].known > 0

    def _server_row(self, name: str) -> ServerRow:
        seen = self._observed[name]
        return ServerRow(
            name=name,
            up=seen.up,
            reason=seen.reason,
            server_id=seen.server_id,
            triton_version=seen.triton_version,
            models=seen.rows(),
            unloaded=seen.unloaded,
            leaving=seen.leaving,
        )

    def _route(self, key: ModelVersion) -> VersionRoute:
        holders = self._holders[key]
        compatible = self._rules.get(key.model, NO_RULES).compatible
        spec, servers, left_out = holders.used(self._names, compatible=compatible)
        return VersionRoute(
            spec=spec or ModelSpec(key.model, key.version, inputs=(), outputs=()),
            servers=servers,
            left_out=left_out,
            lost=frozenset(map(self._names.__getitem__, holders.lost)),
            loading=holders.loading > 0,
            last_ready_s=self._last_ready_s.get(key, NEVER),
        )

    def _default(self, model: str, versions: Mapping[int, VersionRoute]) -> int | None:
        rules = self._rules.get(model)
        if rules is not None and rules.default_version is not None:
            return rules.default_version
        ready = {version: len(route.servers) for version, route in versions.items()}
        holders = max(ready.values())
        if len(ready) > 1:
            holders = len({name for route in versions.values() for name in route.servers})
        chosen = choose_default(
            ready,
            holders=holders,
            quorum=self._quorum,
            previous=self._defaults.get(model),
        )
        if chosen is not None:
            self._defaults[model] = chosen
        return chosen
