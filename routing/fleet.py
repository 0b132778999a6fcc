"""What every server holds and in which state, and the immutable picture requests are routed on.

`FleetTable` collects observations (the prober's polls, and what requests themselves run into) and
builds a `FleetSnapshot` from them; readers hold one reference to a snapshot and never see half of
a change. It refuses to know how observations are made. The clock is passed in: every `now_s` is
monotonic seconds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from routing.catalogue import choose_default
from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.signatures import majority
from routing.types import ModelSpec, Server, State

NEVER = float("-inf")


class ModelVersion(NamedTuple):
    """The key of one version of one model."""

    model: str
    version: int


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model version on one server. `reason` explains every state but READY."""

    state: State
    reason: str = ""


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

    `left_out` are servers that have it ready and are not used for it, each with the reason.
    """

    spec: ModelSpec
    servers: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
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

    def resolve(self, model: str, version: int | None, now_s: float) -> VersionRoute:
        """Return where `model` can be served, choosing the default version if none is given.

        Raises NoSuchModel when the fleet does not have it, and NoReadyEndpoint when it should
        come (back) soon: it is loading, was ready a short time ago, or no server was ever reached.
        """
        route = self.models.get(model)
        if route is None:
            if not any(row.triton_version for row in self.servers.values()):
                raise NoReadyEndpoint("no server of the fleet has answered yet")
            raise NoSuchModel(model, None, "is not found")
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

    def _not_ready(
        self, model: str, version: int | None, routes: Iterable[VersionRoute], now_s: float
    ) -> NoSuchModel | NoReadyEndpoint:
        reason = "has no available versions" if version is None else "is not at ready state"
        fault = NoSuchModel(model, version, reason)
        if any(route.expected(now_s, self.recently_ready_s) for route in routes):
            return NoReadyEndpoint(str(fault))
        return fault


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What an operator laid down for one model.

    `pool` limits it to the servers of that pool. With `compatible` servers whose signature differs
    from the majority's are used all the same.
    """

    default_version: int | None = None
    pool: str | None = None
    compatible: bool = False


