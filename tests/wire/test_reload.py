"""A changed configuration comes into force as a whole or not at all, and no request notices."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.clients import Connection, infer, request, tensor
from tests.fakes.triton import FakeTriton
from tests.reloading import Reloading, config_of, put, reloading
from tests.serving import fake_triton, serving_config, until

AT_ONCE = {"slow_start_s": 0}


async def slow_request(running: Reloading, fake: FakeTriton) -> Connection:
    """Begin a request that the server holds back until its model is released."""
    fake.models["echo"].hang()
    started = fake.infer_started
    connection = await Connection.open(running.gateway.port)
    connection.send(infer())
    await fake.until(lambda: fake.infer_started == started + 1)
    return connection


# --- what changes


async def test_an_added_server_takes_traffic(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    reply = await one.reload(config_of({"a": fake, "b": other}, balancing=AT_ONCE))
    assert reply.status == 200
    assert reply.json["servers"] == {"added": ["b"], "removed": [], "reconnected": []}
    assert {(await one.gateway.infer()).status for _ in range(20)} == {200}
    assert fake.infer_finished > 0
    assert other.infer_finished > 0


async def test_an_added_server_starts_slowly(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    await one.gateway.infer()
    await one.reload(config_of({"a": fake, "b": other}, balancing={"slow_start_s": 1000}))
    await asyncio.gather(*(one.gateway.infer() for _ in range(60)))
    assert other.infer_finished < 20


async def test_sequences_go_on_but_for_those_of_a_removed_server(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    async def step(own_id: int, *, start: bool = False) -> tuple[int, str]:
        parameters = {"sequence_id": own_id, "sequence_start": start}
        body = json.dumps(json.loads(tensor(1.5)) | {"parameters": parameters}).encode()
        before = fake.infer_finished
        status = (await running.gateway.ask(infer(body=body))).status
        return status, "a" if fake.infer_finished > before else "b"

    async with reloading(tmp_path, {"a": fake, "b": other}) as running:
        where = {own_id: await step(own_id, start=True) for own_id in range(1, 9)}
        assert set(where.values()) == {(200, "a"), (200, "b")}
        await running.reload(config_of({"a": fake, "b": other}, retries={"max_attempts": 1}))
        assert {own_id: await step(own_id) for own_id in where} == where
        await running.reload(config_of({"b": other}, retries={"max_attempts": 1}))
        for own_id, (_, server) in where.items():
            assert (await step(own_id))[0] == (409 if server == "a" else 200)


async def test_a_request_on_a_removed_server_ends_there_normally(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    async with reloading(tmp_path, {"a": fake}) as running:
        before = running.gateway.cores.current
        connection = await slow_request(running, fake)
        reply = await running.reload(config_of({"b": other}))
        assert reply.json["servers"] == {"added": ["b"], "removed": ["a"], "reconnected": []}
        assert "1 call in flight on a will end there as usual" in reply.json["consequences"]
        assert (await running.gateway.infer()).status == 200
        assert other.infer_finished == 1
        (old,) = (await running.config())["draining"]
        assert old == {"hash": before.digest, "requests": 1, "calls": 1}
        assert running.gateway.gateway.busy() == 1
        fake.models["echo"].release()
        assert (await connection.reply()).status == 200
        await until(lambda: not running.gateway.cores.draining)
        assert (await running.config())["draining"] == []
        await until(lambda: {c["state"] for c in before.watcher.states("a")} == {"shutdown"})
        assert fake.infer_cancelled == 0
        connection.close()


async def test_connections_stay_until_the_last_core_that_uses_them_is_idle(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    """A request outlives two reloads; the second one removes the server it is on."""
    async with reloading(tmp_path, {"a": fake}) as running:
        connection = await slow_request(running, fake)
        both = config_of({"a": fake, "b": other}, balancing=AT_ONCE)
        await running.reload(both)
        assert len(running.gateway.cores.draining) == 1
        await running.reload(config_of({"b": other}))
        await until(lambda: len(running.gateway.cores.draining) == 1)
        (oldest,) = running.gateway.cores.draining
        assert list(oldest.upstreams) == ["a"]
        fake.models["echo"].release()
        assert (await connection.reply()).status == 200
        await until(lambda: not running.gateway.cores.draining)
        await until(lambda: {c["state"] for c in oldest.watcher.states("a")} == {"shutdown"})
        assert (await running.gateway.infer()).status == 200
        connection.close()


async def test_new_weights_of_an_alias_replace_the_old_ones_at_once(tmp_path: Path) -> None:
    def split(one: int, two: int) -> dict[str, Any]:
        weights = [(model, weight) for model, weight in (("m", one), ("n", two)) if weight]
        arms = [{"model": model, "weight": weight} for model, weight in weights]
        return config_of({"a": fake}, aliases={"route": {"arms": arms}})

    async with fake_triton("m", "n") as fake:
        put(tmp_path / "gateway.yaml", split(50, 50))
        async with serving_config(tmp_path / "gateway.yaml") as gateway:
            running = Reloading(gateway, tmp_path / "gateway.yaml")
            fake.models["m"].hang()
            waiting = [await Connection.open(gateway.port) for _ in range(16)]
            for connection in waiting:
                connection.send(infer("route"))
            await fake.until(lambda: fake.infer_started == 16)
            for weights, answering in (((0, 100), "n"), ((100, 0), "m"), ((0, 100), "n")):
                assert (await running.reload(split(*weights))).status == 200
                if answering == "m":
                    fake.models["m"].release()
                replies = [await gateway.infer("route") for _ in range(20)]
                assert {reply.json["model_name"] for reply in replies} == {answering}
            replies = [await connection.reply() for connection in waiting]
            assert {reply.status for reply in replies} == {200}
            # All were decided by the first weights, whatever came later.
            assert {reply.json["model_name"] for reply in replies} == {"m", "n"}
            for connection in waiting:
                connection.close()


async def test_a_request_whose_body_is_still_coming_ends_on_the_core_it_began_with(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    async with reloading(tmp_path, {"a": fake}) as running:
        data = infer()
        connection = await Connection.open(running.gateway.port)
        connection.send(data[:-5])
        await until(lambda: running.gateway.api.in_flight == 1)
        await running.reload(config_of({"b": other}))
        connection.send(data[-5:])
        assert (await connection.reply()).status == 200
        assert (fake.infer_finished, other.infer_finished) == (1, 0)
        assert (await connection.ask(infer())).status == 200
        assert (fake.infer_finished, other.infer_finished) == (1, 1)
        connection.close()


async def test_a_kept_server_is_not_connected_again(
    undiagnosed: None, one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    await one.gateway.infer()
    upstream = one.gateway.cores.current.upstreams["a"]
    peers = set(fake.peers)
    index, described = fake.calls["RepositoryIndex"], fake.calls["ModelConfig"]
    changed = config_of({"a": fake, "b": other}, balancing=AT_ONCE)
    changed["servers"][0]["capacity"] = 3.0
    await one.reload(changed)
    assert one.gateway.cores.current.upstreams["a"] is upstream
    assert {(await one.gateway.infer()).status for _ in range(20)} == {200}
    assert fake.peers == peers
    assert (fake.calls["RepositoryIndex"], fake.calls["ModelConfig"]) == (index, described)
    assert len(one.gateway.events("server up")) == 2  # a at the start, b now
    assert one.gateway.pool.loads["a"].server.capacity == 3.0


async def test_a_kept_server_goes_on_being_probed(one: Reloading, fake: FakeTriton) -> None:
    fast = config_of({"a": fake}, fleet={"statistics_interval_s": 0.05})
    for _ in range(2):
        await one.reload(fast)
    await until(lambda: not one.gateway.cores.draining)
    await fake.kill()
    await until(lambda: not one.gateway.up())
    await fake.start()
    await until(one.gateway.up)
    assert (await one.gateway.infer()).status == 200


async def test_a_server_with_another_address_is_connected_anew(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    reply = await one.reload(config_of({"a": other}))
    assert reply.json["servers"]["reconnected"] == ["a"]
    assert (await one.gateway.infer()).status == 200
    assert (fake.infer_finished, other.infer_finished) == (0, 1)


async def test_a_changed_policy_takes_effect(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    servers = {"a": fake, "b": other}
    async with reloading(tmp_path, servers, balancing=AT_ONCE) as running:
        pools = config_of(servers, models={"echo": {"pool": "x"}}, balancing=AT_ONCE)
        pools["servers"][1]["pool"] = "x"
        reply = await running.reload(pools)
        assert {found["key"] for found in reply.json["settings"]} == {
            "models.echo.pool",
            "servers.b.pool",
        }
        assert reply.json["consequences"] == ["1 model is left with fewer servers: echo 1 (2 -> 1)"]
        assert {(await running.gateway.infer()).status for _ in range(10)} == {200}
        assert (fake.infer_finished, other.infer_finished) == (0, 10)
        deadline = config_of(servers, models={"echo": {"deadline_s": 0.05}}, balancing=AT_ONCE)
        await running.reload(deadline)
        for server in servers.values():
            server.models["echo"].delay_s = 1.0
        assert (await running.gateway.infer()).status == 504


async def test_what_is_logged_changes_too(one: Reloading, fake: FakeTriton) -> None:
    await one.gateway.infer()
    await one.reload(config_of({"a": fake}, logging={"requests": "none", "level": "warning"}))
    await one.gateway.infer()
    assert len(one.gateway.events("request")) == 1
    assert one.gateway.events("configuration in force") == []
    await one.reload(config_of({"a": fake}))
    (event,) = one.gateway.events("configuration in force")
    assert event["hash"] == (await one.config())["hash"]
    assert "127.0.0.1" in event["by"]


# --- what goes on as it was


async def test_breakers_steering_and_past_requests_outlast_a_reload(
    fake: FakeTriton, other: FakeTriton, tmp_path: Path
) -> None:
    servers = {"a": fake, "b": other}
    async with reloading(tmp_path, servers, balancing=AT_ONCE) as running:
        await running.gateway.infer(X_Request_Id="r-1")
        running.gateway.pool.reset_breakers(None, None, None)
        await running.post("/servers/b/cordon")
        breaker = running.gateway.pool.transport.breaker("a")
        breaker.open(1e9)
        await running.reload(config_of(servers, breaker={"open_max_s": 60}))
        view = (await running.gateway.ops("/fleet")).json
        assert view["breakers"] == [{"of": "server", "server": "a", "circuit": "open"}]
        assert view["steering"]["cordoned"] == ["b"]
        assert running.gateway.pool.transport.breaker("a").settings.open_max_s == 60
        past = (await running.gateway.ops("/explain?request_id=r-1")).json
        assert past["outcome"] == "ok"


async def test_calls_in_flight_count_on_a_kept_server(one: Reloading, fake: FakeTriton) -> None:
    connection = await slow_request(one, fake)
    await one.reload(config_of({"a": fake}, balancing=AT_ONCE))
    assert one.gateway.held() == (1, 1, 0)
    assert one.gateway.gateway.busy() == 1
    fake.models["echo"].release()
    assert (await connection.reply()).status == 200
    assert one.gateway.held() == (0, 0, 0)
    connection.close()


async def test_a_detached_call_saturates_its_server_over_a_reload(tmp_path: Path) -> None:
    limited = {"upstream": {"max_detached_calls": 1}}
    async with (
        fake_triton(version="2.51.0") as old,
        reloading(tmp_path, {"a": old}, **limited) as running,
    ):
        connection = await slow_request(running, old)
        await running.reload(config_of({"a": old}, **limited, balancing=AT_ONCE))
        connection.reset()
        await until(lambda: running.gateway.held() == (1, 1, 1))
        assert (await running.gateway.infer()).status == 503
        old.models["echo"].release()
        await until(lambda: not running.gateway.cores.draining)
        assert (await running.gateway.infer()).status == 200
        assert old.infer_cancelled == 0


async def test_a_model_that_was_just_ready_is_still_expected(
    one: Reloading, fake: FakeTriton
) -> None:
    async with fake_triton("another") as without:
        await one.reload(config_of({"b": without}))
        assert (await one.gateway.infer()).status == 503


async def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(
    one: Reloading, fake: FakeTriton
) -> None:
    async with fake_triton() as mute:
        mute.silent |= {"ServerMetadata", "ModelStatistics"}
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        bounded = config_of({"a": fake, "b": mute}, reload={"watch": False, "first_probe_s": 0.2})
        assert (await one.reload(bounded)).status == 200
        assert loop.time() - began_s < 1.5
        assert not one.gateway.up("b")
        assert (await one.gateway.infer()).status == 200


# --- models that are loaded meanwhile


async def operation(running: Reloading) -> dict[str, Any]:
    """Return the last command to load a model."""
    view = (await running.gateway.ops("/fleet")).json["model_control"]
    found: dict[str, Any] = view["operations"][-1]
    return found


async def ended(running: Reloading) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (found := await operation(running))["state"] == "running":
            await asyncio.sleep(0.02)
    return found


async def test_a_load_goes_on_over_a_reload(one: Reloading, fake: FakeTriton) -> None:
    fake.delays_s["RepositoryModelLoad"] = 0.5
    fake.models["echo"].states = {"1": "UNAVAILABLE"}
    begun = await one.post("/models/echo/load?server=a")
    await fake.until(lambda: fake.calls["RepositoryModelLoad"] == 1)
    assert (await one.reload(config_of({"a": fake}, balancing=AT_ONCE))).json["changed"]
    assert (await operation(one))["state"] == "running"
    found = await ended(one)
    assert (found["id"], found["state"]) == (begun.json["id"], "done")
    assert (await one.gateway.infer()).status == 200, "at once, through the new core"


async def test_a_load_on_a_server_that_is_removed_ends(
    one: Reloading, fake: FakeTriton, other: FakeTriton
) -> None:
    fake.silent.add("RepositoryModelLoad")
    await one.post("/models/echo/load?server=a")
    await fake.until(lambda: fake.calls["RepositoryModelLoad"] == 1)
    assert (await one.reload(config_of({"b": other}))).status == 200
    (step,) = (await ended(one))["servers"]
    assert (step["server"], step["state"]) == ("a", "failed")
    await one.post("/models/echo/load?server=b")
    assert (await ended(one))["state"] == "done", "the next command does not wait for it"


async def test_leave_to_load_is_given_and_taken_at_once(one: Reloading, fake: FakeTriton) -> None:
    load = request("POST", "/v2/repository/models/echo/load?server=a", b"")
    assert (await one.gateway.ask(load)).status == 403
    key = {"apis": ["model-repository"], "header": "X-Key", "key": {"file": "key"}}
    await one.reload(config_of({"a": fake}, model_control={"enabled": True}))
    assert (await one.gateway.ask(load)).status == 200
    one.path.with_name("key").write_text("k")
    await one.reload(config_of({"a": fake}, api={"restricted": [key]}))
    assert "X-Key" in (await one.gateway.ask(load)).error
