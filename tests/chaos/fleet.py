"""Three real Tritons in explicit mode, and what is done to them."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tritonclient.grpc as grpcclient
from google.protobuf import json_format

from tests.gateways import GatewayProcess, configuration
from tests.real import repository

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton

NAMES = ("a", "b", "c")
MODELS = ("whoami", "sleep")
SAMPLES = ("accumulator",)
VERSIONS = {name: set(repository.MODELS[name].versions) for name in MODELS}

GONE_WITHIN_S = 20.0
"""How long a Triton may take to unload a version after the load that leaves it out."""


class RealFleet:
    """The servers by name; everything that blocks is done in a thread."""

    def __init__(self, servers: Mapping[str, "LocalTriton"], models: Path) -> None:
        self.servers = servers
        self._models = models

    def __getitem__(self, name: str) -> "LocalTriton":
        return self.servers[name]

    def config(self, *names: str, **sections: Any) -> dict[str, Any]:
        """Return the configuration of a gateway before some of the servers, or all."""
        chosen = {name: self.servers[name].grpc_address for name in names or self.servers}
        return configuration(chosen, **sections)

    def executions(self) -> dict[str, Counter[str]]:
        """Return what `sleep` has counted so far on each server."""
        return {
            name: repository.executions(self._models, server.server_id)
            for name, server in self.servers.items()
        }

    async def restart(self, name: str) -> None:
        """Start a server that is gone, and wait until it is ready."""
        await asyncio.to_thread(self.servers[name].restart)
        await asyncio.to_thread(self.servers[name].wait_ready)

    async def load(self, name: str, model: str, versions: tuple[int, ...] = ()) -> None:
        """Load a model, or only some versions of it; the others are gone when it returns."""
        await asyncio.to_thread(self._load, name, model, versions)
        async with asyncio.timeout(GONE_WITHIN_S):
            while versions and await asyncio.to_thread(self._versions, name, model) != {*versions}:
                await asyncio.sleep(0.05)

    async def unload(self, name: str, model: str) -> None:
        """Unload a model."""
        await asyncio.to_thread(self._unload, name, model)

    def mend(self) -> None:
        """Bring every server and every model back."""
        for server in self.servers.values():
            if not server.alive:
                server.restart()
        for name, server in self.servers.items():
            server.wait_ready()
            for model in (*MODELS, *SAMPLES):
                if self._versions(name, model) != VERSIONS.get(model, {1}):
                    self._load(name, model, ())

    def _versions(self, name: str, model: str) -> set[int]:
        with grpcclient.InferenceServerClient(self.servers[name].grpc_address) as client:
            rows = client.get_inference_statistics().model_stats
        return {int(row.version) for row in rows if row.name == model}

    def _load(self, name: str, model: str, versions: tuple[int, ...]) -> None:
        with grpcclient.InferenceServerClient(self.servers[name].grpc_address) as client:
            if not versions:
                client.load_model(model)
                return
            if not client.is_model_ready(model):
                client.load_model(model)
            config = client.get_model_config(model).config
            config.version_policy.specific.versions[:] = versions
            client.load_model(model, config=json.dumps(json_format.MessageToDict(config)))

    def _unload(self, name: str, model: str) -> None:
        with grpcclient.InferenceServerClient(self.servers[name].grpc_address) as client:
            client.unload_model(model)


def server_rows(gateway: GatewayProcess) -> dict[str, dict[str, Any]]:
    """Return the gateway's view of its servers, by name."""
    return {row["name"]: row for row in gateway.fleet()["servers"]}


def version_row(gateway: GatewayProcess, model: str, version: int = 1) -> dict[str, Any]:
    """Return the gateway's view of one version of a model."""
    rows = {row["name"]: row for row in gateway.fleet()["models"]}
    found: dict[str, Any] = rows[model]["versions"][str(version)]
    return found
