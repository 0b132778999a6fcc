"""Builders of infer requests, short enough for tables of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.conformance.raw_http import request

HEADER = "Inference-Header-Content-Length"


def tensor(
    name: str, datatype: str, shape: Sequence[Any], data: Any = None, **parameters: Any
) -> dict[str, Any]:
    """Describe an input; without `data` its parameters have to say where the bytes are."""
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    if data is not None:
        entry["data"] = data
    if parameters:
        entry["parameters"] = parameters
    return entry


def document(*inputs: dict[str, Any], **fields: Any) -> bytes:
    """Write the JSON of an infer request."""
    return json.dumps({"inputs": inputs, **fields}).encode()


def infer(
    model: str, body: bytes, *headers: str | bytes, version: str = "", method: str = "POST"
) -> bytes:
    """Build an infer request of one body."""
    return request(method, infer_path(model, version), body, headers)


def infer_path(model: str, version: str = "") -> str:
    """Return the path of the infer route, with a version where one is given."""
    between = f"/versions/{version}" if version else ""
    return f"/v2/models/{model}{between}/infer"


def binary(
    model: str, head: bytes, tail: bytes, *headers: str | bytes, length: object = None
) -> bytes:
    """Build an infer request whose tensors follow the JSON; `length` overrides what is told."""
    told = len(head) if length is None else length
    return infer(model, head + tail, *headers, f"{HEADER}: {told}")


def echo(datatype: str, data: Any, shape: Sequence[Any] | None = None, **fields: Any) -> bytes:
    """Build an infer request with JSON data for the echo model of a datatype."""
    dims = [len(data)] if shape is None else shape
    return infer(f"echo_{datatype}", document(tensor("IN", datatype, dims, data), **fields))


def echo_binary(
    datatype: str, tail: bytes, shape: Sequence[Any], *headers: str | bytes, **fields: Any
) -> bytes:
    """Build an infer request with binary data for the echo model of a datatype."""
    described = tensor("IN", datatype, shape, binary_data_size=len(tail))
    return binary(f"echo_{datatype}", document(described, **fields), tail, *headers)


def echo_text(datatype: str, data: str, shape: Sequence[Any]) -> bytes:
    """Build an infer request whose `data` is JSON text that no Python value stands for."""
    marked = document(tensor("IN", datatype, shape, "DATA"))
    return infer(f"echo_{datatype}", marked.replace(b'"DATA"', data.encode()))


def texts(*values: bytes) -> bytes:
    """Lay out BYTES elements."""
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def output(name: str, **parameters: Any) -> dict[str, Any]:
    """Ask for an output."""
    return {"name": name, "parameters": parameters} if parameters else {"name": name}
