"""Three real Tritons of these tests' own, whole again before each test."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import MODELS, NAMES, SAMPLES, RealFleet
from tests.conftest import FAST_LOAD, SAMPLE_MODELS
from tests.real import repository

# A server that is told to stop gives its models so long, in all, to end. Stubs take seconds each.
EXIT_TIMEOUT = "--exit-timeout-secs=3"


@pytest.fixture(scope="package")
def chaos_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Start the servers, side by side."""
    from gateway.cli.local_triton import LocalTriton

    models = tmp_path_factory.mktemp("chaos") / "models"
    repository.build(models, (*MODELS, "slow_load"))
    servers = {
        name: LocalTriton(
            models,
            server_id=name,
            load=(*MODELS, *SAMPLES),
            extra_args=(f"--model-repository={SAMPLE_MODELS}", FAST_LOAD, EXIT_TIMEOUT),
            log_file=models.parent / f"{name}.log",
        )
        for name in NAMES
    }
    try:
        for server in servers.values():
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield RealFleet(servers, models)
    finally:
        for server in servers.values():
            server.kill()


@pytest.fixture
async def fleet(chaos_servers: RealFleet) -> RealFleet:
    """Give the servers, all of them with all of their models."""
    await asyncio.to_thread(chaos_servers.mend)
    return chaos_servers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder for a gateway."""
    return tmp_path / "gateway"
