"""What is sent: four loads, each in the form Triton's REST takes and in the form of the transcoder.

Knows no process and no load generator. `check` says whether an answer holds the right numbers, so
that no target is measured while it answers nonsense.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL_SHAPE = (1, 10)
IMAGE_SHAPE = (1, 3, 224, 224)
TRANSCODER_PATH = "/inference.GRPCInferenceService/ModelInfer"
SEED = 1


@dataclass(frozen=True)
class Request:
    """One POST, the same every time."""

    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Payload:
    """A load: `rest` for all who speak Triton's REST, `transcoded` for Envoy's transcoder."""

    name: str
    title: str
    connections: int
    rest: Request
    transcoded: Request
    answer: tuple[float, ...]
    note: str = ""


def payloads() -> dict[str, Payload]:
    """Build every load by its name. The numbers are random, and the same in every run."""
    random = np.random.default_rng(SEED)
    small = random.random(SMALL_SHAPE, dtype=np.float32)
    image = random.random(IMAGE_SHAPE, dtype=np.float32)
    every = (
        _small(small, connections=16),
        _small(small, connections=64),
        _json_image(image),
        _binary_image(image),
    )
    return {payload.name: payload for payload in every}


def check(payload: Payload, answer: bytes) -> bool:
    """Tell whether the body of an answer carries the numbers `payload` has to be answered with."""
    message = json.loads(answer)
    raw = message.get("rawOutputContents")
    if raw is None:
        numbers = np.array(message["outputs"][0]["data"], np.float32)
    else:
        numbers = np.frombuffer(base64.b64decode(raw[0]), np.float32)
    return bool(np.array_equal(numbers, np.array(payload.answer, np.float32)))


def _small(numbers: NDArray[np.float32], *, connections: int) -> Payload:
    return Payload(
        name=f"small-{connections}",
        title=f"Small JSON (FP32 1x10), {connections} connections",
        connections=connections,
        rest=_rest_json("identity_fp32", "INPUT0", numbers),
        transcoded=_transcoded_json("identity_fp32", "INPUT0", numbers),
        answer=tuple(numbers.ravel().tolist()),
    )


def _json_image(image: NDArray[np.float32]) -> Payload:
    return Payload(
        name="json-image",
        title="JSON image (FP32 1x3x224x224 as 150,528 JSON numbers), 4 connections",
        connections=4,
        rest=_rest_json("sink", "IMAGE", image),
        transcoded=_transcoded_json("sink", "IMAGE", image),
        answer=_ends(image),
    )


def _binary_image(image: NDArray[np.float32]) -> Payload:
    raw = image.tobytes()
    tensor = _tensor("IMAGE", image)
    header = _json({"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]})
    encoded = base64.b64encode(raw).decode()
    return Payload(
        name="binary-image",
        title="Binary image (FP32 1x3x224x224 as raw bytes), 4 connections",
        connections=4,
        rest=Request(
            _rest_path("sink"),
            header + raw,
            {
                "Content-Type": "application/octet-stream",
                "Inference-Header-Content-Length": str(len(header)),
            },
        ),
        transcoded=_transcoded("sink", {"inputs": [tensor], "raw_input_contents": [encoded]}),
        answer=_ends(image),
        note="The transcoder takes JSON only: it gets the same bytes as base64 in "
        "`raw_input_contents`, a third more on the wire.",
    )


def _rest_json(model: str, name: str, numbers: NDArray[np.float32]) -> Request:
    tensor = _tensor(name, numbers) | {"data": numbers.ravel().tolist()}
    headers = {"Content-Type": "application/json"}
    return Request(_rest_path(model), _json({"inputs": [tensor]}), headers)


def _transcoded_json(model: str, name: str, numbers: NDArray[np.float32]) -> Request:
    contents = {"fp32_contents": numbers.ravel().tolist()}
    return _transcoded(model, {"inputs": [_tensor(name, numbers) | {"contents": contents}]})


def _transcoded(model: str, message: Mapping[str, Any]) -> Request:
    body = _json({"model_name": model, **message})
    return Request(TRANSCODER_PATH, body, {"Content-Type": "application/json"})


def _rest_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _tensor(name: str, numbers: NDArray[np.float32]) -> dict[str, Any]:
    return {"name": name, "shape": list(numbers.shape), "datatype": "FP32"}


def _ends(image: NDArray[np.float32]) -> tuple[float, ...]:
    return (float(image.flat[0]), float(image.flat[-1]))


def _json(message: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
