"""What Triton's client examples do, done through the gateway.

Those that need no more than the Python backend; model control, settings and health are in
`test_control`, shared memory is refused there. Each test is named after the example it follows.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient as Client
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.http.aio import InferenceServerClient as AioClient

from tests.gateways import GatewayProcess

GRID = np.arange(32, dtype=np.int32).reshape(2, 16)


@pytest.fixture(scope="module")
def client(real_gateway: GatewayProcess) -> Iterator[Client]:
    with Client(real_gateway.address, concurrency=8) as client:
        yield client


def tensor(name: str, values: np.ndarray[Any, Any], datatype: str, *, binary: bool) -> InferInput:
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


@pytest.mark.parametrize("binary", [True, False])
def test_simple_http_string_infer_client(client: Client, binary: bool) -> None:
    texts = np.array([str(number).encode() for number in range(16)], dtype=np.object_)
    outputs = [InferRequestedOutput("OUT", binary_data=binary)]
    inputs = [tensor("IN", texts, "BYTES", binary=binary)]
    answer = client.infer("echo_BYTES", inputs, outputs=outputs)
    assert [int(text) for text in answer.as_numpy("OUT")] == list(range(16))


def test_simple_http_async_infer_client(client: Client) -> None:
    """Sixteen requests under way from one client, mixed forms, each with an answer of its own."""
    asked = []
    for number in range(16):
        value = np.full((4,), number, dtype=np.int32)
        inputs = [tensor("IN", value, "INT32", binary=bool(number % 2))]
        asked.append(client.async_infer("echo_INT32", inputs, request_id=str(number)))
    for number, request in enumerate(asked):
        answer = request.get_result()
        assert answer.get_response()["id"] == str(number)
        assert answer.as_numpy("OUT").tolist() == [number] * 4


async def test_simple_http_aio_infer_client(real_gateway: GatewayProcess) -> None:
    async with AioClient(real_gateway.address) as aio:
        halves = [
            tensor("INPUT0", GRID, "INT32", binary=False),
            tensor("INPUT1", GRID, "INT32", binary=True),
        ]
        answers = await asyncio.gather(*(aio.infer("two_in", halves) for _ in range(8)))
        for answer in answers:
            assert answer.as_numpy("OUTPUT0").tolist() == (GRID + GRID).tolist()
            assert answer.as_numpy("OUTPUT1").tolist() == (GRID - GRID).tolist()


def test_reuse_infer_objects_client(client: Client) -> None:
    """The same tensor objects, filled anew, in the other form, and of another shape."""
    value, output = InferInput("IN", [4], "INT32"), InferRequestedOutput("OUT")
    for turn, binary in enumerate((True, False, True, False)):
        expected = np.arange(turn + 1, dtype=np.int32)
        value.set_shape([turn + 1])
        value.set_data_from_numpy(expected, binary_data=binary)
        for _ in range(2):
            answer = client.infer("echo_INT32", [value], outputs=[output])
            assert answer.as_numpy("OUT").tolist() == expected.tolist()
        assert client.infer("echo_INT32", [value]).as_numpy("OUT").tolist() == expected.tolist()


def test_simple_http_sequence_sync_infer_client(client: Client) -> None:
    """Two sequences, step by step in turns, one of them with the values negated."""
    values, ids = [11, 7, 5, 3, 2, 0, 1], (3_000_001, 3_000_002)
    sums: dict[int, list[int]] = {sequence: [] for sequence in ids}
    for at, value in enumerate(values):
        for sequence, sign in zip(ids, (1, -1), strict=True):
            data = np.full((1, 1), sign * value, dtype=np.int32)
            answer = client.infer(
                "accumulator",
                [tensor("INPUT", data, "INT32", binary=True)],
                sequence_id=sequence,
                sequence_start=at == 0,
                sequence_end=at == len(values) - 1,
            )
            sums[sequence].append(int(answer.as_numpy("OUTPUT")[0][0]))
    running = np.cumsum(values).tolist()
    assert sums == {ids[0]: running, ids[1]: [-total for total in running]}


def test_image_client(client: Client) -> None:
    """The three best classes of each image of a batch, as `score:index`."""
    images = np.linspace(0, 1, 2 * 3 * 224 * 224, dtype=np.float32).reshape(2, 3, 224, 224)
    inputs = [tensor("images", images, "FP32", binary=True)]
    logits = client.infer("resnet50_onnx", inputs).as_numpy("logits")
    best = [InferRequestedOutput("logits", class_count=3)]
    classes = client.infer("resnet50_onnx", inputs, outputs=best).as_numpy("logits")
    assert classes.shape == (2, 3)
    for row, found in zip(logits, classes, strict=True):
        indices = [int(text.decode().split(":")[1]) for text in found]
        assert [float(row[index]) for index in indices] == sorted(row.tolist(), reverse=True)[:3]


def test_simple_http_generate(real_gateway: GatewayProcess) -> None:
    """What the generate extension's guide does with curl."""
    body = json.dumps({"COUNT": 1, "id": "42"}).encode()
    url = f"http://{real_gateway.address}/v2/models/repeat/generate"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        document = json.load(answer)
    assert (document["INDEX"], document["model_name"]) == (0, "repeat")
