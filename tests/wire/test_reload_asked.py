"""How a reload is asked for, what it refuses, and what it leaves to a restart."""

import asyncio
import contextlib
import json
import signal
import ssl
import time
from pathlib import Path
from unittest import mock

import pytest

from gateway.lifecycle import Phase
from tests import clients
from tests.certificates import Authority
from tests.fakes.triton import FakeTriton
from tests.gateways import GatewayProcess
from tests.operators import operate
from tests.reloading import Reloading, config_of, put, reloading
from tests.serving import fake_triton, serving, serving_config, until

# --- what is refused

GOOD = "servers: [{name: a, grpc: '127.0.0.1:1'}]\n"
BAD = {
    "a server twice": (
        "servers:\n- {name: a, grpc: 'x:1'}\n- {name: a, grpc: 'y:1'}\n",
        ":3: servers[1].name: 'a' is also the name of the server",
    ),
    "an unknown key": (GOOD + "loging: {}\n", ":2: loging: unknown key"),
    "an unknown key of a server": (
        "servers:\n- name: a\n  grpc: 'x:1'\n  wait: 5\n",
        ":4: servers[0].wait: unknown key",
    ),
    "a wrong type": (GOOD + "deadlines:\n  default_s: '5'\n", ":3: deadlines.default_s:"),
    "a number where text is due": (
        "servers:\n- {name: a, grpc: 'x:1', zone: 7}\n",
        ":2: servers[0].zone:",
    ),
    "an unknown pool": (
        GOOD + "models:\n  echo:\n    pool: gpu\n",
        ":4: models.echo.pool:",
    ),
    "a number out of range": (GOOD + "retries:\n  budget: -1\n", ":3: retries.budget:"),
    "two values that contradict": (
        GOOD + "deadlines: {default_s: 700}\n",
        ":2: deadlines.default_s:",
    ),
    "no server": ("servers: []\n", ":1: servers: the list is empty"),
    "not YAML": ("servers: [\n", ":2: "),
    "an empty file": ("", ":1: the file is empty"),
    "a secret that is not there": (
        GOOD + "ops:\n  key: {env: NOT_SET_ANYWHERE}\n",
        ":3: ops.key: environment variable 'NOT_SET_ANYWHERE' is not set",
    ),
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_bad_file_changes_nothing(fault: str, one: Reloading, fake: FakeTriton) -> None:
    core = one.gateway.cores.current
    loaded = await one.config()
    text, complaint = BAD[fault]
    reply = await one.reload(text)
    assert reply.status == 422
    assert reply.json["code"] == "refused"
    (problem,) = (p for p in reply.json["problems"] if complaint in p)
    assert problem.startswith(str(one.path))
    assert one.gateway.cores.current is core
    view = await one.config()
    assert view["last_error"].pop("at")
    assert view["last_error"] == {"by": "127.0.0.1", "problems": reply.json["problems"]}
    assert {**view, "last_error": None} == loaded
    assert (await one.metrics())["triton_gateway_config_last_reload_successful"] == 0
    (event,) = one.gateway.events("configuration refused")
    assert event["problems"] == reply.json["problems"]
    assert (await one.gateway.infer()).status == 200
    done = await operate("check", "--config", str(one.path))
    assert (done.code, done.err.splitlines()) == (2, reply.json["problems"])


async def test_a_good_file_after_a_bad_one_clears_the_error(
    one: Reloading, fake: FakeTriton
) -> None:
    await one.reload("servers: []\n")
    await one.reload(config_of({"a": fake}))
    assert (await one.config())["last_error"] is None
    metrics = await one.metrics()
    assert metrics["triton_gateway_config_last_reload_successful"] == 1
    hash_ = (await one.config())["hash"]
    assert metrics[f'triton_gateway_config_info{{hash="{hash_}"}}'] == 1
    loaded_s = metrics["triton_gateway_config_last_reload_success_timestamp_seconds"]
    assert abs(loaded_s - time.time()) < 60
    done = await operate("check", "--config", str(one.path))
    assert done.out == f"{one.path}: good, 1 server, hash {hash_}\n"


async def test_a_certificate_that_vanishes_while_it_is_read_is_refused(
    one: Reloading, fake: FakeTriton, tmp_path: Path
) -> None:
    with mock.patch("gateway.wiring.core.links_of", side_effect=FileNotFoundError("gone")):
        reply = await one.reload(config_of({"a": fake}))
    assert (reply.status, reply.json["problems"]) == (422, ["gone"])
    assert (await one.reload()).status == 200


async def test_a_fault_of_the_gateway_itself_changes_nothing_and_ends_no_watch(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    watch = {"reload": {"interval_s": 0.02}}
    path = tmp_path / "gateway.yaml"
    put(path, config_of({"a": fake}, **watch))
    async with serving_config(path) as gateway:
        with mock.patch("gateway.wiring.reloader.build_core", side_effect=KeyError("oh")):
            put(path, config_of({"b": other}, **watch))
            await until(lambda: bool(gateway.events("configuration refused")))
        (event,) = gateway.events("configuration refused")
        assert event["problems"] == ["internal error of the gateway: KeyError('oh')"]
        assert len(gateway.tracebacks) == 1
        assert (await gateway.infer()).status == 200
        put(path, config_of({"a": fake, "b": other}, **watch))
        await until(lambda: "b" in gateway.pool.loads)


async def test_a_fleet_that_serves_is_not_given_up_for_one_that_does_not(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    await other.kill()
    reply = await one.reload(config_of({"b": other}))
    assert reply.status == 422
    first, second = reply.json["problems"]
    assert first.startswith("none of its servers answers, and so far some do")
    assert second.startswith("b: the server could not be reached")
    assert list(one.gateway.pool.loads) == ["a"]
    assert (await one.gateway.infer()).status == 200
    await fake.kill()
    await until(lambda: not one.gateway.up())
    assert (await one.reload()).status == 200


async def test_a_gateway_that_was_not_started_from_a_file_says_so(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        for method, path in (("GET", "/config/plan"), ("POST", "/config/reload")):
            reply = await clients.ask(gateway.ops_port, clients.request(method, path))
            assert reply.status == 422
            assert reply.json["error"] == "this gateway was started without a file to read again"


# --- what waits for a restart


async def test_what_needs_a_restart_is_told_and_stays(
    one: Reloading, fake: FakeTriton, tmp_path: Path
) -> None:
    moved = config_of({"a": fake}, api={"port": 1, "server_id": "new"}, ops={"port": 2})
    moved["steering"] = {"state_file": str(tmp_path / "state")}
    reply = await one.reload(moved)
    assert reply.status == 200
    keys = ["api.port", "ops.port", "steering.state_file"]
    assert [found["key"] for found in reply.json["needs_restart"]] == keys
    assert [found["key"] for found in reply.json["settings"]] == ["api.server_id"]
    assert (await one.config())["needs_restart"] == keys
    about = await one.gateway.ask(clients.request("GET", "/v2"))
    assert about.json["name"] == "new"
    again = await one.reload()
    assert (again.json["settings"], again.json["changed"]) == ([], False)
    assert [found["key"] for found in again.json["needs_restart"]] == keys
    await one.reload(config_of({"a": fake}))
    assert (await one.config())["needs_restart"] == []


async def test_a_key_is_exchanged_at_once_and_never_taken_away(
    fake: FakeTriton, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("first")
    guarded = {"ops": {"key": {"file": str(key)}}}

    async def ops(path: str, given: str) -> int:
        headers = {"Authorization": f"Bearer {given}"}
        method = "POST" if path == "/config/reload" else "GET"
        request = clients.request(method, path, headers=headers)
        return (await clients.ask(running.gateway.ops_port, request)).status

    async with reloading(tmp_path, {"a": fake}, **guarded) as running:
        key.write_text("second")
        assert await ops("/config/reload", "second") == 401
        assert await ops("/config/reload", "first") == 200
        assert (await ops("/fleet", "first"), await ops("/fleet", "second")) == (401, 200)
        put(running.path, config_of({"a": fake}))
        assert await ops("/config/reload", "second") == 200
        assert (await ops("/fleet", "none"), await ops("/fleet", "second")) == (401, 200)
        request = clients.request("GET", "/fleet", headers={"Authorization": "Bearer second"})
        view = (await clients.ask(running.gateway.ops_port, request)).json
        assert view["config"]["needs_restart"] == ["ops.key"]


async def test_a_new_secret_reaches_the_server(fake: FakeTriton, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    config = config_of({"a": fake})
    config["servers"][0]["metadata"] = {"x-key": {"file": str(secret)}}
    put(tmp_path / "gateway.yaml", config)
    async with serving_config(tmp_path / "gateway.yaml") as gateway:
        running = Reloading(gateway, tmp_path / "gateway.yaml")
        await gateway.infer()
        assert fake.metadata[-1]["x-key"] == "old"
        secret.write_text("new-secret")
        reply = await running.reload()
        assert (reply.json["servers"]["reconnected"], reply.json["settings"]) == (["a"], [])
        await gateway.infer()
        assert fake.metadata[-1]["x-key"] == "new-secret"
        assert "new-secret" not in str(gateway.events())


async def test_a_new_certificate_is_shown_to_new_connections(
    fake: FakeTriton, tmp_path: Path
) -> None:
    names = {"cert_file": tmp_path / "cert.pem", "key_file": tmp_path / "key.pem"}
    tls = {"tls": {key: str(path) for key, path in names.items()}}

    def issue(authority: Authority) -> ssl.SSLContext:
        pair = authority.issue("server", server=True)
        names["cert_file"].write_bytes(pair.cert.read_bytes())
        names["key_file"].write_bytes(pair.key.read_bytes())
        return ssl.create_default_context(cafile=str(authority.ca))

    first = issue(Authority(tmp_path / "1"))
    async with reloading(tmp_path, {"a": fake}, api=tls) as running:
        port = running.gateway.port
        old = await clients.Connection.open(port, tls=first)
        second = issue(Authority(tmp_path / "2"))
        assert (await running.reload()).status == 200
        assert (await clients.ask(port, clients.infer(), tls=second)).status == 200
        assert (await old.ask(clients.infer())).status == 200
        old.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await clients.ask(port, clients.infer(), tls=first)
        names["key_file"].write_text("no key")
        reply = await running.reload()
        assert reply.status == 422
        assert "api.tls" in reply.json["problems"][0]
        assert (await clients.ask(port, clients.infer(), tls=second)).status == 200
        plain = await running.reload(config_of({"a": fake}))
        assert [found["key"] for found in plain.json["needs_restart"]] == ["api.tls"]
        names["key_file"].write_bytes(b"")
        assert (await clients.ask(port, clients.infer(), tls=second)).status == 200


# --- how it is asked for


async def test_a_file_that_is_replaced_is_noticed(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    watch = {"reload": {"interval_s": 0.02}}
    async with reloading(tmp_path, {"a": fake}, **watch) as running:
        put(running.path, config_of({"a": fake, "b": other}, **watch))
        await until(lambda: "b" in running.gateway.pool.loads)
        (event,) = running.gateway.events("configuration in force")
        assert event["by"] == "change of the files"
        put(running.path, "servers: []\n")
        await until(lambda: bool(running.gateway.events("configuration refused")))
        await asyncio.sleep(0.2)
        assert len(running.gateway.events("configuration refused")) == 1
        running.path.unlink()
        await until(lambda: len(running.gateway.events("configuration refused")) == 2)
        put(running.path, config_of({"b": other}, **watch))
        await until(lambda: "a" not in running.gateway.pool.loads)


async def test_a_folder_swapped_behind_a_link_is_noticed(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    """As Kubernetes replaces what it mounts: one link is moved, the files' names stay."""
    watch = {"reload": {"interval_s": 0.02}}
    folder = tmp_path / "config.d"
    for name, servers in (("1", {"a": fake}), ("2", {"b": other})):
        (folder / f"..{name}").mkdir(parents=True)
        put(folder / f"..{name}" / "gateway.yaml", config_of(servers, **watch))
    (folder / "..data").symlink_to("..1")
    (folder / "gateway.yaml").symlink_to("..data/gateway.yaml")
    async with serving_config(folder) as gateway:
        (folder / "new").symlink_to("..2")
        (folder / "new").rename(folder / "..data")
        await until(lambda: list(gateway.pool.loads) == ["b"])
        assert (await gateway.infer()).status == 200


async def test_the_watch_can_be_switched_off_and_on(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    quick = {"interval_s": 0.02, "watch": False}
    await one.reload(config_of({"a": fake}, reload=quick))
    put(one.path, config_of({"a": fake, "b": other}, reload=quick))
    await asyncio.sleep(0.2)
    assert list(one.gateway.pool.loads) == ["a"]
    plan = (await one.gateway.ops("/config/plan")).json
    assert plan["servers"]["added"] == ["b"]


async def test_a_plan_is_no_reload_and_does_not_keep_the_watch_from_one(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    put(one.path, config_of({"a": fake, "b": other}, reload={"interval_s": 0.02}))
    core = one.gateway.cores.current
    for _ in range(2):
        assert (await one.gateway.ops("/config/plan")).json["servers"]["added"] == ["b"]
    assert one.gateway.cores.current is core
    put(one.path, "servers: []\n")
    assert (await one.gateway.ops("/config/plan")).status == 422
    assert (await one.config())["last_error"] is None


async def test_two_reloads_at_once_come_one_after_the_other(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    put(one.path, config_of({"a": fake, "b": other}))
    replies = await asyncio.gather(*(one.reload() for _ in range(4)))
    assert [reply.status for reply in replies] == [200] * 4
    assert sorted(reply.json["changed"] for reply in replies) == [False, False, False, True]
    assert len(one.gateway.events("configuration in force")) == 4
    await until(lambda: not one.gateway.cores.draining)


async def test_nothing_is_taken_up_while_the_gateway_stops(
    one: Reloading, fake: FakeTriton
) -> None:
    one.gateway.gateway.readiness.phase = Phase.DRAINING
    reply = await one.reload()
    assert (reply.status, reply.json["error"]) == (422, "the gateway is shutting down")


async def test_a_stop_in_the_middle_of_a_reload_leaves_nothing_behind(
    fake: FakeTriton, tmp_path: Path
) -> None:
    async with fake_triton() as mute, reloading(tmp_path, {"a": fake}) as running:
        mute.silent |= {"ServerMetadata", "ModelStatistics"}
        put(running.path, config_of({"a": fake, "b": mute}))
        reload = asyncio.ensure_future(running.reload())
        await mute.until(lambda: bool(mute.calls))
        assert list(running.gateway.pool.loads) == ["a"]
    with contextlib.suppress(Exception):
        await reload


async def test_the_command(one: Reloading, fake: FakeTriton, other: FakeTriton) -> None:
    port = one.gateway.ops_port
    before = (await one.config())["hash"]
    put(one.path, config_of({"b": other}, api={"port": 1}, balancing={"policy": "peak_ewma"}))
    await until(lambda: bool(one.gateway.watcher.snapshot.models))
    planned = await operate("reload", "--plan", ops_port=port)
    assert planned.code == 0
    assert planned.out.splitlines() == [
        f"configuration {before} -> {planned.out.split()[3]}",
        "  + server b",
        "  - server a",
        "  ~ balancing.policy: least_request -> peak_ewma",
        "NEEDS A RESTART, and stays as it is until then",
        "  ~ api.port: 0 -> 1",
        "CONSEQUENCES",
        "  1 model is left without a server: echo 1 - refused with 503 from then on",
    ]
    assert (await one.config())["hash"] == before
    done = await operate("reload", ops_port=port)
    after = (await one.config())["hash"]
    assert (done.code, done.out) == (0, f"{planned.out}in force: {after}\n")
    again = await operate("reload", "--json", ops_port=port)
    assert json.loads(again.out)["changed"] is False
    put(one.path, "servers: []\nloging: {}\n")
    refused = await operate("reload", ops_port=port)
    assert (refused.code, refused.out) == (2, "")
    problem, second, last = refused.err.splitlines()
    assert problem.startswith(f"{one.path}:1: servers: the list is empty")
    assert second.startswith(f"{one.path}:2: loging: unknown key")
    assert last == "refused: the configuration in force stays"
    shown = (await operate("fleet", ops_port=port)).out
    assert f"Configuration {after}, loaded 20" in shown
    assert "waiting for a restart: api.port" in shown
    assert "REFUSED at 20" in shown


async def test_sighup(fake: FakeTriton, other: FakeTriton, tmp_path: Path) -> None:
    gateway = GatewayProcess(config_of({"a": fake}), tmp_path)
    await asyncio.to_thread(gateway.start)
    try:
        put(gateway.config_path, config_of({"a": fake, "b": other}))
        gateway.signal(signal.SIGHUP)
        await until(lambda: "configuration in force" in gateway.log_path.read_text())
        (event,) = (e for e in gateway.events() if e["event"] == "configuration in force")
        assert (event["by"], event["servers"]["added"]) == ("SIGHUP", ["b"])
    finally:
        assert await asyncio.to_thread(gateway.stop) == 0
