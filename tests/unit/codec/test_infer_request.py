import json
import struct
from dataclasses import replace

import pytest

from gateway.codec.infer_request import InferDecoder, parse_header_length
from gateway.codec.types import InferCall, OutputRequest
from gateway.faults import Fault, Kind
from routing.types import ModelSpec, TensorSpec

SPEC = ModelSpec("m", 7, (TensorSpec("IN", "INT32", (-1,)),), (TensorSpec("OUT", "INT32", (-1,)),))
HEADER = "Inference-Header-Content-Length"

GOOD = {"name": "IN", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}


def decode(
    body: bytes, header_length: int | None = None, spec: ModelSpec = SPEC, **options
) -> InferCall:
    options = {"max_tensor_bytes": 1 << 20} | options
    return InferDecoder(**options).decode(body, header_length, spec)


def request(**fields) -> bytes:
    return json.dumps({"inputs": [GOOD]} | fields).encode()


def one_input(**fields) -> bytes:
    """The body of a good request, with some fields of its input replaced; None takes one out."""
    entry = {key: value for key, value in (GOOD | fields).items() if value is not Ellipsis}
    return json.dumps({"inputs": [entry]}).encode()


def fault_of(body: bytes, header_length: int | None = None, **options) -> Fault:
    """The fault of a bad body, which must be the same whichever parser reads it."""
    faults = []
    for threshold in (0, 1 << 40):
        with pytest.raises(Fault) as caught:
            decode(body, header_length, simd_from_bytes=threshold, **options)
        faults.append(caught.value)
    assert repr(faults[0]) == repr(faults[1])
    return faults[0]


def refusal(body: bytes, header_length: int | None = None, **options) -> str:
    fault = fault_of(body, header_length, **options)
    assert fault.kind is Kind.INVALID
    return fault.message


def test_a_plain_request() -> None:
    call = decode(request())
    (only,) = call.inputs
    assert (only.name, only.datatype, only.shape) == ("IN", "INT32", [3])
    assert only.raw == struct.pack("<3i", 1, 2, 3)
    assert (call.model, call.version, call.id) == ("m", "7", "")
    assert (call.parameters, call.outputs, call.binary_default) == ({}, [], False)


def test_all_fields_of_a_request() -> None:
    call = decode(
        request(
            id="line one\nline two",
            parameters={"priority": 2, "note": "x", "binary_data_output": True},
            outputs=[
                {"name": "OUT", "parameters": {"binary_data": True, "classification": 2}},
                {"name": "B", "parameters": {"unknown": []}},
                {"name": "C", "parameters": {}, "unknown": None},
            ],
        )
    )
    assert call.id == "line one\nline two"
    assert call.parameters == {"priority": 2, "note": "x"}
    assert call.outputs == [OutputRequest("OUT", True, 2), OutputRequest("B"), OutputRequest("C")]
    assert call.binary_default is True


def test_unknown_keys_are_ignored_everywhere() -> None:
    body = request(stream=True, extra={"a": [None]})
    assert decode(body).inputs == decode(request()).inputs
    assert decode(one_input(parameters={"unknown": 1}, extra=None)).inputs == decode(body).inputs


def test_empty_collections_are_as_good_as_absent_ones() -> None:
    call = decode(request(id="", parameters={}, outputs=[]))
    assert (call.id, call.parameters, call.outputs) == ("", {}, [])


