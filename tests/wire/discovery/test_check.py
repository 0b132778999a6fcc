"""`check` counts sources, and with --live asks each once and looks at what it names."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.wiring import source
from tests.fakes.dns import FakeDns
from tests.fakes.proxy import HOST
from tests.serving import fake_triton


def write(folder: Path, *sources: dict[str, Any], **sections: Any) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({"discovery": list(sources), **sections}))
    return path


async def check(path: Path, *options: str) -> Result:
    from gateway.cli import app

    arguments = ["check", "--config", str(path), *options]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def report(path: Path) -> tuple[int, Any]:
    result = await check(path, "--live", "--json")
    return result.exit_code, json.loads(result.stdout)


async def test_sources_are_counted(tmp_path: Path) -> None:
    result = await check(write(tmp_path, {"name": "f", "file": {"path": "none.yaml"}}))
    assert result.exit_code == 0
    assert ": good, 0 servers, 1 source, hash " in result.stdout


async def test_what_the_sources_name_is_looked_at(tmp_path: Path) -> None:
    async with fake_triton() as fixed, fake_triton() as found, FakeDns() as nameserver:
        nameserver.has("triton", "SRV", f"0 0 {found.address.rpartition(':')[2]} host.")
        nameserver.has("host", "A", HOST)
        dns = {"names": ["triton"], "record": "srv", "nameservers": [nameserver.address]}
        servers = [{"name": "fixed", "grpc": fixed.address}]
        (tmp_path / "twice.yaml").write_text(yaml.safe_dump(servers))
        listed = {"name": "f", "file": {"path": "twice.yaml"}}
        code, seen = await report(
            write(tmp_path, {"name": "d", "dns": dns}, listed, servers=servers)
        )
    assert code == 0
    names = [server["name"] for server in seen["servers"]]
    assert names == ["fixed", f"d-{HOST}-{found.address.rpartition(':')[2]}"]
    assert all(server["reachable"] for server in seen["servers"])
    assert seen["fleet"] == []


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        (None, 1, ("error", "discovery-failed")),
        ("[]", 0, ("warning", "discovery-empty")),
        ("- {grpc: 'a:1', metadata: {key: {env: NOT_SET}}}", 1, ("error", "discovery-unusable")),
    ],
)
async def test_what_is_wrong_with_a_source(
    tmp_path: Path, text: str | None, code: int, found: tuple[str, str]
) -> None:
    if text is not None:
        (tmp_path / "servers.yaml").write_text(text)
    path = write(tmp_path, {"name": "f", "file": {"path": "servers.yaml"}})
    exit_code, seen = await report(path)
    [finding] = seen["fleet"]
    assert (exit_code, (finding["severity"], finding["code"])) == (code, found)
    assert finding["fix"]


async def test_a_source_that_fails_in_part_is_told(tmp_path: Path) -> None:
    async with FakeDns() as nameserver:
        nameserver.has("one", "A")
        nameserver.broken = {"two"}
        dns = {"names": ["one", "two"], "nameservers": [nameserver.address]}
        code, seen = await report(write(tmp_path, {"name": "d", "dns": dns}))
    assert code == 1
    assert [finding["code"] for finding in seen["fleet"]] == ["discovery-failed", "discovery-empty"]


async def test_a_missing_extra_is_refused_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    kubernetes = {"service": "triton", "namespace": "ml"}
    path = write(tmp_path, {"name": "k", "kubernetes": kubernetes})
    assert (await check(path)).exit_code == 0
    with mock.patch.object(source, "find_spec", return_value=None):
        result = await check(path)
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"{path}:2: discovery[0].kubernetes: ")
    assert line.endswith("run pip install 'triton-gateway[kubernetes]'")
