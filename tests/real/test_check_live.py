"""`check --live` and `init` against the real tritonserver, its wrong ports included."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from typer.testing import CliRunner

from config.loader import load_text
from gateway.cli import app
from gateway.cli.local_triton import LocalTriton, Ports
from tests.conftest import SAMPLE_MODELS, Launch
from tests.fakes import ports

KEY = "triton-grpc-protocol-admin"


def metrics_address(server: LocalTriton) -> str:
    return server.metrics_url.removeprefix("http://").removesuffix("/metrics")


def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | environ,
    )


def check(folder: Path, *servers: Mapping[str, Any], **environ: str) -> Any:
    """Run the check as JSON; return the findings' codes by server, and its exit code."""
    result = run("check", "--config", write(folder, *servers), "--live", "--json", **environ)
    assert result.stderr == ""
    report = json.loads(result.stdout)
    codes = {
        server["name"]: [found["code"] for found in server["findings"] if _is_news(found)]
        for server in report["servers"]
    }
    return codes, report, result.returncode


def _is_news(found: Mapping[str, str]) -> bool:
    return found["severity"] != "info"  # the age of this Triton


def write(folder: Path, *servers: Mapping[str, Any]) -> str:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({"servers": list(servers)}))
    return str(path)


def named(name: str, grpc: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "grpc": grpc, **keys}


def test_good_server_and_every_wrong_port(triton_a: LocalTriton, tmp_path: Path) -> None:
    grpc, http, metrics = triton_a.grpc_address, triton_a.http_address, metrics_address(triton_a)
    codes, report, code = check(tmp_path, named("good", grpc, http=http, metrics=metrics))
    # The server of the tests is in explicit mode and has no key.
    assert (codes, code) == ({"good": ["control-exposed"]}, 0)
    [server] = report["servers"]
    assert server["server_id"] == "a"
    assert server["triton_version"].startswith("2.")
    assert server["control_mode"] == "explicit"
    assert server["models_ready"] > 10

    codes, _, code = check(tmp_path, named("http", http), named("metrics", metrics))
    assert codes == {"http": ["grpc-is-http-port"], "metrics": ["grpc-is-metrics-port"]}
    assert code == 1


def test_swapped_ports(triton_a: LocalTriton, tmp_path: Path) -> None:
    grpc, http, metrics = triton_a.grpc_address, triton_a.http_address, metrics_address(triton_a)
    codes, report, code = check(tmp_path, named("swapped", http, http=grpc))
    assert (codes["swapped"], code) == (["ports-swapped"], 1)
    assert f"`grpc: {grpc}` and `http: {http}`" in report["servers"][0]["findings"][0]["fix"]
    codes, _, _ = check(tmp_path, named("turned", grpc, http=metrics, metrics=http))
    assert codes["turned"] == ["ports-swapped", "control-exposed"]
    codes, _, _ = check(tmp_path, named("same", grpc, http=metrics, metrics=metrics))
    assert codes["same"] == ["http-is-metrics-port", "control-exposed"]


def test_one_process_behind_two_addresses(triton_a: LocalTriton, tmp_path: Path) -> None:
    _use(triton_a)
    _, report, code = check(
        tmp_path,
        named("one", triton_a.grpc_address),
        named("two", triton_a.grpc_address.replace("127.0.0.1", "localhost")),
    )
    assert [found["code"] for found in report["fleet"]] == ["same-process"]
    assert code == 0


def _use(server: LocalTriton) -> None:
    import numpy as np
    import tritonclient.grpc as client

    with client.InferenceServerClient(server.grpc_address) as calls:
        tensor = client.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
        calls.infer("identity_fp32", [tensor])


def test_two_servers_with_the_same_models_do_not_differ(
    triton_a: LocalTriton, triton_b: LocalTriton, tmp_path: Path
) -> None:
    servers = named("a", triton_a.grpc_address), named("b", triton_b.grpc_address)
    _, report, code = check(tmp_path, *servers)
    assert (report["fleet"], code) == ([], 0)


