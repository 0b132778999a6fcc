import struct

import pytest

from gateway.codec.datatypes import DATATYPES
from gateway.codec.tensor_size import check_byte_size, element_count
from gateway.faults import Fault, Kind


def count(shape: list[int], datatype: str = "FP32", max_tensor_bytes: int = 1 << 20) -> int:
    return element_count(
        shape,
        DATATYPES[datatype],
        name="IN",
        where="inputs[0]",
        max_tensor_bytes=max_tensor_bytes,
    )


def check(raw: bytes, datatype: str, elements: int) -> None:
    check_byte_size(raw, DATATYPES[datatype], elements, name="IN", model="m")


def refusal(function, *arguments) -> str:
    with pytest.raises(Fault) as caught:
        function(*arguments)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@pytest.mark.parametrize(
    ("shape", "expected"), [([], 1), ([3], 3), ([2, 3], 6), ([0], 0), ([2, 0, 2**62, 2**62], 0)]
)
def test_the_count_is_the_product_of_the_dims(shape, expected) -> None:
    assert count(shape) == expected


@pytest.mark.parametrize("shape", [[2**32, 2**32], [2**62, 4], [2**63 - 1, 2]])
def test_a_product_beyond_64_bits_does_not_wrap(shape) -> None:
    message = refusal(count, shape)
    assert "causes total element count to exceed maximum size of 9223372036854775807" in message
    assert "inputs[0].shape" in message


@pytest.mark.parametrize(
    ("shape", "datatype"),
    [([2**63 - 1], "FP32"), ([4, 2**60 + 2], "FP32"), ([5], "FP32"), ([3], "FP64"), ([5], "BYTES")],
)
def test_more_bytes_than_a_tensor_may_have_are_refused(shape, datatype) -> None:
    message = refusal(count, shape, datatype, 16)
    assert "byte size overflow for input 'IN'" in message
    assert "inputs[0].shape" in message


def test_the_largest_tensor_allowed_passes() -> None:
    assert count([4], "FP32", 16) == count([4], "BYTES", 16) == 4


def test_fixed_size_elements_must_fill_the_shape_exactly() -> None:
    check(bytes(12), "FP32", 3)
    for size in (0, 11, 13, 16):
        message = refusal(check, bytes(size), "FP32", 3)
        assert message == (
            f"input byte size mismatch for input 'IN' for model 'm'. Expected 12, got {size}"
        )


def text(*strings: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def test_strings_must_fill_the_shape_exactly() -> None:
    check(b"", "BYTES", 0)
    check(text(b"", b"\xff\0", b"abc"), "BYTES", 3)
    of_input = "for inference input 'IN' for model 'm'"
    for raw, elements, message in (
        (text(b"a", b"b"), 3, f"expected 3 string elements {of_input}, got 2"),
        (text(b"a", b"b"), 1, f"unexpected number of string elements 2 {of_input}, expecting 1"),
        (
            text(b"a", b"bcd")[:-1],
            2,
            f"incomplete string data {of_input}, "
            "expecting string of length 3 but only 2 bytes available",
        ),
        (
            text(b"a") + b"\0\0\0",
            2,
            f"incomplete string length indicator {of_input}, "
            "expecting 4 bytes but only 3 bytes available",
        ),
        (b"\xff\xff\xff\xff", 1, "incomplete string data"),
    ):
        assert message in refusal(check, raw, "BYTES", elements)