@pytest.mark.parametrize("threshold", [0, 1 << 40])
def test_inputs_stay_in_order_and_duplicates_are_left_to_triton(threshold) -> None:
    names = ["b", "a", "b"]
    body = request(inputs=[GOOD | {"name": name} for name in names])
    assert [entry.name for entry in decode(body, simd_from_bytes=threshold).inputs] == names


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"shape": "3"}, "'inputs[0].shape': expected an array of non-negative integers"),
        ({"shape": None}, "'inputs[0].shape': expected an array"),
        ({"shape": {}}, "'inputs[0].shape': expected an array"),
        ({"shape": ...}, "'inputs[0].shape': expected an array"),
        ({"shape": [3.0]}, "'inputs[0].shape': expected an array"),
        ({"shape": ["3"]}, "'inputs[0].shape': expected an array"),
        ({"shape": [True, 3]}, "'inputs[0].shape': expected an array"),
        ({"shape": [[3]]}, "'inputs[0].shape': expected an array"),
        ({"shape": [None]}, "'inputs[0].shape': expected an array"),
        ({"shape": [-1]}, "'inputs[0].shape': expected an array"),
        ({"shape": [2, -3]}, "'inputs[0].shape': expected an array"),
        ({"shape": [2**63]}, "'inputs[0].shape': expected an array"),
        ({"shape": [2**64]}, "'inputs[0].shape': expected an array"),
        ({"shape": [1] * 1025}, "'inputs[0].shape': more than 1024 dimensions"),
        ({"shape": [2**63 - 1]}, "byte size overflow for input 'IN'"),
        ({"shape": [2**32, 2**32], "data": []}, "total element count to exceed maximum size"),
        ({"shape": [2]}, "'inputs[0].data': Shape does not match true shape of 'data' field"),
        ({"shape": [4]}, "'inputs[0].data': Shape does not match true shape of 'data' field"),
        ({"data": {"b64": "AQID"}}, "'inputs[0].data': expected an array"),
        ({"data": "123"}, "'inputs[0].data': expected an array"),
        ({"data": None}, "'inputs[0].data': expected an array"),
        ({"data": None, "shape": [0]}, "'inputs[0].data': expected an array"),
        ({"data": 7}, "'inputs[0].data': expected an array"),
        ({"data": [{}]}, "'inputs[0].data': expected integers"),
        ({"data": [None]}, "'inputs[0].data': expected integers"),
        ({"data": [1, "2", 3]}, "'inputs[0].data': expected integers"),
        ({"data": [1, 2.5, 3]}, "'inputs[0].data': expected integers"),
        ({"data": [True, False, True]}, "'inputs[0].data': expected integers"),
        ({"data": [1, 2**31, 3]}, "'inputs[0].data': element 1, 2147483648, is out of range"),
        ({"data": [1, 2, 2**64]}, "'inputs[0].data': expected integers"),
        ({"datatype": "STRING"}, "invalid datatype for input IN: 'inputs[0].datatype' is 'STRING'"),
        ({"datatype": "int32"}, "invalid datatype for input IN"),
        ({"datatype": ""}, "invalid datatype for input IN"),
        ({"datatype": 5}, "'inputs[0].datatype': expected a string"),
        ({"datatype": ...}, "'inputs[0].datatype': expected a string"),
        ({"name": 7}, "'inputs[0].name': expected a string"),
        ({"name": ""}, "'inputs[0].name': expected a non-empty string"),
        ({"name": None}, "'inputs[0].name': expected a non-empty string"),
        ({"name": ...}, "'inputs[0].name': expected a non-empty string"),
        ({"name": "a\0b"}, "'inputs[0].name': a NUL character"),
        ({"name": "n" * 65_537}, "'inputs[0].name': longer than 65536 characters"),
        ({"parameters": None}, "'inputs[0].parameters': expected an object"),
        ({"parameters": []}, "'inputs[0].parameters': expected an object"),
        ({"data": ...}, "But no field is set, see 'inputs[0]'"),
        ({"parameters": {"binary_data_size": 12}}, "But set 'data' 'binary_data_size'"),
        (
            {"parameters": {"binary_data_size": 4, "shared_memory_region": "r"}, "data": ...},
            "But set 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
def test_a_bad_input_is_refused_with_its_path(fields, said) -> None:
    assert said in refusal(one_input(**fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"inputs": None}, "'inputs': expected a non-empty array of objects"),
        ({"inputs": {}}, "'inputs': expected a non-empty array"),
        ({"inputs": {"name": "IN"}}, "'inputs': expected a non-empty array"),
        ({"inputs": []}, "'inputs': expected a non-empty array"),
        ({"inputs": "x"}, "'inputs': expected a non-empty array"),
        ({"inputs": [7]}, "'inputs[0]': expected an object"),
        ({"inputs": [GOOD, [GOOD]]}, "'inputs[1]': expected an object"),
        ({"inputs": [GOOD] * 4097}, "'inputs': more than 4096 entries"),
        ({"outputs": None}, "'outputs': expected an array of objects"),
        ({"outputs": {"name": "OUT"}}, "'outputs': expected an array"),
        ({"outputs": ["OUT"]}, "'outputs[0]': expected an object"),
        ({"outputs": [{}]}, "'outputs[0].name': expected a non-empty string"),
        ({"outputs": [{"name": "A"}, {"name": 7}]}, "'outputs[1].name': expected a string"),
        ({"outputs": [{"name": "A"}] * 4097}, "'outputs': more than 4096 entries"),
        ({"outputs": [{"name": "A", "parameters": []}]}, "'outputs[0].parameters': expected"),
        ({"id": 12}, "'id': expected a string"),
        ({"id": None}, "'id': expected a string"),
        ({"id": "a\0b"}, "'id': a NUL character"),
        ({"id": "x" * 1_000_000}, "'id': longer than 65536 characters"),
        ({"parameters": []}, "'parameters': expected an object"),
        ({"parameters": None}, "'parameters': expected an object"),
        ({"parameters": {"priority": "1"}}, "'parameters.priority': expected an integer"),
        ({"parameters": {"x": {"y": 1}}}, "parameter 'x' has invalid type"),
    ],
)
def test_a_bad_request_is_refused_with_its_path(fields, said) -> None:
    assert said in refusal(request(**fields))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"binary_data": 1}, "'outputs[0].parameters.binary_data': expected a boolean"),
        ({"binary_data": None}, "'outputs[0].parameters.binary_data': expected a boolean"),
        ({"classification": -1}, "'outputs[0].parameters.classification': expected an integer"),
        ({"classification": 1.0}, "'outputs[0].parameters.classification': expected an integer"),
        ({"classification": True}, "'outputs[0].parameters.classification': expected an integer"),
        ({"classification": 2**63}, "'outputs[0].parameters.classification': expected an integer"),
    ],
)
def test_a_bad_output_parameter_is_refused_with_its_path(parameters, said) -> None:
    assert said in refusal(request(outputs=[{"name": "OUT", "parameters": parameters}]))


