"""Which server a request reaches: placement, signatures, circuits, hedges, servers going down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import SHED_TIMES, Serving, fake_triton, serving, serving_config, until

Code = grpc.StatusCode
QUICK = {"statistics_interval_s": 0.05}
SLOW = {"statistics_interval_s": 60.0}
STUB = "Failed to process the request(s) for model instance 'echo_0', message: Stub process"


@contextlib.asynccontextmanager
async def fleet(
    *keys: dict[str, Any],
    models: Sequence[str] = ("echo",),
    servers: Sequence[FakeTriton] | None = None,
    rules: dict[str, Any] | None = None,
    **sections: Any,
) -> AsyncIterator[tuple[Serving, list[FakeTriton]]]:
    """A gateway in front of one server for each of `keys`, named a, b, c; `rules` by model."""
    async with contextlib.AsyncExitStack() as stack:
        made = servers or [fake_triton(*models) for _ in keys]
        fakes = [await stack.enter_async_context(server) for server in made]
        addresses = {name: fake.address for name, fake in zip("abc", fakes, strict=False)}
        config = configuration(addresses, models=rules or {}, **sections)
        for server, more in zip(config["servers"], keys, strict=True):
            server.update(more)
        yield await stack.enter_async_context(serving_config(config)), fakes


async def version(gateway: Serving, model: str = "echo") -> dict[str, Any]:
    """What the fleet view shows of version 1 of a model."""
    rows = (await gateway.ops("/fleet")).json["models"]
    found: dict[str, Any] = next(row for row in rows if row["name"] == model)["versions"]["1"]
    return found


async def asked(gateway: Serving, count: int, model: str = "echo") -> set[int]:
    return {(await gateway.infer(model)).status for _ in range(count)}


# --- placement


async def test_a_server_gets_only_the_models_it_is_to_serve() -> None:
    async with fleet({"serve": ["e*"]}, {}, models=("echo", "other")) as (gateway, (a, b)):
        assert await asked(gateway, 10, "other") == {200}
        assert (a.infer_started, b.infer_started) == (0, 10)
        shown = await version(gateway, "other")
        assert shown["servers"] == ["b"]
        assert shown["left_out"] == {"a": "the server's `serve` does not name this model"}
        while a.infer_started == 0:  # it does get the others
            assert await asked(gateway, 1) == {200}


async def test_a_model_nobody_is_to_serve_is_not_ready() -> None:
    async with fleet({"serve": ["echo"]}, models=("echo", "other")) as (gateway, (a,)):
        reply = await gateway.infer("other")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert a.infer_started == 0


async def test_a_model_of_a_pool_stays_in_it() -> None:
    placed = {"echo": {"pool": "gpu"}}
    keys = ({"pool": "gpu"}, {"pool": "cpu"}, {})
    async with fleet(*keys, models=("echo", "other"), rules=placed) as (gateway, fakes):
        assert await asked(gateway, 10) == {200}
        assert [fake.infer_started for fake in fakes] == [10, 0, 0]
        assert (await version(gateway))["left_out"] == {
            "b": "the model is for the pool 'gpu'",
            "c": "the model is for the pool 'gpu'",
        }
        assert len((await version(gateway, "other"))["servers"]) == 3


# --- signatures


def one_differs() -> list[FakeTriton]:
    return [
        fake_triton(),
        fake_triton(),
        FakeTriton(FakeModel(model_config("echo", max_batch_size=8))),
    ]


async def test_a_server_with_another_signature_is_left_out_and_told_of() -> None:
    async with fleet({}, {}, {}, servers=one_differs()) as (gateway, (a, b, odd)):
        assert await asked(gateway, 20) == {200}
        assert odd.infer_started == 0
        assert min(a.infer_started, b.infer_started) > 0
        shown = await version(gateway)
        assert shown["servers"] == ["a", "b"]
        assert shown["left_out"] == {
            "c": "its signature differs from the majority's in max_batch_size"
        }
        await until(lambda: any(f["code"] == "different-model" for f in findings(gateway)))
        (found,) = [f for f in findings(gateway) if f["code"] == "different-model"]
        assert "'echo' version 1 on c differs from a, b: max_batch_size 8" in found["message"]
        assert found["fix"]


async def test_a_compatible_model_is_served_by_all_of_them() -> None:
    rules = {"echo": {"compatible": True}}
    async with fleet({}, {}, {}, servers=one_differs(), rules=rules) as (gateway, fakes):
        while any(fake.infer_started == 0 for fake in fakes):
            assert await asked(gateway, 1) == {200}
        assert (await version(gateway))["left_out"] == {}


def findings(gateway: Serving) -> Sequence[Any]:
    return gateway.watcher.findings()


# --- circuits


async def test_a_dead_stub_takes_only_its_model_off_only_its_server() -> None:
    async with fleet({}, {}, models=("echo", "other")) as (gateway, (a, _)):
        a.models["echo"].error = (Code.INTERNAL, f"{STUB} 'echo_0' is not healthy.")
        while a.infer_started == 0:
            reply = await gateway.infer()
        assert (reply.status, a.infer_started) == (500, 1)
        assert await asked(gateway, 20) == {200}
        assert a.infer_started == 1
        view = (await gateway.ops("/fleet")).json
        assert view["breakers"] == [{"of": "echo/1", "server": "a", "circuit": "open"}]
        assert gateway.up("a")
        while a.infer_started == 1:
            assert await asked(gateway, 1, "other") == {200}


async def test_a_model_that_fails_everywhere_is_shown_as_bad_and_stays_in_use() -> None:
    async with fleet({}, {}) as (gateway, fakes):
        for fake in fakes:
            fake.models["echo"].error = (Code.INTERNAL, f"{STUB} 'echo_0' is not healthy.")
        assert await asked(gateway, 20) == {500}
        assert (await version(gateway))["bad"] is True
        assert (await gateway.ops("/fleet")).json["breakers"] == []
        for fake in fakes:
            fake.models["echo"].error = None
        assert await asked(gateway, 10) == {200}


async def test_deadlines_that_clients_choose_take_no_server_out() -> None:
    async with fleet({}, fleet=SLOW) as (gateway, (a,)):
        a.models["echo"].delay_s = 0.2
        replies = await asyncio.gather(
            *(gateway.infer(X_Request_Timeout_Ms=str(1 + n % 5)) for n in range(60))
        )
        assert {reply.status for reply in replies} == {504}
        assert (await gateway.ops("/fleet")).json["breakers"] == []
        a.models["echo"].delay_s = 0.0
        await until(lambda: gateway.idle)
        assert (await gateway.infer()).status == 200


# --- servers that go down


async def test_a_server_that_says_it_is_exiting_is_left_without_a_failure() -> None:
    async with fleet({}, {}, fleet=QUICK) as (gateway, (a, _)):
        exiting = (Code.UNAVAILABLE, "Server exiting")
        a.errors.update({"ModelInfer": exiting, "ModelStatistics": exiting})
        assert await asked(gateway, 30) == {200}
        await until(lambda: not gateway.up("a"))
        assert "Server exiting" in (await gateway.fleet("a"))["reason"]
        assert (await gateway.ops("/fleet")).json["breakers"] == []
        started = a.infer_started
        assert await asked(gateway, 10) == {200}
        assert a.infer_started == started
        a.errors.clear()
        await until(lambda: gateway.up("a"))
        assert len(gateway.events("server down")) == 1


async def test_full_queues_are_tried_elsewhere_and_then_told() -> None:
    async with fleet({}, {}, {}) as (gateway, fakes):
        for fake in fakes:
            fake.models["echo"].error = (Code.UNAVAILABLE, "Exceeds maximum queue size")
        reply = await gateway.infer()
        assert reply.status == 503
        assert reply.headers["retry-after"] in SHED_TIMES
        assert [fake.infer_started for fake in fakes] == [1, 1, 1]
        assert gateway.events("request")[-1]["attempts"] == 3


async def test_a_server_that_is_down_is_watched_closely(fake: FakeTriton) -> None:
    async with serving({"a": fake}, fleet=SLOW) as gateway:
        await fake.kill()
        assert (await gateway.infer()).status == 503
        assert not gateway.up()
        await fake.start()
        began_s = asyncio.get_running_loop().time()
        await until(gateway.up)
        # The longest backoff of a connection (1 s) and half a second, not a minute.
        assert asyncio.get_running_loop().time() - began_s < 2.5
        assert (await gateway.infer()).status == 200


@pytest.mark.usefixtures("undiagnosed")
async def test_a_server_that_has_just_come_up_is_watched_closely(fake: FakeTriton) -> None:
    """It may still be loading models."""
    async with serving({"a": fake}, fleet=SLOW) as gateway:
        fake.models["late"] = FakeModel(model_config("late"))
        await until(lambda: "late" in gateway.watcher.snapshot.models, 3.0)


# --- hedging


async def test_a_slow_request_is_answered_by_another_server_and_cancelled() -> None:
    hedged = {"echo": {"hedging": {"after_s": 0.05, "max_share": 0.5}}}
    async with fleet({}, {}, rules=hedged) as (gateway, (a, _)):
        assert await asked(gateway, 6) == {200}  # earns the budget
        a.models["echo"].hang()
        started = a.infer_started
        while a.infer_started == started:
            assert await asked(gateway, 1) == {200}
        line = gateway.events("request")[-1]
        assert (line["attempts"], line["server"], line["status"]) == (2, "b", 200)
        assert line["duration_ms"] >= 50
        await a.until(lambda: a.infer_cancelled == 1)
        await until(lambda: gateway.idle)
        assert gateway.tracebacks == []
