import math
import struct

import ml_dtypes
import numpy as np
import orjson
import pytest
import simdjson

from gateway.codec.datatypes import DATATYPES
from gateway.codec.json_tensor import tensor_bytes
from gateway.faults import Fault, Kind

PATH = "inputs[0].data"


def as_list(data):
    return data


def as_simd(data):
    return simdjson.Parser().parse(orjson.dumps(data))


FORMS = pytest.mark.parametrize("form", [as_list, as_simd])


def convert(data, datatype: str, count: int, *, strict: bool = True) -> bytes:
    return tensor_bytes(data, DATATYPES[datatype], count=count, path=PATH, strict_integers=strict)


def refusal(data, datatype: str, count: int, *, strict: bool = True) -> str:
    with pytest.raises(Fault) as caught:
        convert(data, datatype, count, strict=strict)
    assert caught.value.kind is Kind.INVALID
    assert caught.value.message.startswith(f"Unable to parse '{PATH}': ")
    return caught.value.message


@FORMS
@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3, 4],
        [[1, 2], [3, 4]],
        [[1], [2], [3], [4]],
        [[[[1, 2, 3, 4]]]],
        [1, [2, [3]], 4],
        [[], [1, 2, 3], [[]], [4]],
    ],
)
def test_any_nesting_is_the_same_tensor(data, form) -> None:
    assert convert(form(data), "INT16", 4) == struct.pack("<4h", 1, 2, 3, 4)
    assert convert(form(as_strings(data)), "BYTES", 4) == b"".join(
        struct.pack("<Ic", 1, digit) for digit in (b"1", b"2", b"3", b"4")
    )


def as_strings(data):
    return [as_strings(item) for item in data] if isinstance(data, list) else str(data)


@FORMS
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "UINT64", "BOOL", "BYTES"])
def test_nesting_beyond_100_is_refused_and_100_is_not(datatype, form) -> None:
    leaf = {"BOOL": True, "BYTES": "x"}.get(datatype, 1)
    nested = leaf
    for _ in range(100):
        nested = [nested]
    assert convert(as_list(nested), datatype, 1)
    # An array that large bodies keep in simdjson was scanned for its depth before.
    data = [nested] if form is as_list else form([nested, None])
    assert "JSON nesting depth exceeds maximum allowed limit (100)" in refusal(data, datatype, 1)


def test_ragged_nesting_beyond_100_is_refused() -> None:
    nested = [1]
    for _ in range(100):
        nested = [1, nested]
    assert "(100)" in refusal(nested, "FP32", 101)


@FORMS
@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_a_wrong_number_of_elements_is_refused(datatype, form) -> None:
    leaf = {"BOOL": True, "BYTES": "x"}.get(datatype, 1)
    for found in (0, 2, 4):
        message = refusal(form([leaf] * found), datatype, 3)
        assert "Shape does not match true shape of 'data' field" in message
        assert f"expected 3 elements, got {found}" in message


@FORMS
@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_without_elements_only_the_array_itself_counts(datatype, form) -> None:
    """Triton does not look into `data` when a dim is 0."""
    for data in ([], [[], []], [1, "x", None]):
        assert convert(form(data), datatype, 0) == b""
    for data in (None, {}, "", 0):
        assert "expected an array" in refusal(data, datatype, 0)


@FORMS
@pytest.mark.parametrize(
    ("datatype", "bad", "said"),
    [
        ("INT32", 2.5, "expected integers for datatype INT32, element 1 is a number with"),
        ("INT32", 1.0, "a number with a fraction"),
        ("INT32", True, "a boolean"),
        ("INT32", "2", "a string"),
        ("INT32", None, "null"),
        ("INT32", {}, "an object"),
        ("UINT8", 1.0, "expected non-negative integers for datatype UINT8"),
        ("UINT8", False, "a boolean"),
        ("FP32", True, "expected numbers for datatype FP32, element 1 is a boolean"),
        ("FP64", "1.0", "a string"),
        ("FP16", None, "null"),
        ("BF16", {"b64": "x"}, "an object"),
        ("BOOL", 1, "expected booleans for datatype BOOL, element 1 is an integer"),
        ("BOOL", "true", "a string"),
        ("BYTES", 1, "expected strings for datatype BYTES, element 1 is an integer"),
        ("BYTES", None, "null"),
        ("BYTES", {}, "an object"),
    ],
)
def test_an_element_of_the_wrong_type_is_named(datatype, bad, said, form) -> None:
    good = {"BOOL": True, "BYTES": "x"}.get(datatype, 1)
    assert said in refusal(form([good, bad, good]), datatype, 3)
    assert said in refusal(form([[good], [bad, [good]]]), datatype, 3)