def test_restricted_server_names_its_key_and_works_with_it(
    launch_triton: Launch, tmp_path: Path
) -> None:
    restrict = "--grpc-restricted-protocol=statistics,model-repository:admin=open sesame"
    server = launch_triton("locked", ["identity_fp32"], restrict)
    locked = named("locked", server.grpc_address)
    codes, report, code = check(tmp_path, locked)
    assert (codes["locked"], code) == (["restricted"], 1)
    assert report["servers"][0]["missing_keys"] == [KEY]

    with_key = locked | {"metadata": {KEY: {"env": "TRITON_KEY"}}}
    codes, report, code = check(tmp_path, with_key, TRITON_KEY="open sesame")
    assert (codes["locked"], code) == ([], 0)
    assert report["servers"][0]["control_mode"] == "explicit"
    codes, _, code = check(tmp_path, with_key, TRITON_KEY="wrong")
    assert (codes["locked"], code) == (["restricted"], 1)

    written = run("init", server.grpc_address)
    [found] = load_text(written.stdout, "written.yaml").servers
    assert (found.name, list(found.metadata)) == ("locked", [KEY])


@pytest.fixture
def fixed_triton(tmp_path: Path) -> Iterator[LocalTriton]:
    """A server that loads its whole repository for good, on neighbouring ports."""
    repository = tmp_path / "models"
    repository.mkdir()
    (repository / "identity_fp32").symlink_to(SAMPLE_MODELS / "identity_fp32")
    broken = repository / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "1" / "model.py").write_text("raise ValueError('weights are missing')\n")
    (broken / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input [{name: "I" data_type: TYPE_FP32 dims: [1]}]\n'
        'output [{name: "O" data_type: TYPE_FP32 dims: [1]}]\n'
    )
    first = ports.free_ports(3)
    with mock.patch.object(Ports, "pick", return_value=Ports(first, first + 1, first + 2)):
        server = LocalTriton(
            repository,
            server_id="triton",
            extra_args=("--exit-on-error=0", "--strict-readiness=0"),
        )
        with server:
            yield server


def test_fixed_server_with_a_failed_model(fixed_triton: LocalTriton, tmp_path: Path) -> None:
    codes, report, code = check(tmp_path, named("fixed", fixed_triton.grpc_address))
    assert (codes["fixed"], code) == (["model-failed"], 0)
    [server] = report["servers"]
    assert (server["control_mode"], server["models_ready"]) == ("none-or-poll", 1)
    assert "weights are missing" in json.dumps(server["findings"])

    grpc, http = fixed_triton.grpc_address, fixed_triton.http_address
    codes, report, _ = check(tmp_path, named("wrong", http))
    assert report["servers"][0]["findings"][0]["fix"] == f"write `grpc: {grpc}`"

    written = run("init", metrics_address(fixed_triton)).stdout
    [found] = load_text(written, "written.yaml").servers
    assert (found.grpc, found.http) == (grpc, http)
    assert (found.metrics, found.expect) == (metrics_address(fixed_triton), None)


def test_text_fits_80_columns_and_says_what_to_change(
    triton_a: LocalTriton, tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        named("a-server-with-quite-a-long-name-in-oslo", triton_a.grpc_address),
        named("b", triton_a.http_address),
        named("gone", "127.0.0.1:1"),
    )
    result = run("check", "--config", path, "--live")
    lines = result.stdout.splitlines()
    assert result.returncode == 1
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [
        *("SERVER", "REACHABLE", "VERSION", "CANCEL-SAFE", "CONTROL", "MODELS", "RTT")
    ]
    assert lines[1].split()[1:5] == ["yes", "2.51.0", "no", "explicit"]
    assert lines[2].split() == ["b", "no", "-", "-", "-", "-", "-"]
    assert f"b: error: grpc {triton_a.http_address} is Triton's HTTP port" in lines
    assert lines[-1] == "3 servers, 2 errors, 1 warning"


def test_slow_probe_is_announced_on_standard_error(triton_a: LocalTriton, tmp_path: Path) -> None:
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(1)
        silent = f"127.0.0.1:{hole.getsockname()[1]}"
        path = write(tmp_path, named("a", triton_a.grpc_address), named("b", silent))
        result = run("check", "--config", path, "--live")
    assert result.returncode == 1
    assert "waiting for b ..." in result.stderr
    assert "b: error:" in result.stdout


def test_refused_configuration_is_exit_2(tmp_path: Path) -> None:
    command = CliRunner()
    result = command.invoke(app, ["check", "--config", write(tmp_path, {"name": "a"}), "--live"])
    assert (result.exit_code, result.stdout) == (2, "")
    good = write(tmp_path, named("a", "10.0.0.5:8001"))
    result = command.invoke(app, ["check", "--config", good, "--json"])
    assert result.exit_code == 2
    assert "--live" in result.stderr
