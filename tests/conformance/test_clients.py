"""Triton's own clients cannot tell the gateway from a server, in either of their forms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient as Client
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.http.aio import InferenceServerClient as AioClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gateway.cli.local_triton import LocalTriton
from tests.conftest import LOADS
from tests.gateways import GatewayProcess
from tests.real.repository import DATATYPES

Array = np.ndarray[Any, Any]
COUNTER = "ORDER"
"""The output of the `priority` model that is another one each time."""


@dataclass(frozen=True)
class Call:
    """A call of a model; `server` holds it."""

    model: str
    inputs: dict[str, Array]
    version: str = ""
    server: str = "a"
    datatype: str = ""

    def tensors(self, *, binary: bool) -> list[InferInput]:
        return [self._tensor(name, array, binary) for name, array in self.inputs.items()]

    def _tensor(self, name: str, array: Array, binary: bool) -> InferInput:
        datatype = self.datatype or np_to_triton_dtype(array.dtype)
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        return tensor


def echo_values(datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array([b"", b"a", "ä".encode()], dtype=np.object_)
    if datatype == "BF16":
        return np.array([1.0, -2.5, 0.15625], dtype=ml_dtypes.bfloat16)
    kinds = {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
    code = kinds.get(datatype) or datatype.lower()
    return np.array([1, 0, 7], dtype=np.dtype(code))


ROWS = np.arange(20, dtype=np.float32).reshape(2, 10)
GRID = np.arange(32, dtype=np.int32).reshape(2, 16)
CALLS = [
    Call("simple_onnx", {"input__0": ROWS}, "1"),
    Call("simple_onnx", {"input__0": ROWS}, "2"),
    Call("simple_onnx", {"input__0": ROWS}),
    Call("custom_model", {"INPUT": ROWS}),
    Call("resnet50_onnx", {"images": np.full((1, 3, 224, 224), 0.5, dtype=np.float32)}),
    Call("identity_fp32", {"INPUT0": ROWS}),
    Call("two_in", {"INPUT0": GRID, "INPUT1": GRID[::-1].copy()}),
    Call("priority", {"WORK_MS": np.zeros((1, 1), dtype=np.int32)}, server="b"),
    *(
        Call(f"echo_{datatype}", {"IN": echo_values(datatype)}, datatype=datatype)
        for datatype in DATATYPES
    ),
]
ONLY_BINARY = ("FP16", "BF16")
"""Datatypes that the client itself does not send as JSON."""
FORMS = [
    pytest.param(call, binary, id=f"{call.model}{call.version}-{'binary' if binary else 'json'}")
    for call in CALLS
    for binary in (True, False)
    if binary or call.datatype not in ONLY_BINARY
]
CODINGS = (None, "gzip", "deflate")


@pytest.fixture(scope="module")
def addresses(
    triton_a: LocalTriton, triton_b: LocalTriton, real_gateway: GatewayProcess
) -> dict[str, str]:
    return {
        "a": triton_a.http_address,
        "b": triton_b.http_address,
        "gateway": real_gateway.address,
    }


@pytest.fixture(scope="module")
def clients(addresses: dict[str, str]) -> Iterator[dict[str, Client]]:
    opened = {name: Client(address) for name, address in addresses.items()}
    yield opened
    for client in opened.values():
        client.close()


@pytest.fixture
async def aio_clients(addresses: dict[str, str]) -> AsyncIterator[dict[str, AioClient]]:
    opened = {name: AioClient(address) for name, address in addresses.items()}
    yield opened
    for client in opened.values():
        await client.close()


def content(result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a result's document and its outputs; of a counter only the form is kept."""
    document = result.get_response()
    outputs = document["outputs"]
    described = [{**output, "data": None} for output in outputs]
    arrays = {name: result.as_numpy(name) for name in names_of(outputs) if name != COUNTER}
    values = {name: (array.dtype, array.tolist()) for name, array in arrays.items()}
    return {**document, "outputs": described}, values


def names_of(tensors: list[dict[str, Any]]) -> list[str]:
    return [tensor["name"] for tensor in tensors]


@pytest.mark.parametrize(("call", "binary"), FORMS)
async def test_answers_equal_those_of_the_server(
    clients: dict[str, Client], aio_clients: dict[str, AioClient], call: Call, binary: bool
) -> None:
    outputs = names_of(clients["gateway"].get_model_metadata(call.model)["outputs"])
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in outputs]
    arguments = {"model_version": call.version, "request_id": "r-1", "outputs": wanted}
    inputs = call.tensors(binary=binary)
    expected = content(clients[call.server].infer(call.model, inputs, **arguments))
    assert content(clients["gateway"].infer(call.model, inputs, **arguments)) == expected
    answer = await aio_clients["gateway"].infer(call.model, inputs, **arguments)
    assert content(answer) == expected
    assert expected[0]["id"] == "r-1"


