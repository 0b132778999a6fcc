"""The read-only routes: what the fleet is and holds, answered from the snapshot.

Everything has the form Triton's own front end gives it; `/v2/models` is an addition.
"""

from collections.abc import Awaitable, Callable, Mapping

from gateway.codec.json_document import parse_document
from gateway.edge.answers import JSON, Answer, error_body, json_answer
from gateway.edge.routes import Route
from gateway.fanout import FleetStatistics, repository_index, unavailable
from gateway.faults import Fault
from gateway.ports import Clock, Descriptions, Fleet
from routing.aliases import Aliases, Arm
from routing.errors import RoutingError
from routing.fleet import ModelVersion, VersionRoute

Handler = Callable[[Route, bytes], Awaitable[Answer]]


class MetadataRoutes:
    """Handlers of every route but infer. `not_ready_reason` is None while the gateway is ready."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        aliases: Aliases,
        descriptions: Descriptions,
        statistics: FleetStatistics,
        server_id: str,
        version: str,
        not_ready_reason: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._aliases = aliases
        self._descriptions = descriptions
        self._statistics = statistics
        self._server_id = server_id
        self._version = version
        self._not_ready_reason = not_ready_reason
        self._clock = clock

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler of each route, by route name."""
        return {
            "server_metadata": self._server_metadata,
            "live": self._live,
            "ready": self._ready,
            "models": self._models,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "model_statistics": self._model_statistics,
            "statistics": self._model_statistics,
            "repository_index": self._repository_index,
        }

    async def _server_metadata(self, route: Route, body: bytes) -> Answer:
        return json_answer(
            {
                "name": self._server_id,
                "version": self._version,
                "extensions": list(self._descriptions.extensions()),
            }
        )

    async def _live(self, route: Route, body: bytes) -> Answer:
        return Answer()

    async def _ready(self, route: Route, body: bytes) -> Answer:
        serving = any(row.up for row in self._fleet.snapshot.servers.values())
        return Answer(200 if serving and self._not_ready_reason() is None else 400)

    async def _models(self, route: Route, body: bytes) -> Answer:
        models = [
            {
                "name": name,
                "default_version": str(model.default) if model.default is not None else None,
                "versions": [_where(model.versions[number]) for number in sorted(model.versions)],
            }
            for name, model in sorted(self._fleet.snapshot.models.items())
            if route.access.sees(name)
        ]
        aliases = [
            {
                "name": name,
                "arms": [_arm(arm) for arm in alias.arms if route.access.sees(arm.model)],
            }
            for name, alias in sorted(self._aliases.by_name.items())
            if route.access.sees(name)
        ]
        return json_answer({"models": models, "aliases": aliases})

    async def _model_metadata(self, route: Route, body: bytes) -> Answer:
        found = self._resolve(route)
        for server in found.servers:
            metadata = self._descriptions.metadata(server, _key(found))
            if metadata is not None:
                return json_answer({**metadata, "versions": self._versions(route, found)})
        raise unavailable(f"the metadata of model '{route.model}' is not known yet")

    async def _model_config(self, route: Route, body: bytes) -> Answer:
        found = self._resolve(route)
        for server in found.servers:
            config = self._descriptions.config(server, _key(found))
            if config is not None:
                return Answer(200, (config,), {"Content-Type": JSON})
        raise unavailable(f"the configuration of model '{route.model}' is not known yet")

    async def _model_ready(self, route: Route, body: bytes) -> Answer:
        try:
            if not route.access.may_use(route.model):
                raise Fault.of_routing(self._fleet.snapshot.unknown(route.model))
            self._resolve(route)
        except Fault:
            return Answer(400, (error_body("Model version not ready"),), {"Content-Type": JSON})
        return Answer()

    async def _model_statistics(self, route: Route, body: bytes) -> Answer:
        model, version = self._aliases.stand_in(route.model, route.version)
        rows = await self._statistics.read(model, version)
        if not route.model:
            rows = [row for row in rows if route.access.sees(row["name"])]
        return json_answer({"model_stats": rows})

    async def _repository_index(self, route: Route, body: bytes) -> Answer:
        asked = parse_document(body, simd_from_bytes=len(body) + 1) if body else {}
        ready = asked.get("ready", False)
        if not isinstance(ready, bool):
            raise Fault.invalid("Invalid value for 'ready': expected a boolean")
        entries = repository_index(self._fleet.snapshot, ready_only=ready)
        return json_answer([entry for entry in entries if route.access.sees(entry["name"])])

    def _resolve(self, route: Route) -> VersionRoute:
        model, version = self._aliases.stand_in(route.model, route.version)
        try:
            return self._fleet.snapshot.resolve(model, version, self._clock())
        except RoutingError as error:
            raise Fault.of_routing(error) from None

    def _versions(self, route: Route, found: VersionRoute) -> list[str]:
        model, version = self._aliases.stand_in(route.model, route.version)
        if version is not None:
            return [str(found.spec.version)]
        versions = self._fleet.snapshot.models[model].versions
        return [str(version) for version in sorted(versions) if versions[version].servers]


def _where(found: VersionRoute) -> dict[str, object]:
    return {
        "version": str(found.spec.version),
        "ready": bool(found.servers),
        "servers": found.servers,
    }


def _arm(arm: Arm) -> dict[str, object]:
    version = str(arm.version) if arm.version is not None else None
    return {"model": arm.model, "version": version, "weight": arm.weight}


def _key(found: VersionRoute) -> ModelVersion:
    return ModelVersion(found.spec.model, found.spec.version)
