"""Raw binary requests: a body that is nothing but the bytes of the model's one input.

Decides the shape from the model's configuration and the body's length, as Triton's HTTP front end
does when Inference-Header-Content-Length is 0; the gRPC front end has no such form. Refuses to look
into the bytes. Called by the infer request reader.
"""

import math

from gateway.codec.datatypes import DATATYPES
from gateway.codec.tensor_size import LENGTH, check_byte_size, element_count
from gateway.codec.types import InferCall, InputTensor
from gateway.faults import Fault
from routing.types import ModelSpec, TensorSpec


def decode_raw(body: bytes, spec: ModelSpec, *, max_tensor_bytes: int) -> InferCall:
    """Build the call of a raw request: no id, no parameters, every output wanted in binary form."""
    source = _sole_input(spec)
    datatype = DATATYPES[source.datatype]
    if datatype.size is None:
        _check_one_string(source)
        dims, raw = source.dims, LENGTH.pack(len(body)) + body
    else:
        dims, raw = _deduced_dims(source.dims, datatype.size, len(body)), body
    shape = [1, *dims] if spec.max_batch_size > 0 else list(dims)
    count = element_count(
        shape, datatype, name=source.name, where="raw_input", max_tensor_bytes=max_tensor_bytes
    )
    check_byte_size(raw, datatype, count, name="raw_input", model=spec.model)
    return InferCall(
        model=spec.model,
        version=str(spec.version),
        inputs=[InputTensor(source.name, source.datatype, shape, raw)],
        binary_default=True,
    )


def _sole_input(spec: ModelSpec) -> TensorSpec:
    if len(spec.inputs) != 1:
        raise Fault.invalid(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(spec.inputs)} inputs in '{spec.model}' model configuration"
        )
    source = spec.inputs[0]
    if source.dims.count(-1) > 1:
        raise Fault.invalid(
            f"The shape of the raw input '{source.name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    return source


def _check_one_string(source: TensorSpec) -> None:
    if math.prod(source.dims) != 1:
        raise Fault.invalid(
            f"For BYTE datatype raw input '{source.name}', the model must have input shape [1]"
        )


def _deduced_dims(dims: tuple[int, ...], element_bytes: int, body_bytes: int) -> tuple[int, ...]:
    """Put the number that fits the body in the place of -1; what is left over is found later."""
    step_bytes = element_bytes * math.prod(dim for dim in dims if dim != -1)
    variable = body_bytes // step_bytes if step_bytes else 0
    return tuple(variable if dim == -1 else dim for dim in dims)
