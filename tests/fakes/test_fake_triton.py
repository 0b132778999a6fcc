"""The scripted Triton does what its script says, seen through gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton

Code = grpc.StatusCode


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with FakeTriton(FakeModel(model_config("echo"))) as server:
        yield server


@pytest.fixture
async def stub(fake: FakeTriton) -> AsyncIterator[Any]:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 50),
    ]
    async with grpc.aio.insecure_channel(fake.address, options=options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def request(model: str = "echo", version: str = "") -> Any:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="FP32", shape=[1])
    return service_pb2.ModelInferRequest(
        model_name=model,
        model_version=version,
        id="r1",
        inputs=[tensor],
        raw_input_contents=[b"\x00\x00\x80\x3f"],
    )


async def failure(call: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def test_inputs_are_echoed_to_outputs_and_counted(fake: FakeTriton, stub: Any) -> None:
    reply = await stub.ModelInfer(request(), metadata=[("x-note", "n")])
    assert (reply.model_name, reply.model_version, reply.id) == ("echo", "1", "r1")
    assert [(o.name, o.datatype, list(o.shape)) for o in reply.outputs] == [("OUT", "FP32", [1])]
    assert reply.raw_output_contents == [b"\x00\x00\x80\x3f"]
    assert (fake.infer_started, fake.infer_finished, fake.infer_cancelled) == (1, 1, 0)
    assert fake.metadata[0]["x-note"] == "n"
    assert fake.last_request == request()


async def test_server_calls_report_what_was_set(fake: FakeTriton, stub: Any) -> None:
    metadata = await stub.ServerMetadata(service_pb2.ServerMetadataRequest())
    assert (metadata.name, metadata.version) == ("fake", "2.58.0")
    fake.ready = False
    assert not (await stub.ServerReady(service_pb2.ServerReadyRequest())).ready
    assert (await stub.ServerLive(service_pb2.ServerLiveRequest())).live
    assert fake.calls == {"ServerMetadata": 1, "ServerReady": 1, "ServerLive": 1}


async def test_model_calls_follow_the_configuration_and_the_states(
    fake: FakeTriton, stub: Any
) -> None:
    config = model_config("text", [("T", "BYTES", [2])], max_batch_size=4)
    fake.models["text"] = FakeModel(config, states={"1": "READY", "2": "LOADING"})
    assert (await stub.ModelConfig(service_pb2.ModelConfigRequest(name="text"))).config == config
    metadata = await stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="text"))
    assert (metadata.inputs[0].datatype, list(metadata.inputs[0].shape)) == ("BYTES", [-1, 2])
    ready = service_pb2.ModelReadyRequest
    assert (await stub.ModelReady(ready(name="text"))).ready
    assert not (await stub.ModelReady(ready(name="text", version="2"))).ready
    index = (await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())).models
    rows = [(row.name, row.version, row.state) for row in index]
    assert rows == [("echo", "1", "READY"), ("text", "1", "READY"), ("text", "2", "LOADING")]
    index = (await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True))).models
    assert [row.name for row in index] == ["echo", "text"]


async def test_statistics_count_answers(fake: FakeTriton, stub: Any) -> None:
    await stub.ModelInfer(request())
    stats = await stub.ModelStatistics(service_pb2.ModelStatisticsRequest())
    assert [(s.name, s.version, s.inference_count) for s in stats.model_stats] == [("echo", "1", 1)]


async def test_versions_are_chosen_and_refused_with_tritons_words(
    fake: FakeTriton, stub: Any
) -> None:
    model = fake.models["echo"]
    model.states = {"2": "READY", "10": "READY", "11": "UNLOADING"}
    assert (await stub.ModelInfer(request())).model_version == "10"
    unknown = "Request for unknown model: 'echo'"
    assert await failure(stub.ModelInfer(request(version="11"))) == (
        Code.UNAVAILABLE,
        f"{unknown} version 11 is not at ready state",
    )
    assert await failure(stub.ModelInfer(request(version="3"))) == (
        Code.NOT_FOUND,
        f"{unknown} version 3 is not found",
    )
    model.states = {"1": "UNAVAILABLE"}
    assert await failure(stub.ModelInfer(request())) == (
        Code.NOT_FOUND,
        f"{unknown} has no available versions",
    )
    assert await failure(stub.ModelInfer(request("nope"))) == (
        Code.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    )


async def test_errors_can_be_set_by_model_and_by_method(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].error = (Code.INTERNAL, "boom")
    fake.errors["ServerLive"] = (Code.UNAVAILABLE, "Server exiting")
    assert await failure(stub.ModelInfer(request())) == (Code.INTERNAL, "boom")
    live = stub.ServerLive(service_pb2.ServerLiveRequest())
    assert await failure(live) == (Code.UNAVAILABLE, "Server exiting")
    assert fake.infer_finished == 1
    assert not fake.models["echo"].executions


async def test_a_cancelled_call_is_counted(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].hang()
    call = stub.ModelInfer(request())
    await fake.until(lambda: fake.infer_started == 1)
    call.cancel()
    await fake.until(lambda: fake.infer_cancelled == 1)
    assert fake.infer_finished == 0


async def test_a_hanging_model_goes_on_when_released(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].hang()
    call = stub.ModelInfer(request())
    await fake.until(lambda: fake.infer_started == 1)
    fake.models["echo"].release()
    assert (await call).id == "r1"


async def test_a_silent_method_never_answers_while_others_do(fake: FakeTriton, stub: Any) -> None:
    fake.silent.add("ServerLive")
    silent = stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=0.2)
    assert (await stub.ModelInfer(request())).id == "r1"
    assert (await failure(silent))[0] is Code.DEADLINE_EXCEEDED


async def test_a_frozen_server_answers_when_thawed(fake: FakeTriton, stub: Any) -> None:
    await stub.ModelInfer(request())
    fake.proxy.freeze()
    late = stub.ModelInfer(request(), timeout=0.2)
    assert (await failure(late))[0] is Code.DEADLINE_EXCEEDED
    fake.proxy.thaw()
    assert (await stub.ModelInfer(request())).id == "r1"


async def test_a_dropped_connection_fails_the_call_only(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].drop = True
    code, details = await failure(stub.ModelInfer(request()))
    assert code is Code.UNAVAILABLE
    assert "reset" in details.lower() or "closed" in details.lower()
    await fake.until(lambda: fake.infer_cancelled == 1)
    fake.models["echo"].drop = False
    assert (await stub.ModelInfer(request(), wait_for_ready=True)).id == "r1"
    assert (len(fake.peers), fake.proxy.accepted) == (2, 2)


async def test_a_killed_server_breaks_calls_refuses_and_comes_back(
    fake: FakeTriton, stub: Any
) -> None:
    address = fake.address
    fake.models["echo"].hang()
    call = stub.ModelInfer(request())
    await fake.until(lambda: fake.infer_started == 1)
    await fake.kill()
    assert (await failure(call))[0] is Code.UNAVAILABLE
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address.split(":"))
    await fake.start()
    assert fake.address == address
    fake.models["echo"].release()
    assert (await stub.ModelInfer(request(), wait_for_ready=True)).id == "r1"


async def test_a_draining_server_lets_calls_finish(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].hang()
    call = stub.ModelInfer(request())
    await fake.until(lambda: fake.infer_started == 1)
    stopping = asyncio.ensure_future(fake.stop(grace_s=10))
    await asyncio.sleep(0)
    fake.models["echo"].release()
    assert (await call).id == "r1"
    await stopping


async def test_each_channel_is_a_connection(fake: FakeTriton) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    for _ in range(3):
        async with grpc.aio.insecure_channel(fake.address, options=options) as channel:
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request())
    assert (len(fake.peers), fake.proxy.accepted) == (3, 3)


async def test_an_own_reply_replaces_the_echo(fake: FakeTriton, stub: Any) -> None:
    fake.models["echo"].reply = lambda _: service_pb2.ModelInferResponse(
        raw_output_contents=[b"own"]
    )
    assert (await stub.ModelInfer(request())).raw_output_contents == [b"own"]
