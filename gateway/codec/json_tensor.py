"""JSON `data` -> the bytes of a tensor.

Decides which JSON elements a datatype takes and how they round: exact types (true is not 1, 1.0 is
not an integer), integers in range unless wrapping is asked for, nearest even for the narrow floats.
Any nesting is the same as none; only the number of elements counts, as in Triton's HTTP front end.
Refuses to know models and whole requests. Called by the infer request reader.
"""

import struct
from itertools import chain
from typing import Any, Final

import numpy as np
import simdjson

from gateway.codec.datatypes import WIDE, Datatype
from gateway.codec.json_document import MAX_DATA_DEPTH
from gateway.codec.request_fields import INT64_MAX, UINT64_MAX, unparsable
from gateway.codec.tensor_size import LENGTH
from gateway.faults import Fault

_CONTAINERS: Final = frozenset({list, simdjson.Array})
_Expected = tuple[frozenset[type], str, str]
"""The types of the elements, what they are, and what Triton says when they are not."""
_ELEMENTS: Final[dict[str | None, _Expected]] = {
    "d": (frozenset({int, float}), "numbers", "non-number as double"),
    "i": (frozenset({int}), "integers", "non-signed-integer as signed-integer"),
    "u": (frozenset({int}), "non-negative integers", "non-unsigned-integer as unsigned-integer"),
}
_BOOLEANS: Final = (frozenset({bool}), "booleans", "non-boolean as boolean")
_STRINGS: Final = (frozenset({str}), "strings", "non-string as string")
_PACKED: Final = {"FP32": "f", "FP64": "d"}
_SMALL: Final = 256
"""Up to so many elements struct is faster than numpy."""
_BOUNDS: Final = {"i": (-INT64_MAX - 1, INT64_MAX), "u": (0, UINT64_MAX)}
_KINDS: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number with a fraction, an exponent or more than 64 bits",
    str: "a string",
    type(None): "null",
}


def tensor_bytes(
    data: Any, datatype: Datatype, *, count: int, path: str, strict_integers: bool
) -> bytes:
    """Convert `data`, an array whose leaves are the `count` elements of the tensor.

    `data` is a list or a `simdjson.Array`; `path` names it in faults. Without `strict_integers` an
    integer that fits 64 bits but not the datatype wraps around, as in Triton. A tensor without
    elements is empty whatever `data` holds, as in Triton.
    """
    if type(data) not in _CONTAINERS:
        raise unparsable(path, "expected an array")
    if count == 0:
        return b""
    if datatype.number is not None:
        return _number_bytes(data, datatype, count, path, strict_integers)
    expected = _STRINGS if datatype.size is None else _BOOLEANS
    leaves = _checked_leaves(data, expected, datatype, path)
    _check_count(len(leaves), count, path)
    return _string_bytes(leaves) if datatype.size is None else bytes(leaves)


def _check_count(found: int, count: int, path: str) -> None:
    if found != count:
        raise unparsable(
            path,
            "Shape does not match true shape of 'data' field: "
            f"expected {count} elements, got {found}",
        )


def _string_bytes(strings: list[str]) -> bytes:
    encoded = [string.encode() for string in strings]
    lengths = map(LENGTH.pack, map(len, encoded))
    return b"".join(chain.from_iterable(zip(lengths, encoded, strict=True)))


def _number_bytes(
    data: Any, datatype: Datatype, count: int, path: str, strict_integers: bool
) -> bytes:
    if datatype.name in _PACKED and count <= _SMALL and type(data) is list:
        leaves = _checked_leaves(data, _ELEMENTS["d"], datatype, path)
        _check_count(len(leaves), count, path)
        try:
            return struct.pack(f"<{count}{_PACKED[datatype.name]}", *leaves)
        except OverflowError:
            pass  # beyond the range is infinite, which numpy knows
    wide = _wide_numbers(data, datatype, path)
    _check_count(len(wide), count, path)
    if datatype.number == "d":
        return _float_bytes(wide, datatype)
    narrow = wide.astype(datatype.storage, copy=False)
    if strict_integers:
        wrapped = narrow != wide
        if wrapped.any():
            at = int(wrapped.argmax())
            raise _out_of_range(at, wide[at], datatype, path)
    return narrow.tobytes()


def _wide_numbers(data: Any, datatype: Datatype, path: str) -> np.ndarray[Any, Any]:
    """Return all leaves as doubles, int64 or uint64."""
    number = datatype.number
    assert number is not None
    if type(data) is simdjson.Array:
        try:
            return np.frombuffer(data.as_buffer(of_type=number), WIDE[number])
        except (TypeError, ValueError):
            pass  # below, the offending element is found
    leaves = _checked_leaves(data, _ELEMENTS[number], datatype, path)
    if number != "d":
        _check_64_bits(leaves, number, datatype, path)
    return np.array(leaves, WIDE[number])


def _check_64_bits(leaves: list[int], number: str, datatype: Datatype, path: str) -> None:
    lowest, highest = _BOUNDS[number]
    if leaves and not lowest <= min(leaves) <= max(leaves) <= highest:
        at = next(at for at, leaf in enumerate(leaves) if not lowest <= leaf <= highest)
        raise _out_of_range(at, leaves[at], datatype, path)


def _out_of_range(at: int, leaf: Any, datatype: Datatype, path: str) -> Fault:
    return unparsable(path, f"element {at}, {leaf}, is out of range for {datatype.name}")


def _float_bytes(wide: np.ndarray[Any, Any], datatype: Datatype) -> bytes:
    """Round to nearest even, beyond the range to infinity; BF16 by way of FP32, like ml_dtypes."""
    if datatype.name == "FP64":
        return wide.tobytes()
    with np.errstate(over="ignore"):
        if datatype.name != "BF16":
            return wide.astype(datatype.storage).tobytes()
        bits = wide.astype("<f4").view("<u4")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # the one NaN of JSON stays one
    return rounded.astype(datatype.storage).tobytes()


def _checked_leaves(data: Any, expected: _Expected, datatype: Datatype, path: str) -> list[Any]:
    leaves: list[Any] = []
    _collect(list(data), leaves, 1, path)
    allowed, plural, triton_says = expected
    if not allowed.issuperset(map(type, leaves)):
        at = next(at for at, leaf in enumerate(leaves) if type(leaf) not in allowed)
        found = _KINDS.get(type(leaves[at]), "an object")
        reason = f"expected {plural} for datatype {datatype.name}, element {at} is {found}"
        raise unparsable(path, f"{reason} (attempt to access JSON {triton_says})")
    return leaves


def _collect(items: list[Any], leaves: list[Any], depth: int, path: str) -> None:
    """Append the leaves of `items`, depth first; a whole level at once where all are arrays."""
    while not _CONTAINERS.isdisjoint(kinds := set(map(type, items))):
        depth += 1
        if depth > MAX_DATA_DEPTH:
            limit = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DATA_DEPTH})"
            raise unparsable(path, limit)
        if not kinds <= _CONTAINERS:
            return _collect_ragged(items, leaves, depth, path)
        items = list(chain.from_iterable(items))
    leaves.extend(items)
    return None


def _collect_ragged(items: list[Any], leaves: list[Any], depth: int, path: str) -> None:
    for item in items:
        if type(item) in _CONTAINERS:
            _collect(list(item), leaves, depth, path)
        else:
            leaves.append(item)
