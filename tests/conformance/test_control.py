"""Model control, settings and restricted parts through the gateway, as on a Triton of its own.

One server is asked directly, another in the same state through a gateway that is told its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.http import InferenceServerClient as Client
from tritonclient.http.aio import InferenceServerClient as AioClient
from tritonclient.utils import InferenceServerException

from gateway.cli.local_triton import LocalTriton
from tests.conformance import control, restricted
from tests.conformance.case import Case
from tests.conformance.comparison import read
from tests.conformance.control import LOADED, ON_Y, OTHER
from tests.conformance.raw_http import ask, request
from tests.conformance.test_differential import compare
from tests.conftest import FAST_LOAD
from tests.gateways import GatewayProcess, configuration
from tests.operators import Done, run
from tests.real import repository

HELD = (LOADED, "whoami")
ON = {"headers": {"Triton-Gateway-Servers": "y"}}
RESTRICTED = f"{','.join(restricted.CATEGORIES)}:{restricted.HEADER}={restricted.KEY}"


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalTriton]]:
    """Three servers: `x` to be asked, `y` behind the gateways, `r` with restrictions."""
    models = tmp_path_factory.mktemp("control") / "models"
    repository.build(models, (*HELD, OTHER))
    servers = {
        name: LocalTriton(
            models,
            server_id="triton",
            load=HELD,
            extra_args=(FAST_LOAD, *more),
            log_file=models.parent / f"{name}.log",
        )
        for name, more in (("x", ()), ("y", ()), ("r", (f"--http-restricted-api={RESTRICTED}",)))
    }
    try:
        for server in servers.values():
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield servers
    finally:
        for server in servers.values():
            server.kill()


def gateway(tritons: dict[str, LocalTriton], folder: Path, **sections: Any) -> GatewayProcess:
    servers = {"y": tritons["y"].grpc_address}
    models = {"simple": {"placement": ["y"]}, LOADED: {"placement": ["?"]}}
    return GatewayProcess(configuration(servers, models=models, **sections), folder)


@pytest.fixture(scope="module")
def controlling(
    tritons: dict[str, LocalTriton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway through which everything may be changed."""
    enabled = {"enabled": True}
    folder = tmp_path_factory.mktemp("controlling")
    with gateway(tritons, folder, model_control=enabled, server_settings=enabled) as running:
        yield running


