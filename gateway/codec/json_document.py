"""Request JSON -> document, with one verdict whichever parser did the work.

Decides what is JSON here: RFC 8259 plus the bare tokens NaN, Infinity, -Infinity, Inf and -Inf
that Triton's RapidJSON takes; of a repeated key the last one counts; integers beyond 64 bits are
doubles. Refuses to know what fields mean, except that `inputs[].data` may be huge: in a large body
it stays a `simdjson.Array`, which becomes numbers without a Python object for each. Called by the
readers of infer and generate requests.

Three parsers, the fastest first. simdjson reads large bodies, but only those it reads exactly as
orjson would; orjson reads the rest; the standard library reads what has a bare NaN or infinity.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from gateway.codec.request_fields import MAX_ENTRIES
from gateway.faults import Fault

Members = tuple[tuple[str, Any], ...]
"""An object as it was written: (key, value) pairs, repeated keys included."""

MAX_DATA_DEPTH: Final = 100
"""Deepest nesting of `data`, counting `[1]` as 1. Triton's limit since 25.05."""

_LEAD: Final = "failed to parse the request JSON buffer: "
_TOO_BIG: Final = "Number too big to be stored in double"
_BOM: Final = b"\xef\xbb\xbf"
_REQUEST_KEYS: Final = frozenset({"id", "parameters", "inputs", "outputs"})
_INPUT_KEYS: Final = frozenset({"name", "datatype", "shape", "parameters", "data"})
_SCAN_BYTES: Final = 1 << 20
_INT64_DIGITS: Final = 18  # so many digits always fit

_BARE_INF: Final = re.compile(r"Inf(?!inity)")
_STRING_OR_INF: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|Inf(?:inity)?', re.DOTALL)
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a surrogate pair
    r"|(u[dD][89a-fA-F])"  # half of one
    r"|.)"
)


def parse_document(text: bytes, *, simd_from_bytes: int) -> dict[str, Any]:
    """Parse the JSON of an infer request; a fault in Triton's words when it is not an object.

    Texts of at least `simd_from_bytes` go through simdjson when they can; then keys that no infer
    request has are left out.
    """
    document = _parse_large(text) if len(text) >= simd_from_bytes else None
    if document is None:
        document = _parse(text)
    if type(document) is not dict:
        raise _malformed("the document is not an object")
    return document


def parse_members(text: bytes) -> Members:
    """Parse an object in which repeated keys matter; objects inside it are `Members` as well.

    The same texts are faults as for `parse_document`.
    """
    document = _parse_lenient(text, tuple)
    if type(document) is not tuple:
        raise _malformed("the document is not an object")
    return document


def _malformed(reason: str) -> Fault:
    return Fault.invalid(_LEAD + reason)


def _parse(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if b"NaN" in text or b"Inf" in text:
            return _parse_lenient(text)
        reason = _TOO_BIG if "infinity" in error.msg else error.msg
        raise _malformed(f"{reason} at {error.pos}") from error


def _parse_lenient(text: bytes, of_pairs: Callable[[list[Any]], Any] | None = None) -> Any:
    try:
        decoded = text.decode()
        if _BARE_INF.search(decoded):
            decoded = _STRING_OR_INF.sub(_long_infinity, decoded)
        document = json.loads(
            decoded, parse_int=_integer, parse_float=_finite, object_pairs_hook=of_pairs
        )
    except RecursionError as error:
        raise _malformed("the document is nested too deeply") from error
    except ValueError as error:
        raise _malformed(str(error)) from error
    if any(escape[1] for escape in _ESCAPE.finditer(decoded)):
        raise _malformed("The surrogate pair in string is invalid.")
    return document


def _long_infinity(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else "Infinity"


def _integer(digits: str) -> int | float:
    if len(digits) <= _INT64_DIGITS:
        return int(digits)
    number = _finite(digits)
    if -(2.0**63) <= number <= 2.0**64:  # the neighbours that round to these bounds are sorted out
        exact = int(digits)
        return exact if -(2**63) <= exact < 2**64 else number
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _malformed(_TOO_BIG)
    return number


def _parse_large(text: bytes) -> dict[str, Any] | None:
    """Parse with simdjson, or return None where it would judge otherwise than orjson.

    It skips a byte order mark, refuses integers beyond 64 bits, finds the first of repeated keys,
    and flattens arrays of any depth.
    """
    if text.startswith(_BOM) or _may_nest_deeply(text):
        return None
    try:
        # A parser of its own: one with proxies still alive refuses further work.
        root = simdjson.Parser().parse(text)
        if not isinstance(root, simdjson.Object):
            return None
        return _open_request(root)
    except (ValueError, RuntimeError):
        return None


def _may_nest_deeply(text: bytes) -> bool:
    """Whether some array may be nested deeper than `data` is allowed to be.

    Brackets are counted without looking for strings. Inside a numeric array there are none, so the
    rise above the lowest count so far is never less than its true depth; it may be more, which only
    costs the fast parser.
    """
    if not _has_more_brackets(text, MAX_DATA_DEPTH):
        return False
    codes = np.frombuffer(text, np.uint8)
    depth = lowest = 0
    for start in range(0, len(codes), _SCAN_BYTES):
        chunk = codes[start : start + _SCAN_BYTES]
        steps = ord("\\") - chunk[(chunk == ord("[")) | (chunk == ord("]"))].astype(np.int64)
        if steps.size:  # "[" is one below the backslash, "]" one above
            depths = depth + np.cumsum(steps)
            floors = np.minimum(np.minimum.accumulate(depths), lowest)
            if (depths - floors).max() > MAX_DATA_DEPTH:
                return True
            depth, lowest = int(depths[-1]), int(floors[-1])
    return False


def _has_more_brackets(text: bytes, count: int) -> bool:
    # Not text.count: it looks at each byte, find at a vector of them at once.
    at = -1
    for _ in range(count + 1):
        at = text.find(b"[", at + 1)
        if at < 0:
            return False
    return True


def _open_request(root: simdjson.Object) -> dict[str, Any]:
    document = _fields(root, _REQUEST_KEYS, kept_array="inputs")
    inputs = document.get("inputs")
    if isinstance(inputs, simdjson.Array):
        if len(inputs) > MAX_ENTRIES:
            raise ValueError("too many inputs to look at one by one")
        document["inputs"] = [_open_input(entry) for entry in inputs]
    return document


def _open_input(entry: Any) -> Any:
    if isinstance(entry, simdjson.Object):
        return _fields(entry, _INPUT_KEYS, kept_array="data")
    return _plain(entry)


def _fields(proxy: simdjson.Object, known: frozenset[str], kept_array: str) -> dict[str, Any]:
    """Return the known members as Python objects, except for one that may stay an array proxy."""
    keys = list(proxy)
    if len(set(keys)) < len(keys):
        raise ValueError("a repeated key: simdjson would find the first one")
    fields = {key: proxy[key] for key in keys if key in known}
    for key, value in fields.items():
        if not (key == kept_array and isinstance(value, simdjson.Array)):
            fields[key] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    """Turn a proxy into Python objects.

    Not by its own as_list(): that trusts an element count which stops at 2**24, and overruns.
    """
    if isinstance(value, simdjson.Array | simdjson.Object):
        return orjson.loads(value.mini)
    return value
