"""How many elements and bytes an input has, by its shape and by what arrived.

Decides whether a claimed size is possible and whether the bytes fill it, with Triton's words for
each mismatch, before anything of that size is allocated. Refuses to know JSON. Called by the
readers of infer requests and of raw ones.
"""

import math
from collections.abc import Sequence
from struct import Struct
from typing import Final

from gateway.codec.datatypes import Datatype
from gateway.codec.request_fields import INT64_MAX
from gateway.faults import Fault

LENGTH: Final = Struct("<I")
"""The length in front of each BYTES element."""


def element_count(
    shape: Sequence[int], datatype: Datatype, *, name: str, where: str, max_tensor_bytes: int
) -> int:
    """Return the number of elements, for a tensor of at most `max_tensor_bytes`.

    A BYTES element takes at least its length. Python's integers do not wrap, so neither does a
    product beyond 64 bits.
    """
    count = math.prod(shape)
    if count > INT64_MAX:
        raise Fault.invalid(
            f"shape of input '{name}' causes total element count to exceed maximum size of "
            f"{INT64_MAX}, see '{where}.shape'"
        )
    byte_size = count * (datatype.size or LENGTH.size)
    if byte_size > max_tensor_bytes:
        raise Fault.invalid(
            f"byte size overflow for input '{name}': its shape takes {byte_size} bytes of "
            f"{datatype.name}, the maximum is {max_tensor_bytes}, see '{where}.shape'"
        )
    return count


def check_byte_size(
    raw: bytes | memoryview, datatype: Datatype, count: int, *, name: str, model: str
) -> None:
    """Refuse raw bytes that are not exactly `count` elements."""
    if datatype.size is None:
        _check_strings(raw, count, f"inference input '{name}' for model '{model}'")
    elif len(raw) != count * datatype.size:
        raise Fault.invalid(
            f"input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * datatype.size}, got {len(raw)}"
        )


def _check_strings(raw: bytes | memoryview, count: int, of_input: str) -> None:
    end = len(raw)
    offset = found = 0
    while offset + LENGTH.size <= end:
        if found == count:
            raise Fault.invalid(
                f"unexpected number of string elements {found + 1} for {of_input}, "
                f"expecting {count}"
            )
        (length,) = LENGTH.unpack_from(raw, offset)
        offset += LENGTH.size
        if length > end - offset:
            raise Fault.invalid(
                f"incomplete string data for {of_input}, expecting string of length {length} "
                f"but only {end - offset} bytes available"
            )
        offset += length
        found += 1
    if offset < end:
        raise Fault.invalid(
            f"incomplete string length indicator for {of_input}, expecting {LENGTH.size} bytes "
            f"but only {end - offset} bytes available"
        )
    if found < count:
        raise Fault.invalid(f"expected {count} string elements for {of_input}, got {found}")
