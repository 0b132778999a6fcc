"""InferCall -> the bytes of a ModelInferRequest, ModelInferResponse -> InferReply.

Tensor bytes are never put into a protobuf message: joining two protobuf encodings merges them, so
the message without tensors is serialised and each tensor follows as one more occurrence of the
repeated field `raw_input_contents`. That saves every copy of the tensors.
"""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2 as pb

from gateway.codec.types import InferCall, InferReply, OutputTensor, Scalar
from gateway.faults import Blame, Fault, Kind, Origin

M = TypeVar("M", bound=Message)

_RAW_INPUT_TAG = bytes([(7 << 3) | 2])  # field raw_input_contents, length-delimited
_INT64_PARAMETERS = frozenset({"sequence_id", "timeout"})  # Triton refuses uint64_param for these
_UINT64_PARAMETERS = frozenset({"priority"})
_INT64_MAX = 2**63 - 1
_FINAL = "triton_final_response"
"""Parameter of every response inside a stream: whether it is the last one of its request."""


def encode_call(call: InferCall, *, streamed: bool = False) -> list[bytes | memoryview]:
    """Return the ModelInferRequest, serialised, in pieces: tensors are not copied.

    One for a stream asks to be told of its end. Raises Fault for text that protobuf cannot carry
    (lone surrogates).
    """
    try:
        head = _head(call)
    except UnicodeEncodeError:
        raise Fault.invalid("names, ids and parameters must be valid UTF-8") from None
    if streamed:
        head.parameters["triton_enable_empty_final_response"].bool_param = True
    parts: list[bytes | memoryview] = [head.SerializeToString()]
    for tensor in call.inputs:
        parts.append(_RAW_INPUT_TAG + _varint(len(tensor.raw)))
        parts.append(tensor.raw)
    return parts


def decode_reply(message: bytes) -> InferReply:
    """Return the reply in a serialised ModelInferResponse.

    Triton sends one raw entry for each output, in the order of `outputs`. Raises Fault for bytes
    that are no such message.
    """
    return _reply(parse(pb.ModelInferResponse, message))


def decode_event(message: bytes) -> tuple[InferReply | str | None, bool]:
    """Return what one message of a stream carries, and whether it is the last one of its request.

    That is an answer, the text of an error, or nothing but the end. Raises Fault for bytes that
    are no such message.
    """
    event = parse(pb.ModelStreamInferResponse, message)
    response = event.infer_response
    final = _FINAL in response.parameters and response.parameters.pop(_FINAL).bool_param
    if event.error_message:
        return event.error_message, final
    if final and not response.outputs:
        return None, True
    return _reply(response), final


def _reply(response: pb.ModelInferResponse) -> InferReply:
    raw = response.raw_output_contents
    return InferReply(
        model=response.model_name,
        version=response.model_version,
        id=response.id,
        parameters=read_parameters(response.parameters) if response.parameters else {},
        outputs=[
            OutputTensor(
                name=output.name,
                datatype=output.datatype,
                shape=tuple(output.shape),
                raw=raw[i] if i < len(raw) else b"",
            )
            for i, output in enumerate(response.outputs)
        ],
    )


def parse(message_type: type[M], message: bytes) -> M:
    """Return the protobuf message; raises Fault (BROKEN) for bytes that are none."""
    try:
        return message_type.FromString(message)
    except DecodeError:
        raise Fault(
            Kind.BROKEN,
            "the server's answer is not a message of Triton's protocol",
            origin=Origin.UPSTREAM,
            blame=Blame.SERVER,
        ) from None


def read_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Scalar]:
    """Return protobuf parameters as plain values."""
    return {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
        for name, parameter in parameters.items()
    }


def _head(call: InferCall) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=call.model, model_version=call.version, id=call.id)
    for name, value in call.parameters.items():
        _set_parameter(request.parameters[name], name, value)
    for tensor in call.inputs:
        added = request.inputs.add()
        added.name = tensor.name
        added.datatype = tensor.datatype
        added.shape.extend(tensor.shape)
    _add_outputs(request, call)
    return request


def _add_outputs(request: pb.ModelInferRequest, call: InferCall) -> None:
    for wanted in call.outputs:
        output = request.outputs.add()
        output.name = wanted.name
        if wanted.classification > 0:  # Triton refuses 0 over gRPC
            output.parameters["classification"].int64_param = wanted.classification


def _set_parameter(parameter: pb.InferParameter, name: str, value: Scalar) -> None:
    if isinstance(value, bool):  # before int: bool is a subclass of it
        parameter.bool_param = value
    elif isinstance(value, int):
        _set_integer(parameter, name, value)
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _set_integer(parameter: pb.InferParameter, name: str, value: int) -> None:
    if name in _UINT64_PARAMETERS:
        parameter.uint64_param = value
    elif value <= _INT64_MAX:
        parameter.int64_param = value
    elif name in _INT64_PARAMETERS:
        parameter.int64_param = value - 2**64  # Triton reads the two's complement back
    else:
        parameter.double_param = float(value)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append((number & 0x7F) | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