def test_inputs_are_required() -> None:
    assert "'inputs': attempt to access non-existing object member" in refusal(b'{"id": "x"}')


def test_shared_memory_is_refused_as_unsupported() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 12}
    for body, path in (
        (one_input(data=..., parameters=region), "'inputs[0]'"),
        (request(outputs=[{"name": "OUT", "parameters": region}]), "'outputs[0]'"),
    ):
        fault = fault_of(body)
        assert fault.kind is Kind.UNSUPPORTED
        assert path in fault.message


def test_the_strictness_about_integers_can_be_switched_off() -> None:
    body = one_input(datatype="INT8", data=[200, 1, 2])
    assert "out of range" in refusal(body)
    assert decode(body, strict_integers=False).inputs[0].raw == bytes([200, 1, 2])


def test_an_id_may_be_as_long_as_the_limit() -> None:
    assert len(decode(request(id="x" * 65_536)).id) == 65_536


def test_a_thousand_ones_are_a_shape() -> None:
    assert decode(one_input(shape=[1] * 1000, data=[5])).inputs[0].shape == [1] * 1000


@pytest.mark.parametrize(
    ("shape", "data", "count"),
    [([0], [], 0), ([2, 0], [[], []], 0), ([2, 0], [], 0), ([0], [1], 0), ([], [4], 1)],
)
def test_empty_tensors_and_scalars(shape, data, count) -> None:
    (only,) = decode(one_input(shape=shape, data=data)).inputs
    assert (only.shape, len(only.raw)) == (shape, 4 * count)


@pytest.mark.parametrize(
    "data", [["p", "q"], [["p"], ["q"]], [["p", "q"]], ["p", ["q"]], [[[["p"]]], "q"]]
)
def test_text_may_be_nested_like_numbers(data) -> None:
    (only,) = decode(one_input(datatype="BYTES", shape=[2, 1], data=data)).inputs
    assert only.raw == b"\1\0\0\0p\1\0\0\0q"


def test_of_repeated_keys_the_last_one_counts() -> None:
    body = (
        b'{"inputs": [], "id": "a", "id": "b", "inputs": [{"name": "IN", "datatype": "INT32",'
        b'"shape": [9], "shape": [1], "data": [1], "data": [2]}]}'
    )
    for threshold in (0, 1 << 40):
        call = decode(body, simd_from_bytes=threshold)
        assert (call.id, call.inputs[0].raw) == ("b", b"\2\0\0\0")


# Binary framing: JSON and tail.


def framed(document: dict, tail: bytes) -> tuple[bytes, int]:
    head = json.dumps(document).encode()
    return head + tail, len(head)


def binary(size: object, **fields) -> dict:
    entry = {key: value for key, value in GOOD.items() if key != "data"}
    return entry | {"parameters": {"binary_data_size": size}} | fields


def test_two_binary_inputs_with_a_json_one_between_them() -> None:
    body, header_length = framed(
        {"inputs": [binary(12), GOOD, binary(8, name="B", datatype="BYTES", shape=[1])]},
        struct.pack("<3i", 7, 8, 9) + b"\4\0\0\0text",
    )
    first, second, third = decode(body, header_length).inputs
    assert bytes(first.raw) == struct.pack("<3i", 7, 8, 9)
    assert second.raw == struct.pack("<3i", 1, 2, 3)
    assert bytes(third.raw) == b"\4\0\0\0text"
    assert isinstance(first.raw, memoryview)
    assert first.raw.obj is body