@dataclass(slots=True)
class _Observed:
    """Everything known of one server; changed in place by `FleetTable`."""

    server: Server
    leaving: bool = False
    up: bool = False
    reason: str = "not probed yet"
    server_id: str = ""
    triton_version: str = ""
    ready: frozenset[ModelVersion] = frozenset()
    index: Mapping[ModelVersion, ModelRow] = field(default_factory=dict)
    unloaded: frozenset[str] = frozenset()
    suspected: dict[ModelVersion, tuple[str, float]] = field(default_factory=dict)
    specs: dict[ModelVersion, ModelSpec] = field(default_factory=dict)

    def keys(self) -> set[ModelVersion]:
        return {*self.ready, *self.index, *self.suspected}

    def serves(self, key: ModelVersion) -> bool:
        return self.up and key in self.ready and key not in self.suspected

    def of(self, server: Server) -> "_Observed":
        """Return a copy for the same server under other rules."""
        return replace(self, server=server, suspected=dict(self.suspected))

    def rows(self) -> dict[ModelVersion, ModelRow]:
        rows = dict(self.index)
        for key, row in self.index.items():
            if row.state is State.READY:  # the statistics are newer than the index
                rows[key] = ModelRow(State.UNKNOWN, "no longer in the server's statistics")
        for key in self.ready:
            rows[key] = ModelRow(State.READY)
        for key, (reason, _) in self.suspected.items():
            rows[key] = ModelRow(State.UNKNOWN, reason)
        if not self.up:
            rows = dict.fromkeys(rows, ModelRow(State.UNKNOWN, self.reason))
        return rows


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
        self._observed = {server.name: _Observed(server) for server in servers}
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
            seen = before._observed[name].of(self._observed[name].server)
            # Equal signatures are one object here, too.
            seen.specs = {
                key: self._signatures.setdefault(spec, spec) for key, spec in seen.specs.items()
            }
            self._observed[name] = seen
        self._last_ready_s = before._last_ready_s | self._last_ready_s
        self._defaults |= before._defaults
        known = set(self._last_ready_s).union(*(each.keys() for each in self._observed.values()))
        self._refresh(self._observed, known, now_s)

    def add(self, server: Server, *, now_s: float) -> None:
        """Take a server in; nothing is known of it, so nothing is routed to it yet."""
        self._observed[server.name] = _Observed(server)
        self._refresh((server.name,), (), now_s)

    def update(self, server: Server, *, now_s: float) -> None:
        """Take over what is configured differently now. A server that was leaving stays."""
        seen = self._observed[server.name]
        seen.server, seen.leaving = server, False
        self._refresh((server.name,), seen.keys(), now_s)

    def leave(self, name: str, *, now_s: float) -> None:
        """Route nothing to a server any more: it is to be removed once its calls have ended."""
        seen = self._observed[name]
        seen.leaving = True
        self._refresh((name,), seen.keys(), now_s)

    def remove(self, name: str, *, now_s: float) -> None:
        """Forget a server. Of what it held only when it was last ready is remembered."""
        seen = self._observed.pop(name)
        self._refresh((), seen.keys(), now_s)

    def server_up(self, name: str, *, server_id: str, triton_version: str, now_s: float) -> None:
        """Note that the server answered, and who it says it is."""
        seen = self._observed[name]
        before = (seen.up, seen.server_id, seen.triton_version)
        seen.up, seen.reason = True, ""
        seen.server_id, seen.triton_version = server_id, triton_version
        if before != (True, server_id, triton_version):
            self._refresh((name,), seen.keys(), now_s)

    def server_down(self, name: str, reason: str, *, now_s: float) -> None:
        """Note that nothing may be sent to the server, and why."""
        seen = self._observed[name]
        changed = seen.up or seen.reason != reason
        seen.up, seen.reason = False, reason
        if changed:
            self._refresh((name,), seen.keys(), now_s)

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
        for key in new:
            self._last_ready_s[key] = now_s
        changed |= new ^ seen.ready
        if changed:
            seen.ready = new
            seen.specs = {key: spec for key, spec in seen.specs.items() if key in new}
            self._refresh((name,), changed, now_s)

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
            self._refresh((name,), changed, now_s)

    def learn_spec(self, name: str, spec: ModelSpec, *, now_s: float) -> None:
        """Keep the signature of a version as the server reports it."""
        key = ModelVersion(spec.model, spec.version)
        seen = self._observed[name]
        if seen.specs.get(key) != spec:
            # Equal signatures are one object, so that they can be counted by identity.
            seen.specs[key] = self._signatures.setdefault(spec, spec)
            if key in seen.ready:
                self._refresh((name,), (key,), now_s)

    def missing_specs(self, name: str, ready: Iterable[ModelVersion]) -> list[ModelVersion]:
        """Return those of `ready` whose signature on this server is not known."""
        known = self._observed[name].specs
        return sorted(key for key in ready if key not in known)

    def suspect(self, name: str, key: ModelVersion, reason: str, *, now_s: float) -> None:
        """Take one version on one server out at once, until a later poll lists it again."""
        seen = self._observed[name]
        if key not in seen.suspected:
            seen.suspected[key] = (reason, now_s)
            self._refresh((name,), (key,), now_s)

    def _refresh(self, names: Iterable[str], changed: Iterable[ModelVersion], now_s: float) -> None:
        """Make a new snapshot in which these servers' rows and the changed versions are new."""
        models = dict(self.snapshot.models)
        by_model: dict[str, list[ModelVersion]] = {}
        forgotten = {key for key in self._unserved if not self._is_known(key, now_s)}
        for key in {*changed, *forgotten}:
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
            if versions:
                models[model] = ModelRoute(versions, self._default(model, versions))
            else:
                models.pop(model, None)
        servers = {n: row for n, row in self.snapshot.servers.items() if n in self._observed}
        self.snapshot = FleetSnapshot(
            servers={**servers, **{name: self._server_row(name) for name in names}},
            models=models,
            recently_ready_s=self._recently_ready_s,
        )

    def _is_known(self, key: ModelVersion, now_s: float) -> bool:
        recent_s = now_s - self._recently_ready_s
        if self._last_ready_s.get(key, NEVER) >= recent_s:
            return True
        self._last_ready_s.pop(key, None)
        return any(key in seen.ready or key in seen.index for seen in self._observed.values())

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
        rules = self._rules.get(key.model, ModelRules())
        left_out: dict[str, str] = {}
        holders = []
        for name, seen in self._observed.items():
            if seen.serves(key):
                reason = _not_used(seen, key.model, rules)
                if reason is None:
                    holders.append(name)
                else:
                    left_out[name] = reason
        specs = {name: self._observed[name].specs.get(key) for name in holders}
        spec, differing = majority({name: known for name, known in specs.items() if known})
        if not rules.compatible:
            left_out |= differing
        return VersionRoute(
            spec=spec or ModelSpec(key.model, key.version, inputs=(), outputs=()),
            servers=tuple(name for name in holders if name not in left_out),
            left_out=left_out,
            loading=any(
                seen.up and key in seen.index and seen.index[key].state is State.LOADING
                for seen in self._observed.values()
            ),
            last_ready_s=self._last_ready_s.get(key, NEVER),
        )

    def _default(self, model: str, versions: Mapping[int, VersionRoute]) -> int | None:
        rules = self._rules.get(model)
        if rules is not None and rules.default_version is not None:
            return rules.default_version
        holders = {name for route in versions.values() for name in route.servers}
        chosen = choose_default(
            {version: len(route.servers) for version, route in versions.items()},
            holders=len(holders),
            quorum=self._quorum,
            previous=self._defaults.get(model),
        )
        if chosen is not None:
            self._defaults[model] = chosen
        return chosen


def _not_used(seen: _Observed, model: str, rules: ModelRules) -> str | None:
    server = seen.server
    if seen.leaving:
        return "it is leaving the fleet"
    if server.serve != ("*",) and not any(fnmatchcase(model, p) for p in server.serve):
        return "the server's `serve` does not name this model"
    if rules.pool is not None and rules.pool != server.pool:
        return f"the model is for the pool '{rules.pool}'"
    return None
