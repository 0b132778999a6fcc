"""A gateway whose servers come and go, on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import clients
from tests.fakes.dns import FakeDns
from tests.fakes.kubernetes import FakeKubernetes, endpoint, endpoint_slice
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, environment, fake_triton, serving_config, until


@pytest.fixture
async def two() -> AsyncIterator[tuple[FakeTriton, FakeTriton]]:
    async with fake_triton(server_id="a") as a, fake_triton(server_id="b") as b:
        yield a, b


class ServerFile:
    """A file of servers, and the source that reads it."""

    def __init__(self, folder: Path, **source: Any) -> None:
        self.path = folder / "servers.yaml"
        self.config = {
            **configuration({}),
            "discovery": [
                {"name": "f", "file": {"path": str(self.path), "interval_s": 0.01}, **source}
            ],
            "fleet": {"statistics_interval_s": 0.1},
        }

    def write(self, **servers: FakeTriton | str | dict[str, Any]) -> None:
        rows = []
        for name, server in servers.items():
            said = server if isinstance(server, dict) else {}
            address = server.address if isinstance(server, FakeTriton) else server
            rows.append({"name": name, **(said or {"grpc": address})})
        other = self.path.with_suffix(".new")
        other.write_text(yaml.safe_dump(rows))
        other.replace(self.path)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Serving]:
        async with serving_config(self.config) as gateway:
            yield gateway
            assert gateway.tracebacks == []


@pytest.fixture
def file(tmp_path: Path) -> ServerFile:
    return ServerFile(tmp_path, removal_grace_s=0, max_removed_share=1.0)


def names(gateway: Serving) -> set[str]:
    return set(gateway.watcher.snapshot.servers)


async def view(gateway: Serving) -> Any:
    return (await gateway.ops("/fleet")).json


async def codes(gateway: Serving) -> set[str]:
    return {finding["code"] for finding in (await view(gateway))["findings"]}


async def test_a_gateway_may_begin_without_servers_and_find_one_later(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    file.write()
    async with file.serving() as gateway:
        refused = await gateway.infer()
        assert refused.status == 503
        assert "retry-after" in {name.lower() for name in refused.headers}
        assert await codes(gateway) == {"discovery-empty"}
        file.write(a=two[0])
        await until(lambda: gateway.up() if names(gateway) else False)
        assert (await gateway.infer()).status == 200
        assert await codes(gateway) == set()


async def test_the_gateway_is_ready_when_the_first_answer_and_its_servers_were_looked_at(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    file.write(a=two[0], b=two[1])
    async with file.serving() as gateway:
        assert gateway.up("a")
        assert gateway.up("b")


async def test_where_each_server_comes_from_is_shown_and_counted(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.config["servers"] = [{"name": "fixed", "grpc": a.address}]
    file.write(b=b)
    async with file.serving() as gateway:
        seen = await view(gateway)
        assert {row["name"]: row["source"] for row in seen["servers"]} == {
            "fixed": "configuration",
            "b": "f",
        }
        [source] = seen["sources"]
        assert (source["name"], source["up"], source["servers"]) == ("f", True, 1)
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'triton_gateway_discovery_up{source="f"} 1.0' in page
        assert 'triton_gateway_discovery_last_success_timestamp_seconds{source="f"}' in page
        file.path.write_text("- [")
        await until(lambda: "discovery-failed" in str(gateway.events("finding")))
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'triton_gateway_discovery_up{source="f"} 0.0' in page
        assert names(gateway) == {"fixed", "b"}
        assert await codes(gateway) == {"discovery-failed"}


async def test_a_removed_server_gets_nothing_new_and_ends_what_it_has(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.write(a=a, b=b)
    b.models["only-b"] = b.models["echo"]
    async with file.serving() as gateway:
        b.models["echo"].hang()
        waiting = [asyncio.ensure_future(gateway.infer()) for _ in range(20)]
        await until(lambda: a.infer_started + b.infer_started == 20)
        calls = b.infer_started
        assert calls
        file.write(a=a)
        await until(lambda: gateway.watcher.snapshot.servers["b"].leaving)
        for _ in range(20):
            assert (await gateway.infer()).status == 200
        assert b.infer_started == calls
        assert names(gateway) == {"a", "b"}
        assert (await gateway.fleet("b"))["leaving"]
        b.models["echo"].release()
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
        await until(lambda: names(gateway) == {"a"})
        probes = b.calls["ModelStatistics"]
        await until(lambda: b.proxy.open_connections == 0)
        await asyncio.sleep(0.3)  # three intervals
        assert b.calls["ModelStatistics"] == probes
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'server="a"' in page
        assert 'server="b"' not in page


async def test_a_removed_server_that_never_answers_is_not_waited_for_for_ever(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    """It is an old one, whose calls run on detached."""
    a, b = two
    b.version = "2.51.0"
    file.config |= {
        "deadlines": {"default_s": 0.2, "max_s": 0.2},
        "upstream": {"detached_max_s": 0.3},
    }
    file.write(b=b)
    async with file.serving() as gateway:
        b.models["echo"].hang()
        assert (await gateway.infer()).status == 504
        assert gateway.held("b") == (1, 1, 1)
        file.write(a=a)
        await until(lambda: names(gateway) == {"a"})
        b.models["echo"].release()


async def test_a_server_that_is_wanted_again_while_it_leaves_just_stays(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.write(a=a, b=b)
    async with file.serving() as gateway:
        b.models["echo"].hang()
        waiting = [asyncio.ensure_future(gateway.infer()) for _ in range(20)]
        await until(lambda: gateway.held("b")[0] > 0)
        upstream = gateway.watcher._watched["b"].upstream
        file.write(a=a)
        await until(lambda: gateway.watcher.snapshot.servers["b"].leaving)
        file.write(a=a, b=b)
        await until(lambda: not gateway.watcher.snapshot.servers["b"].leaving)
        b.models["echo"].release()
        await asyncio.gather(*waiting)
        await asyncio.sleep(0.3)
        assert names(gateway) == {"a", "b"}
        assert gateway.watcher._watched["b"].upstream is upstream


async def test_a_new_address_under_an_old_name_is_another_server(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    """What runs on the old one ends well, and does not count for the new one."""
    a, b = two
    file.write(a=a)
    async with file.serving() as gateway:
        a.models["echo"].hang()
        waiting = asyncio.ensure_future(gateway.infer())
        await until(lambda: gateway.held("a")[0] == 1)
        file.write(a=b)
        await until(lambda: gateway.watcher.snapshot.servers["a"].server_id == "b")
        assert gateway.held("a") == (0, 0, 0)
        assert (await gateway.infer()).status == 200
        assert b.infer_started == 1
        a.models["echo"].release()
        assert (await waiting).status == 200
        await until(lambda: a.proxy.open_connections == 0, timeout_s=15)


async def test_another_capacity_changes_the_share_and_nothing_else(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, _ = two
    file.write(a=a)
    async with file.serving() as gateway:
        peers = len(a.peers)
        file.write(a={"grpc": a.address, "capacity": 4.0, "zone": "z"})
        await until(lambda: gateway.pool.loads["a"].server.capacity == 4.0)
        assert (await gateway.infer()).status == 200
        assert len(a.peers) == peers
        assert (await gateway.fleet())["zone"] == "z"


async def test_what_cannot_be_connected_to_as_described_is_left_out_and_told(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    key = {"metadata": {"key": {"env": "KEY_OF_B"}}}
    file.write(a=a, b={"grpc": b.address, **key})
    async with file.serving() as gateway:
        assert names(gateway) == {"a"}
        assert await codes(gateway) == {"discovery-unusable"}
        with environment(KEY_OF_B="secret"):
            file.write(a=a, b={"grpc": b.address, **key, "capacity": 2.0})
            await until(lambda: names(gateway) == {"a", "b"} and gateway.up("b"))


async def test_discovered_servers_are_steered_by_name(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.write(a=a, b=b)
    async with file.serving() as gateway:
        steered = await clients.ask(gateway.ops_port, clients.request("POST", "/servers/b/cordon"))
        assert steered.status == 200
        for _ in range(10):
            assert (await gateway.infer()).status == 200
        assert b.infer_started == 0
        assert (await gateway.ops("/servers/b")).json["cordoned"]


async def loaded(gateway: Serving, path: str) -> dict[str, Any]:
    """Give a command to load a model, and return it when it has ended."""
    begun = await clients.ask(gateway.ops_port, clients.request("POST", path))
    assert begun.status == 200, begun.body
    async with asyncio.timeout(10):
        while (found := (await view(gateway))["model_control"]["operations"][-1])["state"] == (
            "running"
        ):
            await asyncio.sleep(0.02)
    ended: dict[str, Any] = found
    return ended


async def test_models_are_loaded_on_a_discovered_server_and_again_when_it_has_come_back(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.config |= {
        "models": {"echo": {"placement": ["b*"]}},
        "model_control": {"replay": True},
    }
    file.write(a=a)
    async with file.serving() as gateway:
        b.models["echo"].states = {"1": "UNAVAILABLE"}
        file.write(a=a, b=b)
        await until(lambda: "b" in names(gateway) and gateway.up("b"))
        assert (await loaded(gateway, "/models/echo/load"))["state"] == "done"
        assert b.calls["RepositoryModelLoad"] == 1
        assert a.calls["RepositoryModelLoad"] == 0
        route = gateway.watcher.snapshot.resolve("echo", None, 0.0)
        assert route.servers == ("a", "b"), "at once"
        file.write(a=a)
        await until(lambda: names(gateway) == {"a"})
        b.models["echo"].states = {"1": "UNAVAILABLE"}
        file.write(a=a, b=b)
        await b.until(lambda: b.calls["RepositoryModelLoad"] == 2)
        await until(
            lambda: gateway.watcher.snapshot.resolve("echo", None, 0.0).servers == ("a", "b")
        )


async def test_a_load_on_a_server_that_is_removed_ends(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.write(a=a, b=b)
    async with file.serving() as gateway:
        b.silent.add("RepositoryModelLoad")
        command = asyncio.ensure_future(loaded(gateway, "/models/echo/load?server=b"))
        await b.until(lambda: b.calls["RepositoryModelLoad"] == 1)
        file.write(a=a)
        assert [step["state"] for step in (await command)["servers"]] == ["failed"]
        assert names(gateway) == {"a"}


async def test_labels_do_not_pile_up_when_servers_come_and_go(
    file: ServerFile, two: tuple[FakeTriton, FakeTriton]
) -> None:
    a, b = two
    file.write(a=a)
    async with file.serving() as gateway:
        for turn in range(5):
            file.write(a=a, **{f"b{turn}": b})
            await until(lambda turn=turn: f"b{turn}" in names(gateway) and gateway.up(f"b{turn}"))
            for _ in range(10):
                await gateway.infer()
            file.write(a=a)
            await until(lambda: names(gateway) == {"a"})
        page = (await gateway.ops("/metrics")).body.decode()
        assert 'server="a"' in page
        assert 'server="b' not in page


async def test_addresses_from_the_dns_become_servers(two: tuple[FakeTriton, FakeTriton]) -> None:
    a, b = two
    async with FakeDns() as nameserver:
        nameserver.ttl_s = 0
        port = int(a.address.rpartition(":")[2])
        nameserver.has("triton.example", "SRV", f"0 0 {port} host.")
        nameserver.has("host", "A", "127.0.0.1")
        dns = {
            "names": ["triton.example"],
            "record": "srv",
            "min_interval_s": 0.02,
            "nameservers": [nameserver.address],
        }
        config = {**configuration({}), "discovery": [{"name": "d", "dns": dns}]}
        async with serving_config(config) as gateway:
            assert names(gateway) == {f"d-127.0.0.1-{port}"}
            assert (await gateway.infer()).status == 200
            nameserver.has("triton.example", "SRV")  # flapping
            await until(lambda: any(gateway.events("finding")))
            assert (await gateway.infer()).status == 200
            seen = await view(gateway)
            assert [f["code"] for f in seen["findings"]] == ["discovery-distrusted"]
            assert seen["sources"][0]["kept"] == [f"d-127.0.0.1-{port}"]
            other = int(b.address.rpartition(":")[2])
            nameserver.has("triton.example", "SRV", f"0 0 {port} host.", f"0 0 {other} host.")
            await until(lambda: len(names(gateway)) == 2)
            await until(lambda: gateway.up(f"d-127.0.0.1-{other}"))
            assert (await view(gateway))["findings"] == []
            assert gateway.tracebacks == []


async def test_endpoints_of_a_service_become_servers_and_drain(
    two: tuple[FakeTriton, FakeTriton], tmp_path: Path
) -> None:
    a, b = two
    ports = [int(fake.address.rpartition(":")[2]) for fake in two]
    async with FakeKubernetes() as cluster:
        slices = [
            endpoint_slice(f"s{port}", endpoint("127.0.0.1"), ports={"grpc": port})
            for port in ports
        ]
        cluster.put(slices[0])
        kubernetes = {
            "service": "triton",
            "namespace": "ml",
            "port": "grpc",
            "kubeconfig": str(cluster.kubeconfig(tmp_path)),
        }
        config = {**configuration({}), "discovery": [{"name": "k", "kubernetes": kubernetes}]}
        async with serving_config(config) as gateway:
            assert names(gateway) == {f"k-127.0.0.1-{ports[0]}"}
            assert (await gateway.infer()).status == 200
            await until(lambda: cluster.watched == 1)
            leaving = endpoint("127.0.0.1", ready=False, serving=True, terminating=True)
            cluster.put(endpoint_slice(f"s{ports[0]}", leaving, ports={"grpc": ports[0]}))
            await until(lambda: names(gateway) == set())
            cluster.put(slices[1])
            await until(lambda: names(gateway) == {f"k-127.0.0.1-{ports[1]}"})
            await until(lambda: gateway.up(f"k-127.0.0.1-{ports[1]}"))
            assert (await gateway.infer()).status == 200
            assert b.infer_started == 1
            assert a.infer_started == 1
