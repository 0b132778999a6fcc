"""Generate requests -> InferCall, InferReply -> the JSON of one answer.

Decides how a flat JSON object becomes tensors and parameters by the model's signature, as Triton's
generate extension does: a key that names an input is a tensor, of one value or a list, every other
key is a parameter; `parameters` may hold more of both. What an infer request may not hold is a
fault here too. Refuses to know how many answers there are and how they are framed. Called by the
decode and reply stages of generate requests.

What Triton knows as a parameter of an infer request (`sequence_id`, `sequence_start`,
`sequence_end`, `priority`, `timeout`) means the same here: gRPC, which the servers are called by,
has no way to hand such a name to the model as a mere word, which is what Triton's own generate
does. `triton_*`, which gRPC refuses, is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.codec.datatypes import DATATYPES
from gateway.codec.infer_reply import parameter_values
from gateway.codec.json_document import parse_members
from gateway.codec.json_output import data_text
from gateway.codec.json_tensor import tensor_bytes
from gateway.codec.request_fields import check_entries, checked_text
from gateway.codec.request_parameters import checked_parameter
from gateway.codec.types import InferCall, InferReply, InputTensor, OutputTensor, Scalar
from gateway.faults import Fault
from routing.types import ModelSpec, TensorSpec

_NESTED = "parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateDecoder:
    """Reads generate requests; `strict_integers` as in `InferDecoder`."""

    strict_integers: bool = True

    def decode(self, body: bytes, spec: ModelSpec) -> InferCall:
        """Decode one uncompressed body for the model version that will serve it.

        Raises only `Fault`. An input given twice is one; of other keys the last one counts.
        """
        members = parse_members(body)
        reader = _Reader(spec, strict_integers=self.strict_integers)
        reader.take([member for member in members if member[0] != _NESTED], "")
        found = dict(members)
        if _NESTED in found:
            reader.take_nested(found[_NESTED])
        has_id = "id" in found and "id" not in reader.sources
        return InferCall(
            model=spec.model,
            version=str(spec.version),
            inputs=reader.inputs,
            id=checked_text(found["id"], "", "id") if has_id else "",
            parameters=reader.parameters,
        )


class _Reader:
    """Sorts the members of a request into inputs and parameters."""

    def __init__(self, spec: ModelSpec, *, strict_integers: bool) -> None:
        self.sources = {tensor.name: tensor for tensor in spec.inputs}
        self.inputs: list[InputTensor] = []
        self.parameters: dict[str, Scalar] = {}
        self._batches = spec.max_batch_size > 0
        self._strict_integers = strict_integers

    def take(self, members: Sequence[tuple[str, Any]], where: str) -> None:
        """Read the members of the object at `where`, in order."""
        check_entries(len(members), where or "request")
        for key, value in members:
            source = self.sources.get(key)
            if source is not None:
                self._add_input(source, value)
            elif not key.startswith("triton_"):
                self.parameters[key] = checked_parameter(value, where, key)

    def take_nested(self, members: Any) -> None:
        """Read the object under `parameters`; its faults are told with Triton's prefix."""
        if _NESTED in self.sources:
            raise Fault.invalid(
                f"Keyword: '{_NESTED}' for nested schema also given as input tensor name"
            )
        if type(members) is not tuple:
            raise Fault.invalid(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object "
                "as object"
            )
        try:
            self.take(members, _NESTED)
        except Fault as fault:
            raise Fault.invalid(f"Converting keyword: '{_NESTED}': {fault.message}") from fault

    def _add_input(self, source: TensorSpec, value: Any) -> None:
        name = source.name
        if any(given.name == name for given in self.inputs):
            raise Fault.invalid(f"input '{name}' already exists in request")
        data = value if type(value) is list else [value]
        shape = _shape(source, len(data), batches=self._batches)
        raw = tensor_bytes(
            data,
            DATATYPES[source.datatype],
            count=len(data),
            path=name,
            strict_integers=self._strict_integers,
        )
        self.inputs.append(InputTensor(name, source.datatype, shape, raw))


def _shape(source: TensorSpec, count: int, *, batches: bool) -> list[int]:
    """Spread `count` elements over the dims: the fixed ones first, the rest to the last -1."""
    shape = [-1, *source.dims] if batches else list(source.dims)
    left = count
    for dim in shape:
        if dim != -1:
            if dim == 0 or left % dim:
                raise _no_shape(source)
            left //= dim
    for at in range(len(shape) - 1, -1, -1):
        if shape[at] == -1:
            shape[at], left = left, 1
    if left != 1:
        raise _no_shape(source)
    return shape


def _no_shape(source: TensorSpec) -> Fault:
    return Fault.invalid(
        f"The schema can not convert input '{source.name}' to tensor with proper shape"
    )


def encode_generated(reply: InferReply) -> bytes:
    """Write one answer as JSON: outputs, parameters and the model, sorted by key.

    A tensor of one element is that element, others are flat lists. Where names clash, the model's
    come first, then outputs. Faults as in `encode_reply`.
    """
    document = parameter_values(reply.parameters)
    for output in reply.outputs:
        document[output.name] = orjson.Fragment(_value_text(output))
    document["model_name"] = reply.model
    document["model_version"] = reply.version
    if reply.id:
        document["id"] = reply.id
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _value_text(output: OutputTensor) -> bytes:
    text = data_text(output)
    return text[1:-1] if math.prod(output.shape) == 1 else text
