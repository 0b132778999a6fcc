"""What the prober makes of servers that are slow, silent, gone, back, or somebody else."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import grpc
import pytest

from gateway.control import ModelDesk
from gateway.upstream import prober
from tests.clients import request
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, fake_triton, serving, serving_config, until

QUICK = {"statistics_interval_s": 0.05, "statistics_timeout_s": 0.2, "index_interval_s": 0.1}
SLOW = {"statistics_interval_s": 60.0}
Code = grpc.StatusCode


def ready(gateway: Serving, model: str = "echo", version: int = 1) -> tuple[str, ...]:
    """The servers a version is routed to."""
    found = gateway.watcher.snapshot.models.get(model)
    route = found.versions.get(version) if found else None
    return route.servers if route else ()


# --- who is there


async def test_a_server_with_another_id_is_down_and_gets_no_tensors(fake: FakeTriton) -> None:
    config = configuration({"a": fake.address})
    config["servers"][0]["expect"] = "mine"
    async with serving_config(config) as gateway:
        reply = await gateway.infer()
        assert reply.status == 503
        row = await gateway.fleet()
        assert not row["up"]
        assert row["reason"] == "another server answers here: its id is 'fake', expected 'mine'"
        assert (await gateway.ask(request("GET", "/v2/health/ready"))).status == 400
    assert fake.infer_started == 0


async def test_a_server_that_becomes_somebody_else_is_taken_out(fake: FakeTriton) -> None:
    fake.server_id = "mine"
    config = configuration({"a": fake.address}, fleet=QUICK)
    config["servers"][0]["expect"] = "mine"
    async with serving_config(config) as gateway:
        assert (await gateway.infer()).status == 200
        fake.server_id = "theirs"
        fake.proxy.cut_all()  # a new process means new connections
        await until(lambda: not gateway.up())
        assert (await gateway.infer()).status == 503
        assert fake.infer_started == 1
        fake.server_id = "mine"
        await until(gateway.up)
        assert (await gateway.infer()).status == 200


async def test_any_id_will_do_without_an_expectation(gateway: Serving) -> None:
    row = await gateway.fleet()
    assert (row["up"], row["server_id"], row["triton_version"]) == (True, "fake", "2.58.0")


async def test_without_any_server_the_gateway_says_come_back(fake: FakeTriton) -> None:
    await fake.kill()
    async with serving({"a": fake}) as gateway:
        reply = await gateway.infer()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.error == "no server of the fleet has answered yet"
        assert (await gateway.ask(request("GET", "/v2/health/live"))).status == 200
        assert (await gateway.ask(request("GET", "/v2/health/ready"))).status == 400


# --- silence


async def test_a_silent_server_is_taken_out_and_comes_back() -> None:
    async with (
        fake_triton() as a,
        fake_triton() as b,
        serving({"a": a, "b": b}, fleet=QUICK | {"silent_probes": 3}) as gateway,
    ):
        await until(lambda: ready(gateway) == ("a", "b"))  # a first probe may take too long
        a.proxy.freeze()
        asked = a.calls["ModelStatistics"]
        await until(lambda: not gateway.up("a"))
        assert (await gateway.fleet("a"))["reason"] == (
            "no answer to its probes within the timeout"
        )
        assert a.calls["ModelStatistics"] - asked <= 1
        assert {(await gateway.infer()).status for _ in range(5)} == {200}
        a.proxy.thaw()
        await until(lambda: gateway.up("a"))
        assert [event["server"] for event in gateway.events("server down")].count("a") == 1


async def test_one_unanswered_probe_is_forgiven(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=QUICK | {"silent_probes": 3}) as gateway:
        fake.silent.add("ModelStatistics")
        asked = fake.calls["ModelStatistics"]
        await until(lambda: fake.calls["ModelStatistics"] >= asked + 2)
        fake.silent.clear()
        asked = fake.calls["ModelStatistics"]
        await until(lambda: fake.calls["ModelStatistics"] >= asked + 3)
        assert gateway.up()
        assert gateway.events("server down") == []


async def test_a_server_that_answers_inference_is_alive_whatever_its_probes_say(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}, fleet=QUICK | {"silent_probes": 2}) as gateway:
        fake.silent.update({"ModelStatistics", "ServerMetadata"})
        asked = fake.calls["ModelStatistics"]
        while fake.calls["ModelStatistics"] < asked + 6:
            assert (await gateway.infer()).status == 200
            await asyncio.sleep(0.01)
        assert gateway.up()


async def test_a_slow_index_ejects_nobody(fake: FakeTriton) -> None:
    fake.delays_s["RepositoryIndex"] = 4.0
    settings = QUICK | {"silent_probes": 1, "index_timeout_s": 0.5}
    async with serving({"a": fake}, fleet=settings) as gateway:
        probed = fake.calls["ModelStatistics"]
        await until(lambda: fake.calls["RepositoryIndex"] >= 1)
        await until(lambda: fake.calls["ModelStatistics"] >= probed + 15)
        assert gateway.up()
        assert gateway.events("server down") == []
        assert (await gateway.infer()).status == 200


async def test_a_server_busy_with_its_index_is_not_silent(fake: FakeTriton) -> None:
    """The control calls of a server run on one thread: while it lists, its probes wait too."""
    settings = QUICK | {"silent_probes": 2, "index_timeout_s": 20.0}
    async with serving({"a": fake}, fleet=settings) as gateway:
        await until(lambda: fake.calls["RepositoryIndex"] >= 1)
        fake.silent.update({"RepositoryIndex", "ModelStatistics"})
        listed = fake.calls["RepositoryIndex"]
        await until(lambda: fake.calls["RepositoryIndex"] > listed)
        probed = fake.calls["ModelStatistics"]
        await until(lambda: fake.calls["ModelStatistics"] >= probed + 4)
        assert gateway.up()


# --- refusal and return


async def test_a_refused_server_is_out_at_once(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=SLOW) as gateway:
        await fake.kill()
        await until(lambda: all(s["state"] != "ready" for s in gateway.watcher.states("a")))
        reply = await gateway.infer()
        assert reply.status == 503
        assert reply.error == "the server could not be reached"
        row = await gateway.fleet()
        assert not row["up"]
        assert row["reason"]
        assert row["models"][0]["state"] == "UNKNOWN"


async def test_a_probe_finds_a_refused_server_without_a_request(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await fake.kill()
        await until(lambda: not gateway.up())
        (event,) = gateway.events("server down")
        assert event["server"] == "a"
        assert "refused" in event["reason"].lower() or "closed" in event["reason"].lower()


@pytest.mark.parametrize("down_s", [0.0, 0.5, 2.0])
async def test_a_server_that_restarts_is_used_again_soon(fake: FakeTriton, down_s: float) -> None:
    settings = {"statistics_interval_s": 0.2}
    async with serving({"a": fake}, fleet=settings) as gateway:
        assert (await gateway.infer()).status == 200
        await fake.kill()
        await asyncio.sleep(down_s)
        await fake.start()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (await gateway.infer()).status != 200:
            await asyncio.sleep(0.02)
        # At most the longest backoff (1 s) and a probe's interval.
        assert loop.time() - began_s < 2.5


async def test_a_server_that_is_back_is_really_back(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet={"statistics_interval_s": 0.1}) as gateway:
        await fake.kill()
        await until(lambda: not gateway.up())
        await asyncio.sleep(2.0)
        await fake.start()
        await until(gateway.up)
        statuses = await asyncio.gather(*(gateway.infer() for _ in range(40)))
        assert {reply.status for reply in statuses} == {200}
        assert len(gateway.events("server down")) == 1


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("expect", [None, "fake"])
async def test_a_connection_that_waits_to_be_made_again_says_nothing_of_the_server(
    fake: FakeTriton, expect: str | None, lost: int
) -> None:
    waiting = {"reconnect_backoff_min_s": 60.0, "reconnect_backoff_max_s": 60.0}
    config = configuration({"a": fake.address}, fleet=QUICK, upstream={"channels": 2, **waiting})
    config["servers"][0]["expect"] = expect
    async with serving_config(config) as gateway:
        await until(lambda: all(s["state"] == "ready" for s in gateway.watcher.states("a")))
        fake.proxy.refuse()
        fake.proxy.cut(sorted(fake.proxy.connections)[lost])
        failing = "transient_failure"
        await until(lambda: failing in {s["state"] for s in gateway.watcher.states("a")})
        await until(gateway.up)
        known = len(gateway.events("server down"))
        fake.models["late"] = FakeModel(model_config("late"))  # to be described
        await until(lambda: ready(gateway, "late") == ("a",))
        probed = fake.calls["ModelStatistics"]
        await until(lambda: fake.calls["ModelStatistics"] > probed + 6)
        assert gateway.up()
        assert len(gateway.events("server down")) == known
        assert (await gateway.infer()).status == 200


async def test_a_restart_under_load_shows_in_no_answer() -> None:
    """What was in flight is answered by the other server, as the model may run twice."""
    async with fake_triton() as a, fake_triton() as b, serving({"a": a, "b": b}) as gateway:
        b.models["echo"].delay_s = 0.02
        a.models["echo"].hang()  # or the restart could fall between two requests
        stop = asyncio.Event()
        statuses: list[int] = []

        async def client() -> None:
            while not stop.is_set():
                statuses.append((await gateway.infer()).status)

        asking = asyncio.gather(*(client() for _ in range(8)))
        await b.until(lambda: b.infer_finished > 20)
        lost = a.infer_started
        await a.restart()
        a.models["echo"].release()
        await b.until(lambda: b.infer_finished > 100)
        stop.set()
        await asking
        assert set(statuses) == {200}
        attempts = [event["attempts"] for event in gateway.events("request")]
        assert 0 < lost <= sum(attempts) - len(attempts) <= 2 * 8


EXITING = (Code.UNAVAILABLE, "Server exiting")


def tell_exiting(fake: FakeTriton) -> None:
    fake.models["echo"].error = EXITING


async def test_a_server_that_is_exiting_does_not_come_and_go(fake: FakeTriton) -> None:
    """It answers probes to its end, and each would bring it back for another request."""
    async with fake_triton() as b, serving({"a": fake, "b": b}, fleet=QUICK) as gateway:
        tell_exiting(fake)
        await infer_until(gateway, lambda: not gateway.up("a"))
        asked = fake.infer_started
        probed = fake.calls["ModelStatistics"]
        await infer_until(gateway, lambda: fake.calls["ModelStatistics"] > probed + 10)
        assert fake.infer_started == asked
        assert (await gateway.fleet("a"))["reason"] == "Server exiting"
        assert len(gateway.events("server down")) == 1
        fake.models["echo"].error = None
        await fake.restart()  # seen, and so believed at once
        await until(lambda: gateway.up("a"))
        await infer_until(gateway, lambda: fake.infer_started > asked)


async def test_a_server_that_is_exiting_is_tried_again_after_a_while(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "_EXITING_MIN_S", 0.2)
    async with fake_triton() as b, serving({"a": fake, "b": b}, fleet=QUICK) as gateway:
        tell_exiting(fake)
        for downs in (1, 2):  # out, tried again, and out again
            await infer_until(gateway, lambda n=downs: len(gateway.events("server down")) == n)
        fake.models["echo"].error = None
        await until(lambda: gateway.up("a"))
        asked = fake.infer_started
        await infer_until(gateway, lambda: fake.infer_started > asked)
        assert len(gateway.events("server down")) == 2


async def infer_until(gateway: Serving, condition: Callable[[], bool]) -> None:
    """Send one request after the other, all of which must be answered."""
    async with asyncio.timeout(10):
        while not condition():
            assert (await gateway.infer()).status == 200
            await asyncio.sleep(0.01)


# --- models


async def test_the_first_pass_knows_every_model_with_its_signature() -> None:
    batching = model_config("batching", max_batch_size=8)
    async with (
        FakeTriton(FakeModel(batching), FakeModel(model_config("plain"))) as fake,
        serving({"a": fake}) as gateway,
    ):
        models = gateway.watcher.snapshot.models
        assert set(models) == {"batching", "plain"}
        assert models["batching"].versions[1].spec.max_batch_size == 8
        assert models["plain"].versions[1].spec.inputs[0].name == "IN"


async def test_models_come_and_go_with_the_probes(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        fake.models["late"] = FakeModel(model_config("late"))
        await until(lambda: ready(gateway, "late") == ("a",))
        assert (await gateway.infer("late")).status == 200
        del fake.models["late"]
        await until(lambda: ready(gateway, "late") == ())
        reply = await gateway.infer("late")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.error == "Request for unknown model: 'late' has no available versions"


async def test_a_model_nobody_ever_had_is_unknown(gateway: Serving) -> None:
    reply = await gateway.infer("nope")
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'nope' is not found")
    assert "retry-after" not in reply.headers


@pytest.mark.usefixtures("undiagnosed")
async def test_a_reload_with_another_signature_is_noticed(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await gateway.infer()
        seen = fake.calls["ModelStatistics"]
        await fake.until(lambda: fake.calls["ModelStatistics"] > seen + 1)
        fake.models["echo"] = FakeModel(model_config("echo", max_batch_size=4))

        def size() -> int:
            return gateway.watcher.snapshot.models["echo"].versions[1].spec.max_batch_size

        await until(lambda: size() == 4)


async def test_the_fleet_view_tells_why_a_model_is_not_ready(fake: FakeTriton) -> None:
    echo = fake.models["echo"]
    echo.states = {"1": "READY", "2": "UNAVAILABLE", "3": "LOADING"}
    echo.reasons = {"2": "no such file"}
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await until(lambda: len(gateway.watcher.snapshot.models["echo"].versions) == 3)
        rows = (await gateway.fleet())["models"]
        assert [(row["version"], row["state"], row.get("reason")) for row in rows] == [
            (1, "READY", None),
            (2, "UNAVAILABLE", "no such file"),
            (3, "LOADING", "not said"),
        ]
        for version, status in (("1", 200), ("2", 404), ("3", 503), ("4", 404)):
            data = request("GET", f"/v2/models/echo/versions/{version}/config")
            assert (await gateway.ask(data)).status == status


async def test_a_model_that_says_not_ready_is_out_until_a_probe_lists_it() -> None:
    async with (
        fake_triton() as a,
        fake_triton() as b,
        serving({"a": a, "b": b}, fleet=SLOW) as gateway,
    ):
        text = "Request for unknown model: 'echo' version 1 is not at ready state"
        a.models["echo"].error = (Code.UNAVAILABLE, text)
        probed = a.calls["ModelStatistics"]
        while a.infer_started == 0:
            assert (await gateway.infer()).status == 200
        # It is asked again at once, not after a minute - and believed.
        await a.until(lambda: a.calls["ModelStatistics"] > probed)
        await until(lambda: ready(gateway) == ("a", "b"))


# --- gentleness


@pytest.mark.usefixtures("undiagnosed")
async def test_a_server_is_asked_gently(fake: FakeTriton) -> None:
    settings = {"statistics_interval_s": 0.2, "index_interval_s": 60.0}
    async with serving({"a": fake}, fleet=settings):
        loop, probed = asyncio.get_running_loop(), fake.calls["ModelStatistics"]
        began_s = loop.time()
        await fake.until(lambda: fake.calls["ModelStatistics"] >= probed + 6)
        assert loop.time() - began_s >= 5 * 0.2 * (1 - 0.2)  # one may have been on its way
        assert fake.calls["ServerMetadata"] == 1
        assert fake.calls["ModelConfig"] == fake.calls["ModelMetadata"] == 1
        assert fake.calls["RepositoryIndex"] == 1


@pytest.mark.usefixtures("undiagnosed")
async def test_no_client_can_make_the_gateway_ask_the_servers(
    gateway: Serving, fake: FakeTriton
) -> None:
    await until(lambda: fake.calls["RepositoryIndex"] == 1)
    asked: dict[str, int] = dict(fake.calls)
    asked.pop("ModelStatistics")
    for path in ("/v2", "/v2/health/ready", "/v2/models", "/v2/models/echo"):
        assert (await gateway.ask(request("GET", path))).status == 200
    for path in ("/v2/models/echo/config", "/v2/models/echo/ready"):
        assert (await gateway.ask(request("GET", path))).status == 200
    assert (await gateway.ask(request("POST", "/v2/repository/index"))).status == 200
    now: dict[str, Any] = dict(fake.calls)
    now.pop("ModelStatistics")
    assert now == asked


async def test_events_are_logged_when_a_state_changes_and_not_otherwise(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=QUICK) as gateway:
        await fake.kill()
        await until(lambda: not gateway.up())
        await asyncio.sleep(0.3)
        await fake.start()
        await until(gateway.up)
        names = [e["event"] for e in gateway.events() if e["event"].startswith("server ")]
        assert names == ["server up", "server down", "server up"]
        assert json.dumps(gateway.events("server up")[0])
        assert gateway.events("server up")[0]["cancel_safe"] is True


# --- servers that are changed through the gateway


async def test_a_changed_server_is_looked_at_when_the_change_is_over(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=SLOW) as gateway:
        async with gateway.watcher.changing("a", "echo"):
            fake.models["echo"].states = {"1": "READY", "3": "READY"}
            fake.models["echo"].config.max_batch_size = 7
        assert ready(gateway, version=3) == ("a",)
        for version in (1, 3):
            reply = await gateway.ask(request("GET", f"/v2/models/echo/versions/{version}/config"))
            assert reply.json["max_batch_size"] == 7, "it is described anew"
        async with gateway.watcher.changing("a", "echo"):
            fake.models["echo"].states = {"1": "UNAVAILABLE"}
        assert ready(gateway) == ()


async def test_a_change_that_fails_is_looked_at_too(fake: FakeTriton) -> None:
    async def fail(gateway: Serving) -> None:
        async with gateway.watcher.changing("a", "echo"):
            fake.models["echo"].states = {"1": "UNAVAILABLE"}
            raise ZeroDivisionError

    async with serving({"a": fake}, fleet=SLOW) as gateway:
        with pytest.raises(ZeroDivisionError):
            await fail(gateway)
        assert ready(gateway) == ()


async def test_what_is_loading_is_known_while_it_loads(fake: FakeTriton) -> None:
    late = FakeModel(model_config("late"), states={})
    fake.models["late"] = late
    async with serving({"a": fake}, fleet={**SLOW, "index_interval_s": 60.0}) as gateway:
        assert (await gateway.infer("late")).status == 404
        async with gateway.watcher.changing("a", "late"):
            late.states = {"1": "LOADING"}
            async with asyncio.timeout(5):
                while (reply := await gateway.infer("late")).status == 404:
                    await asyncio.sleep(0.02)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            late.states = {"1": "READY"}
        assert (await gateway.infer("late")).status == 200


async def test_a_gateway_that_stops_does_not_wait_for_a_change(fake: FakeTriton) -> None:
    begun = asyncio.Event()

    async def change(gateway: Serving) -> None:
        async with gateway.watcher.changing("a", "echo"):
            begun.set()
            await asyncio.Event().wait()

    async with serving({"a": fake}) as gateway:
        task = asyncio.get_running_loop().create_task(change(gateway))
        await begun.wait()
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_server_that_may_have_been_started_anew_is_told_of(fake: FakeTriton) -> None:
    """A restart between two probes leaves no trace but a connection that was lost."""
    told: list[str] = []

    def server_back(_: ModelDesk, server: str) -> None:
        told.append(server)

    with mock.patch.object(ModelDesk, "server_back", server_back):
        async with serving({"a": fake}, fleet={**QUICK, "silent_probes": 100}) as gateway:
            passes = fake.calls["ModelStatistics"]
            await fake.until(lambda: fake.calls["ModelStatistics"] >= passes + 8)
            assert told == ["a"], "when it came up"
            assert (await gateway.infer()).status == 200
            fake.proxy.cut_all()
            await until(lambda: len(told) > 1)
            assert set(told) == {"a"}