@pytest.fixture(scope="module")
def restricting(
    tritons: dict[str, LocalTriton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway with restrictions, through which nothing may be changed."""
    folder = tmp_path_factory.mktemp("restricting")
    key = folder / "key"
    key.write_text(restricted.KEY)
    entry = {
        "apis": list(restricted.CATEGORIES),
        "header": restricted.HEADER,
        "key": {"file": str(key)},
    }
    with gateway(tritons, folder, api={"restricted": [entry]}) as running:
        yield running


@pytest.mark.parametrize("case", control.CASES, ids=lambda case: case.id)
def test_changes_are_answered_like_by_triton(
    case: Case, tritons: dict[str, LocalTriton], controlling: GatewayProcess
) -> None:
    compare(case, tritons["x"], controlling)


@pytest.mark.parametrize("case", restricted.CASES, ids=lambda case: case.id)
def test_restricted_parts_are_refused_like_by_triton(
    case: Case, tritons: dict[str, LocalTriton], restricting: GatewayProcess
) -> None:
    compare(case, tritons["r"], restricting)


def test_a_restricted_key_is_not_logged(restricting: GatewayProcess) -> None:
    right = f"{restricted.HEADER}: {restricted.KEY}"
    ask(restricting.address, request("GET", f"/v2?{restricted.KEY}", headers=[right]))
    assert restricted.KEY not in restricting.log_path.read_text()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", control.path(LOADED, "load"), b""),
        ("POST", control.path(LOADED, "unload"), b""),
        ("POST", control.path(LOADED, "load", "r"), b""),
        ("POST", "/v2/trace/setting", b'{"trace_rate":"1"}'),
        ("POST", f"/v2/models/{LOADED}/trace/setting", b"nope"),
        ("POST", "/v2/logging", b'{"log_info":false}'),
    ],
)
def test_changes_have_to_be_switched_on(
    restricting: GatewayProcess, method: str, path: str, body: bytes
) -> None:
    key = f"{restricted.HEADER}: {restricted.KEY}"
    answer = read(ask(restricting.address, request(method, path, body, [ON_Y, key])))
    assert answer.status == 403
    assert "is not allowed here (" in answer.text
    assert ".enabled)" in answer.text


@pytest.mark.parametrize(
    ("model", "headers", "query", "text"),
    [
        (OTHER, [], "", "it is not said where: "),
        (OTHER, [], "?server=z", "there is no server 'z'; there is y"),
        (OTHER, ["Triton-Gateway-Servers: y, z"], "", "there is no server 'z'; there is y"),
        (OTHER, [], "?server=%ff", "the query string cannot be read"),
    ],
)
def test_a_command_says_where(
    controlling: GatewayProcess, model: str, headers: list[str], query: str, text: str
) -> None:
    target = f"{control.path(model, 'load')}{query}"
    answer = read(ask(controlling.address, request("POST", target, b"", headers)))
    assert answer.status == 400
    assert text in answer.text
    if "not said" in text:
        assert "?server=NAME" in answer.text
        assert "Triton-Gateway-Servers" in answer.text


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([], ""),
        ([], "?server=y"),
        ([], "?x=1&server=y&server=y"),
        ([], "?server=*"),
        (["Triton-Gateway-Servers: ?"], ""),
    ],
)
def test_servers_are_named_in_several_ways(
    controlling: GatewayProcess, headers: list[str], query: str
) -> None:
    target = f"{control.path(LOADED, 'load')}{query}"
    answer = read(ask(controlling.address, request("POST", target, b"", headers)))
    assert answer.status == 200
    (step,) = answer.document["servers"]
    assert (step["server"], step["state"]) == ("y", "done")


def test_the_client_example_of_model_control_works(controlling: GatewayProcess) -> None:
    """Do what simple_http_model_control.py does, with the model's placement declared."""
    with Client(controlling.address) as client:
        client.load_model(LOADED)
        assert client.is_model_ready(LOADED)
        client.unload_model(LOADED)
        assert not client.is_model_ready(LOADED)
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert index[LOADED].get("state") != "READY"
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.load_model("wrong_model_name")
        client.load_model(LOADED)


async def test_the_async_client_loads_with_a_config_and_files(controlling: GatewayProcess) -> None:
    async with AioClient(controlling.address) as client:
        config = control.INT32_CONFIG.replace(LOADED, "made_up")
        files = {"file:1/model.py": control.SOURCE.encode()}
        await client.load_model("made_up", config=config, files=files, query_params={"server": "y"})
        assert await client.is_model_ready("made_up")
        assert (await client.get_model_metadata("made_up"))["inputs"][0]["datatype"] == "INT32"
        await client.unload_model("made_up", **ON)
        assert not await client.is_model_ready("made_up")


def test_the_client_example_of_health_and_metadata_works(controlling: GatewayProcess) -> None:
    """Do what simple_http_health_metadata.py does."""
    with Client(controlling.address) as client:
        assert client.is_server_live(query_params={"test_1": 1, "test_2": 2})
        assert client.is_server_ready()
        assert client.is_model_ready(LOADED)
        metadata = client.get_server_metadata()
        assert metadata["name"] == "triton"
        assert {"model_repository", "trace", "logging"} <= set(metadata["extensions"])
        assert client.get_model_metadata(LOADED)["name"] == LOADED
        unknown = "Request for unknown model: 'wrong_model_name' is not found"
        for ask_for in (client.get_model_metadata, client.get_model_config):
            with pytest.raises(InferenceServerException, match=unknown):
                ask_for("wrong_model_name")
        assert client.get_model_config(LOADED)["name"] == LOADED


def test_the_client_reads_and_changes_settings(controlling: GatewayProcess) -> None:
    with Client(controlling.address) as client:
        before = client.get_log_settings()
        assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
        assert client.update_log_settings({"log_verbose_level": 0}) == before
        trace = client.get_trace_settings(LOADED)
        changed = client.update_trace_settings(LOADED, {"trace_rate": "7", "trace_level": ["OFF"]})
        assert changed == {**trace, "trace_rate": "7"}
        assert client.update_trace_settings(LOADED, {"trace_rate": None}) == trace


def test_operators_load_and_unload_from_a_terminal(
    restricting: GatewayProcess, tmp_path: Path
) -> None:
    """Without leave for callers of the API, operators have it."""

    def operate(*arguments: str) -> Done:
        return run("model", *arguments, ops_port=restricting.ops_port)

    done = operate("unload", LOADED, "--placement")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"{LOADED}: unloaded")
    config = tmp_path / "config.json"
    config.write_text(control.INT32_CONFIG)
    done = operate("load", LOADED, "--server", "y", "--model-config", str(config))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"{LOADED}: loaded"
    assert any(line.startswith("y: done since ") for line in done.out.splitlines())
    with Client(restricting.address) as client:
        assert client.is_model_ready(LOADED)
    done = operate("load", "nope", "--server", "*")
    assert (done.code, done.err) == (1, "nope: failed to load on 1 of 1 servers\n")
    assert "y: failed since" in done.out
    assert "failed to poll from model repository" in done.out
    done = run("fleet", ops_port=restricting.ops_port)
    assert "MODEL CONTROL" in done.out
    assert "load nope: y failed" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["load", LOADED], 2, "say where: --server, once or more, or --placement alone"),
        (["unload", LOADED, "--server", "y", "--placement"], 2, "say where"),
        (["load", LOADED, "--server", "z"], 1, "there is no server 'z'; there is y"),
        (["load", OTHER, "--placement"], 1, f"(models.{OTHER}.placement)"),
        (["load", LOADED, "--server", "y", "--model-config", "gone"], 2, "--model-config: gone"),
    ],
)
def test_a_command_that_cannot_be_given_says_why(
    restricting: GatewayProcess, arguments: list[str], code: int, text: str
) -> None:
    done = run("model", *arguments, ops_port=restricting.ops_port)
    assert done.code == code
    assert text in done.err


def test_shared_memory_is_refused_with_the_reason(controlling: GatewayProcess) -> None:
    with Client(controlling.address) as client:
        for call in (
            client.get_system_shared_memory_status,
            client.unregister_cuda_shared_memory,
            lambda: client.register_system_shared_memory("r", "/k", 8),
        ):
            with pytest.raises(InferenceServerException, match="no memory in common"):
                call()
