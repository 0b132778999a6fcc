"""The wire datatypes: their names, their sizes, and how their numbers lie in memory and in JSON.

Decides what a datatype name means; knows nothing of requests or replies. Read by every other module
of the codec, and by whoever needs a tensor's size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

JsonNumber = Literal["d", "i", "u"]
"""How JSON numbers are read: double, int64, uint64 (the codes the simdjson binding uses too)."""

WIDE: Final[Mapping[JsonNumber, np.dtype[np.generic]]] = {
    "d": np.dtype("<f8"),
    "i": np.dtype("<i8"),
    "u": np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class Datatype:
    """One wire datatype.

    `size` is bytes per element, None when elements differ (BYTES). `storage` is the little-endian
    layout of one element: BOOL is a byte, BF16, which numpy lacks, its 16 bits, and BYTES has none
    (zero bytes wide). `number` is None for the datatypes whose JSON elements are not numbers.
    """

    name: str
    size: int | None
    storage: np.dtype[np.generic]
    number: JsonNumber | None


def _datatype(name: str, code: str, number: JsonNumber | None) -> Datatype:
    storage = np.dtype(code)
    return Datatype(name, storage.itemsize or None, storage, number)


_ALL: Final = (
    _datatype("BOOL", "|u1", None),
    _datatype("UINT8", "|u1", "u"),
    _datatype("UINT16", "<u2", "u"),
    _datatype("UINT32", "<u4", "u"),
    _datatype("UINT64", "<u8", "u"),
    _datatype("INT8", "|i1", "i"),
    _datatype("INT16", "<i2", "i"),
    _datatype("INT32", "<i4", "i"),
    _datatype("INT64", "<i8", "i"),
    _datatype("FP16", "<f2", "d"),
    _datatype("FP32", "<f4", "d"),
    _datatype("FP64", "<f8", "d"),
    _datatype("BF16", "<u2", "d"),
    _datatype("BYTES", "|S0", None),
)

DATATYPES: Final[Mapping[str, Datatype]] = {datatype.name: datatype for datatype in _ALL}
"""Every datatype by its case-sensitive wire name (KServe v2, tensor data types)."""


def element_size(datatype: str) -> int | None:
    """Return the bytes of one element, None for BYTES; KeyError for a name not on the wire."""
    return DATATYPES[datatype].size
