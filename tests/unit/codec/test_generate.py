import json
import struct
from typing import Any

import pytest

from gateway.codec.generate import GenerateDecoder, encode_generated
from gateway.codec.types import InferCall, InferReply, OutputTensor
from gateway.faults import Fault, Kind
from routing.types import ModelSpec, TensorSpec

SPEC = ModelSpec(
    "m",
    3,
    inputs=(
        TensorSpec("PROMPT", "BYTES", (1, 1)),
        TensorSpec("N", "INT32", (-1,)),
        TensorSpec("F", "FP32", (1,)),
        TensorSpec("FLAG", "BOOL", (1,)),
    ),
    outputs=(),
)


def decode(body: Any, spec: ModelSpec = SPEC, **settings: bool) -> InferCall:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return GenerateDecoder(**settings).decode(data, spec)


def refused(body: Any, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(Fault) as caught:
        decode(body, spec)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


def shape_of(dims: tuple[int, ...], count: int, *, batches: bool = False) -> list[int]:
    spec = ModelSpec("m", 1, (TensorSpec("X", "INT8", dims),), (), max_batch_size=8 * batches)
    call = decode({"X": [0] * count}, spec)
    assert len(call.inputs[0].raw) == count
    return list(call.inputs[0].shape)


def test_keys_that_name_inputs_are_tensors_and_the_others_parameters():
    call = decode({"PROMPT": "hä", "N": [1, 2], "F": 1, "temperature": 0.5, "stop": "x", "a": True})
    assert (call.model, call.version, call.id, call.outputs) == ("m", "3", "", [])
    assert [(i.name, i.datatype, list(i.shape)) for i in call.inputs] == [
        ("PROMPT", "BYTES", [1, 1]),
        ("N", "INT32", [2]),
        ("F", "FP32", [1]),
    ]
    assert [bytes(i.raw) for i in call.inputs] == [
        struct.pack("<I", 3) + "hä".encode(),
        struct.pack("<2i", 1, 2),
        struct.pack("<f", 1.0),
    ]
    assert call.parameters == {"temperature": 0.5, "stop": "x", "a": True}


def test_parameters_may_hold_more_of_both():
    call = decode({"N": 1, "parameters": {"PROMPT": "x", "k": 2}, "k": 1})
    assert [i.name for i in call.inputs] == ["N", "PROMPT"]
    assert call.parameters == {"k": 2}


def test_the_id_is_the_requests_and_a_parameter():
    call = decode({"N": 1, "id": "r1"})
    assert call.id == "r1"
    assert call.parameters == {"id": "r1"}
    assert decode({"parameters": {"id": "r1"}}).id == ""


def test_an_input_called_id_is_no_request_id():
    spec = ModelSpec("m", 1, (TensorSpec("id", "INT32", (1,)),), ())
    call = decode({"id": 7}, spec)
    assert (call.id, call.parameters) == ("", {})
    assert bytes(call.inputs[0].raw) == struct.pack("<i", 7)


def test_names_triton_knows_mean_what_they_mean_in_an_infer_request():
    known = {"sequence_id": 3, "sequence_start": True, "priority": 1, "timeout": 5}
    assert decode(known).parameters == known
    assert decode(known).is_sequence()
    assert "'priority': expected an integer" in refused({"priority": "high"})
    assert "'parameters.timeout'" in refused({"parameters": {"timeout": -1}})


def test_names_triton_keeps_to_itself_are_left_out():
    assert decode({"N": 1, "triton_x": 1, "parameters": {"triton_y": 2}}).parameters == {}


@pytest.mark.parametrize(
    ("dims", "count", "shape"),
    [
        ((1,), 1, [1]),
        ((-1,), 1, [1]),
        ((-1,), 3, [3]),
        ((-1,), 0, [0]),
        ((1, 1), 1, [1, 1]),
        ((2, 2), 4, [2, 2]),
        ((-1, 2), 6, [3, 2]),
        ((-1, -1, 2), 6, [1, 3, 2]),
        ((-1, 3, -1), 6, [1, 3, 2]),
        ((), 1, []),
    ],
)
def test_elements_fill_fixed_dims_first_and_the_last_variable_one_takes_the_rest(
    dims: tuple[int, ...], count: int, shape: list[int]
):
    assert shape_of(dims, count) == shape
    assert shape_of((*dims, -1), count, batches=True)[0] == 1


@pytest.mark.parametrize(
    ("dims", "count"), [((1,), 0), ((1,), 2), ((2, 2), 3), ((-1, 2), 3), ((0,), 0), ((), 2)]
)
def test_elements_that_fit_no_shape_are_refused(dims: tuple[int, ...], count: int):
    spec = ModelSpec("m", 1, (TensorSpec("X", "INT8", dims),), ())
    message = "The schema can not convert input 'X' to tensor with proper shape"
    assert refused({"X": [0] * count}, spec) == message


def test_the_batch_dimension_is_a_variable_one():
    assert shape_of((2,), 6, batches=True) == [3, 2]
    assert shape_of((-1,), 3, batches=True) == [1, 3]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "failed to parse the request JSON buffer"),
        (b"[]", "the document is not an object"),
        (b'{"N": 1', "failed to parse the request JSON buffer"),
        ({"PROMPT": 1}, "attempt to access JSON non-string as string"),
        ({"PROMPT": {"a": "x"}}, "attempt to access JSON non-string as string"),
        ({"FLAG": "x"}, "attempt to access JSON non-boolean as boolean"),
        ({"N": 1.5}, "attempt to access JSON non-signed-integer as signed-integer"),
        ({"F": "x"}, "attempt to access JSON non-number as double"),
        ({"N": None}, "'N': expected integers"),
        ({"N": [[1, 2]]}, "Shape does not match true shape of 'data' field"),
        ({"N": 2**31}, "out of range for INT32"),
        ({"id": 5}, "Unable to parse 'id'"),
        ({"p": {}}, "parameter 'p' has invalid type"),
        ({"p": []}, "parameter 'p' has invalid type"),
        ({"p": None}, "parameter 'p' has invalid type"),
        ({"parameters": []}, "Expected JSON object for keyword: 'parameters'"),
        ({"parameters": {"p": {}}}, "Converting keyword: 'parameters': parameter 'p' has invalid"),
        ({"parameters": {"parameters": {}}}, "parameter 'parameters' has invalid type"),
        ({"N": 1, "parameters": {"N": 1}}, "input 'N' already exists in request"),
        ({f"p{n}": 1 for n in range(5000)}, "more than 4096 entries"),
    ],
)
def test_malformed_requests(body: Any, named: str):
    assert named in refused(body)


