"""A gateway whose configuration is a file of the test, and ways to change and reload it."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import clients
from tests.clients import Reply
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, serving_config


def config_of(servers: Mapping[str, FakeTriton | str], **sections: Any) -> dict[str, Any]:
    """Return a configuration that is reloaded on command only, unless `reload` says more."""
    addresses = {name: s if isinstance(s, str) else s.address for name, s in servers.items()}
    return configuration(addresses, **{"reload": {"watch": False}, **sections})


def put(path: Path, config: Mapping[str, Any] | str) -> None:
    """Replace a file in one step, as careful tools do."""
    new = path.with_name(".new")
    new.write_text(config if isinstance(config, str) else yaml.safe_dump(dict(config)))
    new.replace(path)


class Reloading:
    """A running gateway and its file."""

    def __init__(self, gateway: Serving, path: Path) -> None:
        self.gateway = gateway
        self.path = path

    async def reload(self, config: Mapping[str, Any] | str | None = None) -> Reply:
        """Put a configuration into the file, if one is given, and have it taken up."""
        if config is not None:
            put(self.path, config)
        return await self.post("/config/reload")

    async def post(self, path: str) -> Reply:
        return await clients.ask(self.gateway.ops_port, clients.request("POST", path))

    async def config(self) -> dict[str, Any]:
        """Return what the fleet view says of the configuration."""
        found: dict[str, Any] = (await self.gateway.ops("/fleet")).json["config"]
        return found

    async def metrics(self) -> dict[str, float]:
        """Return every sample of the metrics page, by its name and labels."""
        self.gateway.gateway.flush()
        page = (await self.gateway.ops("/metrics")).body.decode()
        lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


@contextlib.asynccontextmanager
async def reloading(
    folder: Path, servers: Mapping[str, FakeTriton | str], **sections: Any
) -> AsyncIterator[Reloading]:
    """Run a gateway on a file in `folder` until the block ends."""
    async with reloading_config(folder, config_of(servers, **sections)) as running:
        yield running


@contextlib.asynccontextmanager
async def reloading_config(folder: Path, config: Mapping[str, Any]) -> AsyncIterator[Reloading]:
    """Run a gateway on a file with this configuration until the block ends."""
    path = folder / "gateway.yaml"
    put(path, config)
    async with serving_config(path) as gateway:
        yield Reloading(gateway, path)
        assert gateway.tracebacks == []
