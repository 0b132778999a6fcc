"""An infer request's body -> InferCall.

Decides whether a body is a well-formed v2 infer request, in any of its forms: JSON, JSON followed
by binary tensors, raw binary. What it judges malformed is a fault with the path of the field, and
Triton's words where Triton has some. What only the model can judge (which inputs it has, of what
datatype and shape) is left to Triton. Called by the decode stage of a request.
"""

from dataclasses import dataclass
from typing import Any

from gateway.codec.binary_tail import BinaryTail, framing_hint, parse_header_length, split_body
from gateway.codec.datatypes import DATATYPES, Datatype
from gateway.codec.json_document import parse_document
from gateway.codec.json_tensor import tensor_bytes
from gateway.codec.raw_request import decode_raw
from gateway.codec.request_fields import (
    MAX_ENTRIES,
    check_entries,
    checked_text,
    checked_unsigned,
    name_of,
    object_of,
    refuse_shared_memory,
    requested_outputs,
    shape_of,
    unparsable,
)
from gateway.codec.request_parameters import request_parameters
from gateway.codec.tensor_size import check_byte_size, element_count
from gateway.codec.types import InferCall, InputTensor, OutputRequest
from gateway.faults import Fault
from routing.types import ModelSpec

__all__ = ["InferDecoder", "parse_header_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferDecoder:
    """Reads infer requests.

    `max_tensor_bytes` bounds each input by its shape, before memory is taken for it; `max_tensors`
    bounds inputs and outputs each, `max_batch_rows` the first dimension where models batch. Without
    `strict_integers` JSON integers too large for a narrow datatype wrap around, as in Triton.
    Bodies whose JSON has at least `simd_from_bytes` bytes are parsed by simdjson.
    """

    max_tensor_bytes: int
    max_tensors: int = MAX_ENTRIES
    max_batch_rows: int = 65_536
    strict_integers: bool = True
    simd_from_bytes: int = 65_536

    def decode(self, body: bytes, header_length: int | None, spec: ModelSpec) -> InferCall:
        """Decode one uncompressed body for the model version that will serve it.

        `header_length` is what `parse_header_length` returned; 0 announces a raw binary request.
        Binary inputs are views into `body`. Raises only `Fault`.
        """
        if header_length == 0:
            return decode_raw(body, spec, max_tensor_bytes=self.max_tensor_bytes)
        text, rest = split_body(body, header_length)
        document = self._document(text, body, header_length)
        tail = BinaryTail(rest, spec.model)
        inputs = [
            self._input(entry, f"inputs[{at}]", tail, spec)
            for at, entry in enumerate(_input_entries(document, self.max_tensors))
        ]
        tail.check_used_up()
        parameters, binary_default = request_parameters(object_of(document, "", "parameters"))
        return InferCall(
            model=spec.model,
            version=str(spec.version),
            inputs=inputs,
            id=checked_text(document.get("id", ""), "", "id"),
            parameters=parameters,
            outputs=_outputs(document, spec, self.max_tensors),
            binary_default=binary_default,
        )

    def _document(self, text: bytes, body: bytes, header_length: int | None) -> dict[str, Any]:
        try:
            return parse_document(text, simd_from_bytes=self.simd_from_bytes)
        except Fault as fault:
            hint = framing_hint(body, header_length)
            raise Fault.invalid(fault.message + hint) from fault

    def _input(self, entry: Any, where: str, tail: BinaryTail, spec: ModelSpec) -> InputTensor:
        if type(entry) is not dict:
            raise unparsable(where, "expected an object")
        parameters = object_of(entry, where, "parameters")
        _check_one_source(entry, parameters, where)
        refuse_shared_memory(parameters, where)
        name = name_of(entry, where)
        datatype = _datatype_of(entry, name, where)
        shape = shape_of(entry, where)
        count = element_count(
            shape, datatype, name=name, where=where, max_tensor_bytes=self.max_tensor_bytes
        )
        if spec.max_batch_size > 0 and shape and shape[0] > self.max_batch_rows:
            reason = f"a batch of {shape[0]} rows, at most {self.max_batch_rows} are taken"
            raise unparsable(f"{where}.shape", reason)
        raw: bytes | memoryview
        if "data" in entry:
            raw = tensor_bytes(
                entry["data"],
                datatype,
                count=count,
                path=f"{where}.data",
                strict_integers=self.strict_integers,
            )
        else:
            raw = tail.take(_binary_size(parameters, where), name)
            check_byte_size(raw, datatype, count, name=name, model=spec.model)
        return InputTensor(name, datatype.name, shape, raw)


def _outputs(document: dict[str, Any], spec: ModelSpec, most: int) -> list[OutputRequest]:
    """Read the wanted outputs; classifying text ends a Triton 2.51, so it is refused here."""
    wanted = requested_outputs(document, most)
    for at, output in enumerate(wanted):
        if output.classification and _is_text(output.name, spec):
            raise Fault.invalid(
                f"outputs[{at}].parameters.classification: output '{output.name}' is of type "
                "BYTES, which cannot be classified"
            )
    return wanted


def _is_text(output: str, spec: ModelSpec) -> bool:
    return any(o.name == output and o.datatype == "BYTES" for o in spec.outputs)


def _input_entries(document: dict[str, Any], most: int) -> list[Any]:
    if "inputs" not in document:
        raise unparsable("inputs", "attempt to access non-existing object member 'inputs'")
    entries = document["inputs"]
    if type(entries) is not list or not entries:
        raise unparsable("inputs", "expected a non-empty array of objects")
    check_entries(len(entries), "inputs", most)
    return entries


def _check_one_source(entry: dict[str, Any], parameters: dict[str, Any], where: str) -> None:
    found = ["data"] if "data" in entry else []
    if parameters:
        found += [key for key in ("binary_data_size", "shared_memory_region") if key in parameters]
    if len(found) != 1:
        but = " set" + "".join(f" '{key}'" for key in found) if found else " no field is set"
        raise Fault.invalid(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            f"'parameters', 'shared_memory_region' in 'parameters'. But{but}, see '{where}'"
        )


def _datatype_of(entry: dict[str, Any], name: str, where: str) -> Datatype:
    wanted = entry.get("datatype")
    if type(wanted) is not str:
        raise unparsable(f"{where}.datatype", "expected a string")
    datatype = DATATYPES.get(wanted)
    if datatype is None:
        raise Fault.invalid(
            f"invalid datatype for input {name}: '{where}.datatype' is '{wanted[:20]}', "
            f"not one of {', '.join(DATATYPES)}"
        )
    return datatype


def _binary_size(parameters: dict[str, Any], where: str) -> int:
    return checked_unsigned(
        parameters["binary_data_size"], f"{where}.parameters", "binary_data_size"
    )