@pytest.mark.parametrize("response", CODINGS)
@pytest.mark.parametrize("request_coding", CODINGS)
async def test_compression_works_both_ways(
    clients: dict[str, Client],
    aio_clients: dict[str, AioClient],
    request_coding: str | None,
    response: str | None,
) -> None:
    call = Call("identity_fp32", {"INPUT0": np.tile(ROWS, (1, 50))})
    inputs = call.tensors(binary=True)
    arguments = {
        "request_compression_algorithm": request_coding,
        "response_compression_algorithm": response,
    }
    expected = content(clients["a"].infer(call.model, inputs, **arguments))
    assert content(clients["gateway"].infer(call.model, inputs, **arguments)) == expected
    assert content(await aio_clients["gateway"].infer(call.model, inputs, **arguments)) == expected
    assert expected[1]["OUTPUT0"][1] == np.tile(ROWS, (1, 50)).tolist()


@pytest.mark.parametrize("model", ["simple_onnx", "priority", "nope"])
@pytest.mark.parametrize("version", ["", "1", "7"])
async def test_readiness_is_the_fleets(
    clients: dict[str, Client], aio_clients: dict[str, AioClient], model: str, version: str
) -> None:
    expected = any(clients[server].is_model_ready(model, version) for server in "ab")
    assert clients["gateway"].is_model_ready(model, version) is expected
    assert await aio_clients["gateway"].is_model_ready(model, version) is expected


async def test_the_server_calls_work(
    clients: dict[str, Client], aio_clients: dict[str, AioClient]
) -> None:
    client, aio = clients["gateway"], aio_clients["gateway"]
    assert client.is_server_live() is await aio.is_server_live() is True
    assert client.is_server_ready() is await aio.is_server_ready() is True
    assert client.get_server_metadata() == await aio.get_server_metadata()
    assert client.get_server_metadata()["name"] == "triton"
    index = client.get_model_repository_index()
    assert index == await aio.get_model_repository_index()
    ready = {entry["name"] for entry in index if entry.get("state") == "READY"}
    assert ready == set(LOADS["a"]) | set(LOADS["b"])


async def test_the_model_calls_work(
    clients: dict[str, Client], aio_clients: dict[str, AioClient]
) -> None:
    client, aio = clients["gateway"], aio_clients["gateway"]
    metadata = clients["a"].get_model_metadata("simple_onnx")
    assert client.get_model_metadata("simple_onnx") == metadata
    assert await aio.get_model_metadata("simple_onnx") == metadata
    config = clients["a"].get_model_config("simple_onnx", "1")
    assert client.get_model_config("simple_onnx", "1") == config
    assert await aio.get_model_config("simple_onnx", "1") == config
    (row,) = client.get_inference_statistics("echo_INT8")["model_stats"]
    assert (row["name"], row["version"]) == ("echo_INT8", "1")
    assert await aio.get_inference_statistics("echo_INT8") == {"model_stats": [row]}
    assert len(client.get_inference_statistics()["model_stats"]) > len(LOADS["b"])


def test_errors_reach_the_client_as_those_of_a_server(clients: dict[str, Client]) -> None:
    call = Call("simple_onnx", {"input__0": ROWS[:, :9].copy()})
    texts = [error_of(clients[name], call) for name in ("a", "gateway")]
    assert texts[0] == texts[1]
    assert "unexpected shape for input 'input__0'" in texts[1]


def error_of(client: Client, call: Call) -> str:
    with pytest.raises(InferenceServerException) as failure:
        client.infer(call.model, call.tensors(binary=True))
    return str(failure.value)


def test_a_load_generator_finds_its_requests_in_the_statistics(clients: dict[str, Client]) -> None:
    """Do what perf_analyzer does: read the configuration, count before, infer, count after."""
    client, rounds = clients["gateway"], 25
    config = client.get_model_config("identity_fp32")
    rows = min(4, config["max_batch_size"])
    call = Call(config["name"], {config["input"][0]["name"]: np.tile(ROWS[:1], (rows, 1))})
    before = counts(client, call.model)
    for _ in range(rounds):
        client.infer(call.model, call.tensors(binary=True))
    after = eventually_counted(client, call.model, before["requests"] + rounds)
    assert after["requests"] - before["requests"] == rounds
    assert after["rows"] - before["rows"] == rounds * rows
    assert after["executions"] - before["executions"] == rounds
    assert after[f"executions of {rows}"] - before.get(f"executions of {rows}", 0) == rounds
    assert after["failures"] == before["failures"]
    assert after["ns"] > before["ns"]


def eventually_counted(client: Client, model: str, requests: int) -> dict[str, int]:
    """Return the statistics as soon as they count so many requests: that is after the answers."""
    for _ in range(100):
        found = counts(client, model)
        if found["requests"] >= requests:
            break
    return found


def counts(client: Client, model: str) -> dict[str, int]:
    (row,) = client.get_inference_statistics(model)["model_stats"]
    return {
        "requests": row["inference_stats"]["success"]["count"],
        "failures": row["inference_stats"]["fail"]["count"],
        "ns": row["inference_stats"]["success"]["ns"],
        "rows": row["inference_count"],
        "executions": row["execution_count"],
        **{
            f"executions of {batch['batch_size']}": batch["compute_infer"]["count"]
            for batch in row["batch_stats"]
        },
    }
