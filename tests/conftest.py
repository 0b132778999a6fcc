"""Fixtures every test may use: two real tritonservers, started once a run and only when asked for.

`triton_a` and `triton_b` share some models and differ in others. They belong to all tests: whoever
wants to stop, freeze or reconfigure a server takes one of its own from `launch_triton`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

from tests.real import repository

if TYPE_CHECKING:
    from gateway.cli.local_triton import LocalTriton
    from tests.gateways import GatewayProcess
    from tests.redis_server import RedisServer

# How long an example takes says how busy the machine is, and nothing of what it shows.
settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

SAMPLE_MODELS = Path(__file__).parents[1] / "deploy" / "models"

ON_BOTH = (
    "simple_onnx",
    "resnet50_onnx",
    "identity_fp32",
    "repeat",
    "echo_INT32",
    "echo_FP32",
    "echo_BYTES",
    "sleep",
    "whoami",
    "two_in",
    "params",
    "boom",
    "stream",
)
ONLY_ON_A = (
    "custom_model",
    "empty_out",
    "classify",
    "mock_llm",
    "shapes",
    "batched_shapes",
    "sleep_rows",
    *(f"echo_{datatype}" for datatype in repository.DATATYPES if f"echo_{datatype}" not in ON_BOTH),
)
ONLY_ON_B = ("priority", "accumulator")
LOADS = {"a": ON_BOTH + ONLY_ON_A, "b": ON_BOTH + ONLY_ON_B}

# All models here are completely configured. Otherwise every one of them is started twice at load.
FAST_LOAD = "--disable-auto-complete-config"

# The `params` model on b sees the metadata and headers of its caller as request parameters.
FORWARD_ALL_HEADERS = ("--grpc-header-forward-pattern=.*", "--http-header-forward-pattern=.*")


class Launch(Protocol):
    """Starts a server of one test's own and waits until it is ready."""

    def __call__(self, server_id: str, load: Sequence[str], *arguments: str) -> LocalTriton: ...


@pytest.fixture(scope="session")
def fixture_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the repository of fixture models that every server of the run reads."""
    path = tmp_path_factory.mktemp("real") / "models"
    repository.build(path)
    return path


@pytest.fixture(scope="session")
def triton_fleet(
    request: pytest.FixtureRequest, fixture_models: Path
) -> Iterator[dict[str, LocalTriton]]:
    """Start, side by side, those of the two servers that the collected tests ask for."""
    asked_for = {name for item in request.session.items for name in _fixture_names(item)}
    fleet = {
        "a": _server("a", LOADS["a"], fixture_models),
        "b": _server("b", LOADS["b"], fixture_models, *FORWARD_ALL_HEADERS),
    }
    try:
        for server_id, server in fleet.items():
            if f"triton_{server_id}" in asked_for:
                server.start()
        yield fleet
    finally:
        for server in fleet.values():
            server.kill()


@pytest.fixture(scope="session")
def triton_a(triton_fleet: dict[str, LocalTriton]) -> LocalTriton:
    """Server `a`, ready, with the models of `LOADS["a"]`."""
    return _ready(triton_fleet["a"])


@pytest.fixture(scope="session")
def triton_b(triton_fleet: dict[str, LocalTriton]) -> LocalTriton:
    """Server `b`, ready, with the models of `LOADS["b"]`; it forwards every header to them."""
    return _ready(triton_fleet["b"])


@pytest.fixture
def launch_triton(fixture_models: Path) -> Iterator[Launch]:
    """Give a function that starts a server, which ends with the test."""
    servers: list[LocalTriton] = []

    def launch(server_id: str, load: Sequence[str], *arguments: str) -> LocalTriton:
        server = _server(server_id, load, fixture_models, *arguments)
        servers.append(server)
        server.start()
        server.wait_ready()
        return server

    yield launch
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def real_gateway(
    triton_a: LocalTriton, triton_b: LocalTriton, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway process in front of the servers `a` and `b`."""
    from tests.gateways import GatewayProcess, configuration

    servers = {"a": triton_a.grpc_address, "b": triton_b.grpc_address}
    with GatewayProcess(configuration(servers), tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of all tests; each takes a namespace of its own there."""
    from tests.redis_server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def _server(server_id: str, load: Sequence[str], models: Path, *arguments: str) -> LocalTriton:
    from gateway.cli.local_triton import LocalTriton  # brings the whole command line with it

    return LocalTriton(
        SAMPLE_MODELS,
        server_id=server_id,
        load=load,
        extra_args=(f"--model-repository={models}", FAST_LOAD, *arguments),
        log_file=models.parent / f"{server_id}.log",
    )


def _ready(server: LocalTriton) -> LocalTriton:
    if not server.alive:
        server.start()
    server.wait_ready()
    return server


def _fixture_names(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())