@FORMS
@pytest.mark.parametrize(
    ("datatype", "lowest", "highest"),
    [
        ("INT8", -(2**7), 2**7 - 1),
        ("INT16", -(2**15), 2**15 - 1),
        ("INT32", -(2**31), 2**31 - 1),
        ("INT64", -(2**63), 2**63 - 1),
        ("UINT8", 0, 2**8 - 1),
        ("UINT16", 0, 2**16 - 1),
        ("UINT32", 0, 2**32 - 1),
        ("UINT64", 0, 2**64 - 1),
    ],
)
def test_integers_are_exact_to_the_edges_of_their_range(datatype, lowest, highest, form) -> None:
    size = DATATYPES[datatype].size
    expected = b"".join(
        value.to_bytes(size, "little", signed=lowest < 0) for value in (lowest, highest)
    )
    assert convert(form([lowest, highest]), datatype, 2) == expected
    for outside in (lowest - 1, highest + 1):
        if -(2**63) <= outside < 2**64:
            message = refusal(form([lowest, outside]), datatype, 2)
            assert f"element 1, {outside}, is out of range for {datatype}" in message


@FORMS
def test_without_strictness_integers_wrap_as_in_triton(form) -> None:
    assert convert(form([200, -129]), "INT8", 2, strict=False) == bytes([200, 127])
    assert convert(form([2**40 + 7]), "INT32", 1, strict=False) == struct.pack("<i", 7)
    assert convert(form([256]), "UINT8", 1, strict=False) == bytes([0])


@FORMS
@pytest.mark.parametrize(
    ("datatype", "value"), [("UINT8", -1), ("UINT64", -1), ("INT64", 2**63), ("INT8", 2**64 - 1)]
)
def test_beyond_64_bits_of_their_sign_integers_never_wrap(datatype, value, form) -> None:
    assert "out of range" in refusal(form([0, value]), datatype, 2, strict=False)


@FORMS
def test_floats_take_integers_and_round_to_nearest_even(form) -> None:
    values = [1, -2.5, 0.1, 2**64 - 1, -(2**63), 16777217, 1e-45, 1e-46, -0.0]
    assert convert(form(values), "FP64", 9) == np.array(values, "<f8").tobytes()
    expected = np.array([float(value) for value in values]).astype("<f4").tobytes()
    assert convert(form(values), "FP32", 9) == expected


@FORMS
@pytest.mark.parametrize(
    ("datatype", "values", "bits"),
    [
        ("FP32", [1e39, -1e39], [0x7F800000, 0xFF800000]),
        ("FP16", [1.0, -2.5, 65504, 65519.99], [0x3C00, 0xC100, 0x7BFF, 0x7BFF]),
        ("FP16", [65520, -65520, 1e300], [0x7C00, 0xFC00, 0x7C00]),
        ("FP16", [6e-8, 2.9e-8, 2049, 2051], [0x0001, 0x0000, 0x6800, 0x6802]),
        ("BF16", [1.0, -2.0, 1.00390625, 1.01171875], [0x3F80, 0xC000, 0x3F80, 0x3F82]),
        ("BF16", [3.3895e38, 3.4e38, -1e39, 1e-40], [0x7F7F, 0x7F80, 0xFF80, 0x0001]),
    ],
)
def test_too_large_is_infinite_and_denormals_are_right(datatype, values, bits, form) -> None:
    raw = convert(form(values), datatype, len(values))
    assert np.frombuffer(raw, DATATYPES[datatype].storage.str.replace("f", "u")).tolist() == bits


def test_not_a_number_and_the_infinities_pass() -> None:
    values = [math.nan, math.inf, -math.inf]
    for datatype, oracle in (
        ("FP16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("FP32", np.float32),
        ("FP64", np.float64),
    ):
        back = np.frombuffer(convert(values, datatype, 3), oracle).astype(float)
        assert np.array_equal(back, values, equal_nan=True)


@FORMS
def test_booleans_are_bytes(form) -> None:
    assert convert(form([True, [False, True]]), "BOOL", 3) == b"\x01\x00\x01"


@FORMS
def test_strings_are_stored_as_utf8_with_their_length(form) -> None:
    strings = ["", "a\0b", "\U0001f600", "é" * 300]
    expected = b"".join(struct.pack("<I", len(s.encode())) + s.encode() for s in strings)
    assert convert(form(strings), "BYTES", 4) == expected
