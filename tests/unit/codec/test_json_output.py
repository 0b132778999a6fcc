import json
import math
import struct

import ml_dtypes
import numpy as np
import pytest

from gateway.codec.json_output import data_text, number_text
from gateway.codec.types import OutputTensor
from gateway.faults import Fault, Kind, Origin


def text(datatype: str, shape: list[int], raw: bytes) -> bytes:
    return data_text(OutputTensor("OUT", datatype, shape, raw))


def refusal(datatype: str, shape: list[int], raw: bytes) -> Fault:
    with pytest.raises(Fault) as caught:
        text(datatype, shape, raw)
    return caught.value


@pytest.mark.parametrize(
    ("datatype", "raw", "expected"),
    [
        ("BOOL", b"\0\1\2\xff", b"[false,true,true,true]"),
        ("INT8", b"\x80\x7f", b"[-128,127]"),
        ("UINT8", b"\x80\x7f", b"[128,127]"),
        ("INT16", struct.pack("<h", -2), b"[-2]"),
        ("UINT16", struct.pack("<H", 65535), b"[65535]"),
        ("INT32", struct.pack("<i", -(2**31)), b"[-2147483648]"),
        ("UINT32", struct.pack("<I", 2**32 - 1), b"[4294967295]"),
        ("INT64", struct.pack("<q", -(2**63)), b"[-9223372036854775808]"),
        ("UINT64", struct.pack("<Q", 2**64 - 1), b"[18446744073709551615]"),
        ("FP32", struct.pack("<2f", 0.1, 1), b"[0.10000000149011612,1.0]"),
        ("FP64", struct.pack("<2d", 0.1, -0.0), b"[0.1,-0.0]"),
        ("FP16", struct.pack("<2e", 0.1, 65504), b"[0.0999755859375,65504.0]"),
        ("BF16", bytes.fromhex("803f20c0"), b"[1.0,-2.5]"),
    ],
)
def test_each_datatype_is_printed_as_triton_prints_it(datatype, raw, expected) -> None:
    count = expected.count(b",") + 1
    assert text(datatype, [count], raw) == expected


@pytest.mark.parametrize(
    ("datatype", "oracle"),
    [
        ("FP16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("FP32", np.float32),
        ("FP64", np.float64),
    ],
)
def test_what_is_not_finite_is_a_bare_token(datatype, oracle) -> None:
    values = np.array([math.nan, 1, math.inf, -math.inf, 0, math.nan], oracle)
    assert text(datatype, [2, 3], values.tobytes()) == b"[NaN,1.0,Infinity,-Infinity,0.0,NaN]"


def test_a_signalling_nan_is_printed_without_a_warning() -> None:
    assert text("FP32", [1], struct.pack("<I", 0x7F800001)) == b"[NaN]"
    assert text("FP16", [1], struct.pack("<H", 0x7C01)) == b"[NaN]"
    assert text("BF16", [1], struct.pack("<H", 0x7F81)) == b"[NaN]"


def test_the_data_of_any_shape_is_flat() -> None:
    assert text("UINT8", [2, 1, 2], b"\1\2\3\4") == b"[1,2,3,4]"
    assert text("UINT8", [], b"\1") == b"[1]"


@pytest.mark.parametrize("datatype", ["BOOL", "INT32", "UINT64", "FP16", "FP32", "BF16", "BYTES"])
def test_an_empty_tensor_is_an_empty_list(datatype) -> None:
    assert text(datatype, [2, 0], b"") == b"[]"


def test_strings_are_printed_as_text() -> None:
    raw = b"\0\0\0\0" + b"\3\0\0\0a\0\n" + b"\4\0\0\0\xf0\x9f\x98\x80"
    assert json.loads(text("BYTES", [3], raw)) == ["", "a\0\n", "\U0001f600"]


def test_bytes_that_are_not_text_are_the_clients_to_ask_for_in_binary() -> None:
    fault = refusal("BYTES", [1], b"\1\0\0\0\xff")
    assert (fault.kind, fault.origin) == (Kind.INVALID, Origin.CLIENT)
    assert "'OUT'" in fault.message
    assert "binary_data" in fault.message


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", [2], bytes(4)),
        ("FP32", [1], bytes(5)),
        ("UINT8", [], b""),
        ("BYTES", [2], b"\0\0\0\0"),
        ("BYTES", [1], bytes(8)),
        ("BYTES", [1], b"\0\0\0"),
        ("BYTES", [1], b"\2\0\0\0\xc3"),
        ("BYTES", [0], b"\0\0\0\0\0"),
    ],
)
def test_bytes_that_do_not_fill_the_shape_are_the_servers_fault(datatype, shape, raw) -> None:
    fault = refusal(datatype, shape, raw)
    assert (fault.kind, fault.origin) == (Kind.BROKEN, Origin.UPSTREAM)
    assert fault.message == "output tensor shape does not match size of output for 'OUT'"


def test_a_datatype_from_nowhere_is_the_servers_fault() -> None:
    fault = refusal("FP8", [1], b"x")
    assert (fault.kind, fault.origin) == (Kind.BROKEN, Origin.UPSTREAM)


def test_single_numbers() -> None:
    assert [number_text(value) for value in (0.5, math.nan, -math.inf)] == [
        b"0.5",
        b"NaN",
        b"-Infinity",
    ]
