"""Calls become exactly the messages Triton reads, replies exactly what it wrote."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.codec.types import (
    InferCall,
    InferReply,
    InputTensor,
    OutputRequest,
    OutputTensor,
    Scalar,
)
from gateway.faults import Fault, Kind, Origin
from gateway.upstream.messages import decode_event, decode_reply, encode_call, read_parameters

UINT64 = st.integers(0, 2**64 - 1)


def call(**fields: Any) -> InferCall:
    return InferCall(**{"model": "m", "version": "1", "inputs": [], **fields})


def sent(**fields: Any) -> Any:
    return pb.ModelInferRequest.FromString(b"".join(encode_call(call(**fields))))


def parameter(name: str, value: Scalar) -> Any:
    return sent(parameters={name: value}).parameters[name]


def replied(response: Any) -> InferReply:
    return decode_reply(response.SerializeToString())


def test_names_version_and_id_arrive() -> None:
    request = sent(model="é", version="12", id="r1")
    assert (request.model_name, request.model_version, request.id) == ("é", "12", "r1")


def test_tensors_arrive_raw_in_their_order() -> None:
    request = sent(
        inputs=[
            InputTensor("A", "INT32", [2], b"\1\0\0\0\2\0\0\0"),
            InputTensor("EMPTY", "FP32", (0, 3), b""),
            InputTensor("VIEW", "BYTES", [1], memoryview(b"..abc..")[2:5]),
        ]
    )
    assert [(i.name, i.datatype, list(i.shape)) for i in request.inputs] == [
        ("A", "INT32", [2]),
        ("EMPTY", "FP32", [0, 3]),
        ("VIEW", "BYTES", [1]),
    ]
    assert list(request.raw_input_contents) == [b"\1\0\0\0\2\0\0\0", b"", b"abc"]
    assert not any(i.HasField("contents") for i in request.inputs)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_tensors_of_any_size_keep_their_length(size: int) -> None:
    raw = b"\xab" * size
    request = sent(inputs=[InputTensor("A", "UINT8", [size], raw)] * 2)
    assert list(request.raw_input_contents) == [raw, raw]


@given(
    st.lists(
        st.builds(
            InputTensor,
            st.text(st.characters(exclude_categories=["Cs"])),
            st.sampled_from(["FP32", "BYTES"]),
            st.lists(st.integers(0, 2**63 - 1), max_size=4),
            st.binary(max_size=300),
        ),
        max_size=5,
    )
)
def test_any_tensors_survive(inputs: list[InputTensor]) -> None:
    request = sent(inputs=inputs)
    arrived = [
        InputTensor(i.name, i.datatype, list(i.shape), raw)
        for i, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    ]
    assert arrived == inputs


def test_outputs_arrive_with_their_classes_and_nothing_of_the_http_framing() -> None:
    request = sent(
        outputs=[OutputRequest("A", binary=True), OutputRequest("B", classification=3)],
        binary_default=True,
    )
    assert [o.name for o in request.outputs] == ["A", "B"]
    assert dict(request.outputs[0].parameters) == {}
    assert read_parameters(request.outputs[1].parameters) == {"classification": 3}
    assert dict(request.parameters) == {}


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("x", True, "bool_param", True),
        ("x", False, "bool_param", False),
        ("x", 0, "int64_param", 0),
        ("x", -(2**63), "int64_param", -(2**63)),
        ("x", 2**63 - 1, "int64_param", 2**63 - 1),
        ("x", 2**63, "double_param", 2.0**63),
        ("x", 2**80, "double_param", 2.0**80),
        ("x", 0.5, "double_param", 0.5),
        ("x", "", "string_param", ""),
        ("x", "ä\n", "string_param", "ä\n"),
        ("sequence_id", 7, "int64_param", 7),
        ("sequence_id", 2**63 - 1, "int64_param", 2**63 - 1),
        ("sequence_id", 2**63, "int64_param", -(2**63)),
        ("sequence_id", 2**64 - 1, "int64_param", -1),
        ("sequence_id", "seven", "string_param", "seven"),
        ("sequence_start", True, "bool_param", True),
        ("timeout", 5_000_000, "int64_param", 5_000_000),
        ("priority", 0, "uint64_param", 0),
        ("priority", 2**64 - 1, "uint64_param", 2**64 - 1),
    ],
)
def test_parameters_take_the_field_triton_reads(
    name: str, value: Scalar, field: str, expected: Scalar
) -> None:
    arrived = parameter(name, value)
    assert arrived.WhichOneof("parameter_choice") == field
    assert getattr(arrived, field) == expected
    assert type(getattr(arrived, field)) is type(expected)


@given(UINT64)
def test_a_sequence_id_is_the_same_64_bits(number: int) -> None:
    assert parameter("sequence_id", number).int64_param % 2**64 == number


@given(UINT64)
def test_a_priority_stays_unsigned(number: int) -> None:
    assert parameter("priority", number).uint64_param == number


@pytest.mark.parametrize(
    "fields",
    [{"id": "\ud800"}, {"parameters": {"x": "\udfff"}}, {"model": "\ud800"}],
)
def test_what_protobuf_cannot_carry_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        encode_call(call(**fields))
    assert caught.value.kind is Kind.INVALID


def test_a_reply_keeps_the_order_of_its_outputs() -> None:
    kind = pb.ModelInferResponse.InferOutputTensor
    reply = replied(
        pb.ModelInferResponse(
            model_name="m",
            model_version="3",
            id="r1",
            outputs=[
                kind(name="B", datatype="INT32", shape=[1]),
                kind(name="A", datatype="FP32", shape=[0]),
                kind(name="C", datatype="FP32", shape=[1]),
            ],
            raw_output_contents=[b"\1\0\0\0", b""],
        )
    )
    assert (reply.model, reply.version, reply.id, reply.parameters) == ("m", "3", "r1", {})
    assert reply.outputs == [
        OutputTensor("B", "INT32", (1,), b"\1\0\0\0"),
        OutputTensor("A", "FP32", (0,), b""),
        OutputTensor("C", "FP32", (1,), b""),  # an output without bytes
    ]


def test_the_parameters_of_a_reply_are_plain_values() -> None:
    response = pb.ModelInferResponse()
    response.parameters["flag"].bool_param = True
    response.parameters["count"].int64_param = -5
    response.parameters["large"].uint64_param = 2**64 - 1
    response.parameters["share"].double_param = 0.5
    response.parameters["text"].string_param = "t"
    response.parameters["unset"].SetInParent()
    assert replied(response).parameters == {
        "flag": True,
        "count": -5,
        "large": 2**64 - 1,
        "share": 0.5,
        "text": "t",
        "unset": "",
    }


def test_what_is_no_reply_is_a_broken_answer() -> None:
    with pytest.raises(Fault) as caught:
        decode_reply(b"\xff\xff\xff\xff")
    assert (caught.value.kind, caught.value.origin) == (Kind.BROKEN, Origin.UPSTREAM)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_reply_or_a_fault(message: bytes) -> None:
    with contextlib.suppress(Fault):
        decode_reply(message)


# --- streams


def event(*, final: bool | None, outputs: int = 0, error: str = "") -> Any:
    response = pb.ModelInferResponse(model_name="m", model_version="1")
    for _ in range(outputs):
        response.outputs.add(name="OUT", datatype="INT32", shape=[1])
        response.raw_output_contents.append(b"abcd")
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    message = pb.ModelStreamInferResponse(error_message=error, infer_response=response)
    return decode_event(message.SerializeToString())


def test_a_call_for_a_stream_asks_to_be_told_of_its_end() -> None:
    asked = call(parameters={"p": 1}, inputs=[InputTensor("IN", "INT8", [1], b"x")])
    message = pb.ModelInferRequest.FromString(b"".join(encode_call(asked, streamed=True)))
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    assert message.parameters["p"].int64_param == 1
    assert message.raw_input_contents == [b"x"]
    assert "triton_enable_empty_final_response" not in sent().parameters


@pytest.mark.parametrize("final", [True, False, None])
def test_an_answer_in_a_stream_is_a_reply_without_triton_s_own_mark(final: bool | None) -> None:
    reply, last = event(final=final, outputs=1)
    assert isinstance(reply, InferReply)
    assert (reply.parameters, reply.outputs[0].raw, last) == ({}, b"abcd", bool(final))


def test_an_end_without_outputs_is_no_answer() -> None:
    assert event(final=True) == (None, True)


def test_an_answer_without_outputs_is_one_unless_it_is_the_end() -> None:
    reply, last = event(final=False)
    assert isinstance(reply, InferReply)
    assert not last


@pytest.mark.parametrize("final", [True, False, None])
def test_an_error_in_a_stream_is_its_text(final: bool | None) -> None:
    assert event(final=final, error="it raised") == ("it raised", bool(final))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_a_fault(message: bytes) -> None:
    with contextlib.suppress(Fault):
        decode_event(message)