def test_an_empty_binary_input_needs_no_header_and_leaves_the_next_one_its_bytes() -> None:
    empty = binary(0, shape=[0])
    assert len(decode(json.dumps({"inputs": [empty]}).encode()).inputs[0].raw) == 0
    body, header_length = framed({"inputs": [empty, binary(4, shape=[1])]}, b"abcd")
    assert [bytes(entry.raw) for entry in decode(body, header_length).inputs] == [b"", b"abcd"]


def test_the_header_may_span_a_body_without_a_tail() -> None:
    assert decode(request(), len(request())).inputs == decode(request()).inputs


@pytest.mark.parametrize("size", ["12", -4, 12.0, None, True, 2**64, [12]])
def test_a_binary_size_that_is_no_size_is_refused(size) -> None:
    body, header_length = framed({"inputs": [binary(size)]}, bytes(12))
    assert "'inputs[0].parameters.binary_data_size': expected an integer" in refusal(
        body, header_length
    )


@pytest.mark.parametrize(
    ("size", "tail", "said"),
    [
        (12, 11, "unexpected size for input 'IN', expecting 1 additional bytes for model 'm'"),
        (2**31, 12, "unexpected size for input 'IN'"),
        (2**63, 12, "unexpected size for input 'IN'"),
        (12, 13, "unexpected additional input data for model 'm'"),
        (11, 11, "input byte size mismatch for input 'IN' for model 'm'. Expected 12, got 11"),
        (16, 16, "input byte size mismatch for input 'IN' for model 'm'. Expected 12, got 16"),
        (0, 0, "input byte size mismatch for input 'IN' for model 'm'. Expected 12, got 0"),
    ],
)
def test_sizes_that_do_not_add_up_are_refused_by_input(size, tail, said) -> None:
    body, header_length = framed({"inputs": [binary(size)]}, bytes(tail))
    assert said in refusal(body, header_length)


def test_a_tail_of_a_json_only_request_is_refused() -> None:
    body, header_length = framed({"inputs": [GOOD]}, b"x")
    assert "unexpected additional input data" in refusal(body, header_length)


def test_without_the_header_the_error_names_it() -> None:
    body, _ = framed({"inputs": [binary(12)]}, bytes(12))
    for message in (refusal(body), refusal(body[:-12])):
        assert HEADER in message
    assert HEADER not in refusal(b"{")


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_header_off_by_one_is_named(off_by) -> None:
    body, header_length = framed({"inputs": [binary(12)]}, bytes(12))
    message = refusal(body, header_length + off_by)
    assert message.startswith("failed to parse the request JSON buffer: ")
    assert HEADER in message


def test_a_header_beyond_the_body_is_named() -> None:
    assert HEADER in refusal(request(), len(request()) + 1)


def test_header_zero_is_a_raw_request() -> None:
    call = decode(struct.pack("<2i", 1, 2), parse_header_length(["0"]))
    assert call.inputs[0].shape == [2]
    assert call.binary_default


def test_an_empty_body_is_a_raw_request_only_with_the_header() -> None:
    """Triton takes the header as given then; here the caller learns what an empty body lacks."""
    assert decode(b"", 0).inputs[0].shape == [0]
    assert HEADER + ": 0" in refusal(b"")


def test_a_request_has_at_most_so_many_rows_where_models_batch() -> None:
    batching = replace(SPEC, max_batch_size=8)
    assert refusal(request(), spec=batching, max_batch_rows=2) == (
        "Unable to parse 'inputs[0].shape': a batch of 3 rows, at most 2 are taken"
    )
    assert decode(request(), spec=batching, max_batch_rows=3).rows() == 3
    assert decode(request(), max_batch_rows=2).inputs[0].shape == [3]  # no batch dimension
    assert decode(one_input(shape=[], data=[1]), spec=batching, max_batch_rows=1)


def test_a_request_names_at_most_so_many_tensors() -> None:
    two = json.dumps({"inputs": [GOOD, GOOD | {"name": "IN2"}]}).encode()
    assert refusal(two, max_tensors=1) == "Unable to parse 'inputs': more than 1 entries"
    outputs = request(outputs=[{"name": "A"}, {"name": "B"}])
    assert refusal(outputs, max_tensors=1) == "Unable to parse 'outputs': more than 1 entries"
    assert len(decode(two, max_tensors=2).inputs) == 2
