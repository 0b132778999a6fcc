"""`triton-gateway init` writes a configuration that loads, from any port of a server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from config.loader import load_text
from config.models import Config
from gateway.cli import app
from tests.fakes import ports
from tests.fakes.model import FakeModel, model_config
from tests.fakes.proxy import HOST
from tests.fakes.triton import FakeTriton
from tests.serving import fake_triton

KEY = "triton-grpc-protocol-admin"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def config(self) -> Config:
        assert self.code == 0, self.err
        assert max(map(len, self.out.splitlines())) <= 80
        return load_text(self.out, "written.yaml")


async def init(*arguments: str) -> Result:
    """Run the command in a process of its own: it needs an event loop of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "init", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


@dataclass(frozen=True)
class Whole:
    """A scripted Triton with all three ports, next to each other."""

    fake: FakeTriton
    http: str
    metrics: str


@pytest.fixture
async def whole() -> AsyncIterator[Whole]:
    first = ports.free_ports(3)
    fake = fake_triton("one", server_id="Rack 1")
    fake.proxy.port = first + 1
    async with (
        fake,
        ports.listening(ports.triton_http("Rack 1"), first) as http,
        ports.listening(ports.triton_metrics(), first + 2) as metrics,
    ):
        yield Whole(fake, http, metrics)


@pytest.mark.parametrize("given", ["grpc", "http", "metrics"])
async def test_any_port_leads_to_all_three(whole: Whole, given: str) -> None:
    addresses = {"grpc": whole.fake.address, "http": whole.http, "metrics": whole.metrics}
    [server] = (await init(addresses[given])).config.servers
    assert (server.grpc, server.http, server.metrics) == tuple(addresses.values())
    assert (server.name, server.expect) == ("rack-1", "Rack 1")


async def test_scheme_is_cut_off_with_a_note_and_one_server_is_listed_once(whole: Whole) -> None:
    result = await init(f"http://{whole.http}/v2", whole.fake.address)
    assert [server.grpc for server in result.config.servers] == [whole.fake.address]
    assert "without the scheme" in result.err
    assert "belongs to" in result.err


async def test_neighbour_of_a_port_where_nothing_listens_is_suggested_but_not_taken() -> None:
    first = ports.free_ports(2)
    fake = fake_triton()
    fake.proxy.port = first + 1
    async with fake:
        result = await init(f"{HOST}:{first}")
    assert (result.code, result.out) == (1, "")
    assert f"write `grpc: {fake.address}`" in result.err


async def test_names_are_made_legal_and_unique_and_the_default_id_is_not_expected() -> None:
    async with (
        fake_triton(server_id="triton") as one,
        fake_triton(server_id="same") as two,
        fake_triton(server_id="same") as three,
        fake_triton(server_id="a: b\n# - c") as odd,
    ):
        addresses = [server.address for server in (one, two, three, odd)]
        servers = (await init(*addresses)).config.servers
    port = one.proxy.port
    assert [server.name for server in servers] == [f"{HOST}-{port}", "same", "same-2", "a-b-c"]
    assert [server.expect for server in servers] == [None, "same", "same", "a: b\n# - c"]


async def test_restricted_server_gets_a_reference_to_its_key() -> None:
    async with fake_triton() as fake:
        text = f"This protocol is restricted, expecting header '{KEY}'"
        fake.errors["ServerMetadata"] = (grpc.StatusCode.UNAVAILABLE, text)
        [server] = (await init(fake.address)).config.servers
    assert server.expect is None
    assert {name: key.env for name, key in server.metadata.items()} == {KEY: "TRITON_ADMIN"}


async def test_what_is_wrong_becomes_a_comment_that_cannot_break_out() -> None:
    broken = FakeModel(model_config("bad"), {"1": "UNAVAILABLE"}, {"1": "no\rservers: []"})
    async with FakeTriton(broken) as fake:
        result = await init(fake.address, f"{HOST}:1")
    assert len(result.config.servers) == 1
    assert "# warning: model 'bad' version 1 could not be loaded: no servers: []" in result.out
    assert f"# {HOST}:1 was left out:" in result.out


async def test_nothing_reached_is_exit_1_and_writes_no_configuration(tmp_path: Path) -> None:
    target = tmp_path / "gateway.yaml"
    result = await init(f"{HOST}:1", "--output", str(target))
    assert (result.code, result.out) == (1, "")
    assert "connection is refused" in result.err
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "HOST:PORT"),
        (("10.0.0.5",), "write host:port"),
        (("10.0.0.5:8001", "--from-prometheus", "http://x"), "HOST:PORT"),
        (("--from-prometheus", "x:9090"), "http://prometheus:9090"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


async def test_file_is_never_overwritten_unasked(whole: Whole, tmp_path: Path) -> None:
    target = tmp_path / "gateway.yaml"
    target.write_text("mine")
    refused = await init(whole.fake.address, "--output", str(target))
    assert (refused.code, target.read_text()) == (2, "mine")
    forced = await init(whole.fake.address, "--output", str(target), "--force")
    assert (forced.code, forced.out) == (0, "")
    assert load_text(target.read_text(), "gateway.yaml").servers[0].name == "rack-1"


def prometheus(*targets: tuple[str, dict[str, str]]) -> ports.Answer:
    active = [{"scrapeUrl": url, "labels": labels, "health": "up"} for url, labels in targets]
    return ports.web_page(json.dumps({"status": "success", "data": {"activeTargets": active}}))


async def test_tritons_that_prometheus_scrapes_are_taken(whole: Whole) -> None:
    async with (
        fake_triton(server_id="named") as named,
        ports.listening(ports.web_page("# HELP go_info Go\n")) as other,
        ports.listening(
            prometheus(
                (f"http://{whole.metrics}/metrics", {"job": "gpu"}),
                (f"http://{named.address}/metrics", {"job": "my-triton"}),
                (f"http://{other}/metrics", {"job": "node"}),
            )
        ) as address,
    ):
        servers = (await init("--from-prometheus", f"http://{address}")).config.servers
    assert [server.name for server in servers] == ["rack-1", "named"]
    assert servers[0].metrics == whole.metrics


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<html>", "cannot be read"),
        ("{}", "not the list of targets"),
        (json.dumps({"data": {"activeTargets": []}}), "none of the 0 targets"),
    ],
)
async def test_prometheus_without_tritons_is_exit_1(page: str, text: str) -> None:
    async with ports.listening(ports.web_page(page)) as address:
        result = await init("--from-prometheus", f"http://{address}")
    assert (result.code, result.out) == (1, "")
    assert text in result.err