def test_a_repeated_input_is_refused_and_of_other_keys_the_last_one_counts():
    assert refused(b'{"N": 1, "F": 2, "F": 3, "N": 4}') == "input 'F' already exists in request"
    call = decode(b'{"p": 1, "p": 2, "parameters": {"q": 1}, "parameters": {"r": 1}}')
    assert call.parameters == {"p": 2, "r": 1}


def test_an_input_called_parameters_leaves_no_place_for_them():
    spec = ModelSpec("m", 1, (TensorSpec("parameters", "INT32", (1,)),), ())
    assert "also given as input tensor name" in refused({"parameters": 1}, spec)


def test_bare_numbers_that_are_not_json_are_read_as_in_infer_requests():
    assert bytes(decode(b'{"F": -Infinity}').inputs[0].raw) == struct.pack("<f", float("-inf"))


def test_integers_may_wrap():
    call = decode({"N": 2**32 + 5}, strict_integers=False)
    assert bytes(call.inputs[0].raw) == struct.pack("<i", 5)


def output(name: str, shape: list[int], *values: int) -> OutputTensor:
    return OutputTensor(name, "INT32", shape, struct.pack(f"<{len(values)}i", *values))


def test_answers_are_flat_sorted_and_bare_where_there_is_one_element():
    reply = InferReply(
        "m",
        "3",
        [output("z", [2, 1], 1, 2), output("a", [1, 1], 7), output("e", [0])],
        id="r1",
        parameters={"p": float("inf"), "b": True},
    )
    assert encode_generated(reply) == (
        b'{"a":7,"b":true,"e":[],"id":"r1","model_name":"m","model_version":"3","p":Infinity,'
        b'"z":[1,2]}'
    )


def test_names_that_clash_with_the_models_lose():
    outputs = [output("model_name", [1], 1), output("p", [1], 2)]
    reply = InferReply("m", "3", outputs, parameters={"p": 1, "model_version": 5})
    assert json.loads(encode_generated(reply)) == {"model_name": "m", "model_version": "3", "p": 2}


def test_text_is_escaped_so_that_an_event_is_one_line():
    raw = struct.pack("<I", 3) + b"a\nb"
    reply = InferReply("m", "1", [OutputTensor("T", "BYTES", [1], raw)])
    assert b"\n" not in encode_generated(reply)
    assert json.loads(encode_generated(reply))["T"] == "a\nb"


def test_bytes_that_are_not_text_are_a_fault():
    reply = InferReply("m", "1", [OutputTensor("T", "BYTES", [1], struct.pack("<I", 1) + b"\xff")])
    with pytest.raises(Fault, match="not valid UTF-8"):
        encode_generated(reply)
