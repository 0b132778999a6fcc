"""What is deployed fits together, as far as can be told without a container engine."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec.models import ComposeSpecification

from config.loader import load
from config.models import Config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def loaded(name: str, tmp_path: Path) -> Config:
    """Load a deployed configuration; the folder of the state is made to exist."""
    text = (DEPLOY / name).read_text()
    path = tmp_path / "gateway.yaml"
    path.write_text(text.replace("/var/lib/triton-gateway", str(tmp_path)))
    return load(path)


def test_compose_follows_the_specification(compose: dict[str, Any]) -> None:
    ComposeSpecification.model_validate(compose)


def test_what_compose_mounts_and_builds_from_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in compose["volumes"]
    assert (ROOT / compose["services"]["gateway"]["build"]["dockerfile"]).is_file()


def test_the_servers_of_compose_are_the_ones_its_gateway_knows(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    config = loaded("compose/gateway.yaml", tmp_path)
    for server in config.servers:
        service = compose["services"][server.grpc.partition(":")[0]]
        assert f"--id={server.expect}" in service["command"]
    assert config.redis.url is not None
    assert "redis" in compose["services"]


def test_every_model_compose_loads_is_there_and_none_needs_what_the_image_lacks(
    compose: dict[str, Any],
) -> None:
    """NVIDIA's image has the ONNX backend, and no onnxruntime for Python."""
    for name in ("triton-a", "triton-b"):
        command = compose["services"][name]["command"]
        (variant,) = (a.partition("=")[2] for a in command if a.startswith("--model-config-name"))
        for argument in command:
            if not argument.startswith("--load-model="):
                continue
            model = DEPLOY / "models" / argument.partition("=")[2]
            chosen = model / "configs" / f"{variant}.pbtxt"
            text = (chosen if chosen.exists() else model / "config.pbtxt").read_text()
            if 'backend: "python"' in text:
                code = "".join(path.read_text() for path in model.glob("*/model.py"))
                assert "onnxruntime" not in code, model.name
            else:
                assert all((path / "model.onnx").is_file() for path in model.glob("[0-9]*"))


def test_ports_and_grace_times_of_compose_fit_the_configuration(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    config, gateway = loaded("compose/gateway.yaml", tmp_path), compose["services"]["gateway"]
    inner = {int(port.rsplit(":", 1)[1]) for port in gateway["ports"]}
    assert inner == {config.api.port, config.ops.port}
    assert any(port.startswith("127.0.0.1:") and port.endswith("8081") for port in gateway["ports"])
    drain_s = config.shutdown.drain_delay_s + config.shutdown.grace_s
    assert int(gateway["stop_grace_period"].removesuffix("s")) > drain_s


def test_the_image_is_made_of_what_is_there_and_runs_the_command() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source in kept, source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) <= kept
    assert 'ENTRYPOINT ["triton-gateway"]' in dockerfile
    assert "triton-gateway" in project["project"]["scripts"]
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)


def test_the_unit_of_systemd_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not to be had here")
    unit = (DEPLOY / "triton-gateway.service").read_text()
    path = tmp_path / "triton-gateway.service"
    path.write_text(unit.replace("/opt/triton-gateway/bin/triton-gateway", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert str(path) not in done.stderr, done.stderr


def test_the_recipe_for_two_hosts_is_a_valid_configuration(tmp_path: Path) -> None:
    config = loaded("two-hosts/gateway.yaml", tmp_path)
    haproxy = (DEPLOY / "two-hosts" / "haproxy.cfg").read_text()
    assert haproxy.count(f":{config.api.port}\n") == 2
    (minutes,) = set(re.findall(r"timeout (?:client|server) (\d+)m", haproxy))
    assert int(minutes) * 60 > config.deadlines.max_s
    assert f":{config.ops.port}/readyz" in (DEPLOY / "two-hosts" / "keepalived.conf").read_text()
