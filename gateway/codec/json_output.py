"""The bytes of an output -> the text of its JSON `data`.

Decides how elements are printed: flat, FP32 and narrower widened to double first, NaN and the
infinities as bare tokens, as Triton's HTTP front end does; FP16 and BF16, which Triton refuses, the
same way. Refuses to know the rest of the reply. Called by the infer reply writer.
"""

import math
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from gateway.codec.datatypes import DATATYPES, Datatype
from gateway.codec.tensor_size import LENGTH
from gateway.codec.types import OutputTensor
from gateway.faults import Fault, Kind, Origin

_SMALL: Final = 256
"""Up to so many elements struct is faster than numpy."""
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


def data_text(output: OutputTensor) -> bytes:
    """Return `data` as JSON.

    Raises a fault of the client's when the output is BYTES that are not text, one of the server's
    when the bytes are not what shape and datatype say.
    """
    datatype = DATATYPES.get(output.datatype)
    if datatype is None:
        raise _broken(f"output '{output.name}' has an unknown datatype")
    count = math.prod(output.shape)
    if datatype.size is None:
        return orjson.dumps(list(_strings(output, count)))
    if len(output.raw) != count * datatype.size:
        raise _size_mismatch(output)
    if datatype.name == "FP32" and count <= _SMALL:
        text = orjson.dumps(struct.unpack(f"<{count}f", output.raw))
        if b"n" not in text:  # no null, which stands for what is not finite
            return text
    elements = np.frombuffer(output.raw, datatype.storage)
    if datatype.number == "d":
        return _float_text(_doubles(elements, datatype))
    if datatype.name == "BOOL":
        elements = elements != 0  # any other byte is true
    return orjson.dumps(elements, option=_NUMPY)


def number_text(number: float) -> bytes:
    """Return one double as JSON."""
    return _float_text(np.array([number]))[1:-1]


def _doubles(elements: np.ndarray[Any, Any], datatype: Datatype) -> np.ndarray[Any, Any]:
    if datatype.name == "BF16":
        elements = (elements.astype("<u4") << 16).view("<f4")
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        return elements.astype(np.float64, copy=False)


def _float_text(doubles: np.ndarray[Any, Any]) -> bytes:
    text = orjson.dumps(doubles, option=_NUMPY)
    if b"n" not in text:
        return text
    pieces = text.split(b"null")  # which stands for each number that is not finite
    tokens = _tokens(doubles[~np.isfinite(doubles)])
    return pieces[0] + b"".join(
        token + piece for token, piece in zip(tokens, pieces[1:], strict=True)
    )


def _tokens(numbers: np.ndarray[Any, Any]) -> Iterator[bytes]:
    for number in numbers.tolist():
        yield b"NaN" if math.isnan(number) else b"Infinity" if number > 0 else b"-Infinity"


def _strings(output: OutputTensor, count: int) -> Iterator[str]:
    raw = output.raw
    offset = found = 0
    while offset + LENGTH.size <= len(raw):
        start = offset + LENGTH.size
        offset = start + LENGTH.unpack_from(raw, offset)[0]
        if offset > len(raw):
            break
        try:
            yield raw[start:offset].decode()
        except UnicodeDecodeError as error:
            raise _not_text(output.name) from error
        found += 1
    if offset != len(raw) or found != count:
        raise _size_mismatch(output)


def _not_text(name: str) -> Fault:
    return Fault.invalid(
        f"sending BYTES that are not valid UTF-8 via JSON is not supported. Please use the binary "
        f"data format for output '{name}': set 'binary_data' in its parameters, or "
        "'binary_data_output' in the request's"
    )


def _size_mismatch(output: OutputTensor) -> Fault:
    return _broken(f"output tensor shape does not match size of output for '{output.name}'")


def _broken(message: str) -> Fault:
    return Fault(Kind.BROKEN, message, origin=Origin.UPSTREAM)
