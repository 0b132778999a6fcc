import json
import math
import struct

from gateway.codec.infer_reply import EncodedBody, encode_reply
from gateway.codec.types import InferCall, InferReply, OutputRequest, OutputTensor

FIRST = OutputTensor("A", "INT32", [1, 2], struct.pack("<2i", 1, 2))
SECOND = OutputTensor("B", "FP32", [1], struct.pack("<f", 0.5))
EMPTY = OutputTensor("E", "FP32", [2, 0], b"")


def encode(*outputs: OutputTensor, call: InferCall | None = None, **fields) -> EncodedBody:
    return encode_reply(
        InferReply("m", "7", list(outputs), **fields), call or InferCall("m", "7", [])
    )


def test_a_plain_reply_has_tritons_keys_in_tritons_order() -> None:
    body = encode(SECOND, FIRST)
    assert body.head == (
        b'{"model_name":"m","model_version":"7","outputs":['
        b'{"name":"B","datatype":"FP32","shape":[1],"data":[0.5]},'
        b'{"name":"A","datatype":"INT32","shape":[1,2],"data":[1,2]}]}'
    )
    assert body.tail == []
    assert not body.binary


def test_id_and_parameters_appear_only_when_there_are_some() -> None:
    parameters = {"i": -1, "s": "é", "b": False, "d": 1.0, "n": math.nan, "p": math.inf}
    body = encode(id="x", parameters=parameters)
    assert (
        body.head
        == (
            '{"id":"x","model_name":"m","model_version":"7","parameters":'
            '{"i":-1,"s":"é","b":false,"d":1.0,"n":NaN,"p":Infinity},"outputs":[]}'
        ).encode()
    )


def test_binary_outputs_keep_the_servers_order_in_the_tail() -> None:
    call = InferCall("m", "7", [], outputs=[OutputRequest("A", True), OutputRequest("B", True)])
    body = encode(SECOND, FIRST, call=call)
    assert json.loads(body.head)["outputs"] == [
        {"name": "B", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "A", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
    ]
    assert body.tail[0] is SECOND.raw
    assert body.tail[1] is FIRST.raw
    assert body.binary


def test_the_default_form_is_for_outputs_that_are_not_listed() -> None:
    call = InferCall("m", "7", [], outputs=[OutputRequest("A")], binary_default=True)
    body = encode(FIRST, SECOND, call=call)
    first, second = json.loads(body.head)["outputs"]
    assert "data" in first
    assert second["parameters"] == {"binary_data_size": 4}
    assert body.tail == [SECOND.raw]


def test_empty_tensors_leave_the_others_where_they_are() -> None:
    binary = InferCall("m", "7", [], binary_default=True)
    body = encode(EMPTY, FIRST, call=binary)
    assert b"".join(body.tail) == FIRST.raw
    assert json.loads(body.head)["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert json.loads(encode(EMPTY, FIRST).head)["outputs"][0]["data"] == []


def test_a_binary_reply_without_a_byte_is_plain_json() -> None:
    assert not encode(EMPTY, call=InferCall("m", "7", [], binary_default=True)).binary


def test_the_shape_may_be_any_sequence() -> None:
    output = OutputTensor("A", "UINT8", (2,), b"\1\2")
    assert json.loads(encode(output).head)["outputs"][0]["shape"] == [2]
