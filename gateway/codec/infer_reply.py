"""InferReply -> the body of the HTTP answer.

Decides the JSON's keys and their order, and which outputs go into the binary tail; outputs keep the
server's order, in both. Refuses to know headers and compression, which the edge derives from the
result. Called by the reply stage of a request.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.codec.json_output import data_text, number_text
from gateway.codec.types import InferCall, InferReply, OutputTensor, Scalar


@dataclass(slots=True)
class EncodedBody:
    """A body in pieces: `head` is the JSON, `tail` the bytes of each binary output after it."""

    head: bytes
    tail: list[bytes] = field(default_factory=list)

    @property
    def binary(self) -> bool:
        """Whether bytes follow the JSON.

        Then it is an octet stream whose JSON length goes into Inference-Header-Content-Length;
        otherwise it is JSON without that header, even if an empty output was asked for in binary.
        """
        return any(self.tail)


def encode_reply(reply: InferReply, call: InferCall) -> EncodedBody:
    """Write the reply to `call` in the form it asked for.

    Raises a fault of the client's when BYTES that are not UTF-8 were asked for as JSON, one of the
    server's when an output's bytes are not what its shape and datatype say.
    """
    tail: list[bytes] = []
    document: dict[str, Any] = {"id": reply.id} if reply.id else {}
    document["model_name"] = reply.model
    document["model_version"] = reply.version
    if reply.parameters:
        document["parameters"] = parameter_values(reply.parameters)
    document["outputs"] = [
        _output(output, tail if call.wants_binary(output.name) else None)
        for output in reply.outputs
    ]
    return EncodedBody(orjson.dumps(document), tail)


def _output(output: OutputTensor, tail: list[bytes] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": output.name,
        "datatype": output.datatype,
        "shape": list(output.shape),
    }
    if tail is None:
        entry["data"] = orjson.Fragment(data_text(output))
    else:
        entry["parameters"] = {"binary_data_size": len(output.raw)}
        tail.append(output.raw)
    return entry


def parameter_values(parameters: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return response parameters as orjson can write them."""
    return {
        key: orjson.Fragment(number_text(value))
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in parameters.items()
    }
