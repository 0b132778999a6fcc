"""Cases about tensors: every datatype in every form, values at the edges, and what is no value."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tests.conformance.build import (
    document,
    echo,
    echo_binary,
    echo_text,
    infer,
    output,
    tensor,
    texts,
)
from tests.conformance.case import Case
from tests.conformance.differences import (
    EXACT_DOUBLES,
    HALF_PRECISION,
    LAST_AND_WHOLE,
    MALFORMED_IS_400,
    NARROW_INTEGERS,
    STRICT_JSON,
    TEXT_OUTPUT,
)

SAMPLES: dict[str, tuple[list[Any], bytes]] = {
    "BOOL": ([True, False, True, True], bytes([1, 0, 1, 1])),
    "UINT8": ([0, 1, 200, 255], bytes([0, 1, 200, 255])),
    "UINT16": ([0, 1, 65535, 9], struct.pack("<4H", 0, 1, 65535, 9)),
    "UINT32": ([0, 1, 2**32 - 1, 9], struct.pack("<4I", 0, 1, 2**32 - 1, 9)),
    "UINT64": ([0, 1, 2**64 - 1, 2**63], struct.pack("<4Q", 0, 1, 2**64 - 1, 2**63)),
    "INT8": ([-128, -1, 0, 127], struct.pack("<4b", -128, -1, 0, 127)),
    "INT16": ([-(2**15), -1, 0, 2**15 - 1], struct.pack("<4h", -(2**15), -1, 0, 2**15 - 1)),
    "INT32": ([-(2**31), -1, 0, 2**31 - 1], struct.pack("<4i", -(2**31), -1, 0, 2**31 - 1)),
    "INT64": ([-(2**63), -1, 0, 2**63 - 1], struct.pack("<4q", -(2**63), -1, 0, 2**63 - 1)),
    "FP16": ([1.0, -2.5, 65504.0, 0.0], struct.pack("<4e", 1.0, -2.5, 65504.0, 0.0)),
    "BF16": ([1.0, -2.5, 0.15625, 0.0], bytes.fromhex("803f20c0203e0000")),
    "FP32": (
        [1.5, -0.1, 3.4028234663852886e38, 1e-45],
        b"".join(struct.pack("<f", value) for value in (1.5, -0.1, 3.4028234663852886e38, 1e-45)),
    ),
    "FP64": (
        [1.5, -0.1, 1.7976931348623157e308, 5e-324],
        struct.pack("<4d", 1.5, -0.1, 1.7976931348623157e308, 5e-324),
    ),
    "BYTES": (["", "a", 'q"\\\n', "ä€😀"], texts(b"", b"a", b'q"\\\n', "ä€😀".encode())),
}
"""Four elements of each datatype, as JSON values and as bytes."""

DATA = "Unable to parse 'inputs[0].data': "
BROKEN_JSON = "failed to parse the request JSON buffer: "
BINARY = {"binary_data_output": True}


def every_form() -> Iterator[Case]:
    for datatype, (values, raw) in SAMPLES.items():
        column = [[value] for value in values]
        rows = [values[:2], values[2:]]
        forms = {
            "json-to-json": echo(datatype, values),
            "json-to-binary": echo(datatype, values, parameters=BINARY),
            "column": echo(datatype, column, [4]),
            "rows": echo(datatype, rows, [4]),
            "binary-to-binary": echo_binary(datatype, raw, [4], parameters=BINARY),
            "binary-to-json": echo_binary(datatype, raw, [4]),
            "output-as-binary": echo(datatype, values, outputs=[output("OUT", binary_data=True)]),
        }
        for name, request in forms.items():
            half = datatype in ("FP16", "BF16") and name != "binary-to-binary"
            yield Case(f"{datatype}-{name}", request, HALF_PRECISION if half else None)


ACCEPTED = (
    ("FP32-nan", "[NaN, 1]"),
    ("FP32-infinities", "[Infinity, -Infinity]"),
    ("FP32-short-infinities", "[Inf, -Inf]"),
    ("FP64-nan", "[NaN, -Infinity]"),
    ("FP32-rounds-to-infinity", "[1e39, -1e39]"),
    ("FP32-integers", "[1, -3]"),
    ("FP32-minus-zero", "[-0.0, 0.0]"),
    ("FP32-exponents", "[1E5, 2e-7]"),
    ("FP32-ragged", "[1, [2]]"),
    ("FP64-beyond-2**53", "[9007199254740993, 9007199254740992]"),
    ("FP64-many-digits", "[0.1000000000000000055511151231257827, 1e22]"),
    ("FP64-printed-with-exponent", "[1e16, 1e-7]"),
    ("FP64-printed-without-exponent", "[123456789012345680, 0.0001]"),
    ("INT32-minus-zero", "[-0, 1]"),
    ("INT32-99-deep", "[" * 99 + "1, 2" + "]" * 99),
    ("BYTES-ragged", '["p", ["q"]]'),
    ("BYTES-nul", r'["\u0000", "a\u0000b"]'),
    ("BYTES-controls", r'["\u0001\u001f\u007f", "\b\f\n\r\t\/"]'),
    ("BYTES-surrogate-pair", r'["\ud83d\ude00", "\uD83D\uDE00"]'),
)
"""`data` for two elements of a datatype that both sides take."""

NO_VALUES = (
    ("INT64-beyond-64-bits", "[9223372036854775808, 1]"),
    ("UINT64-beyond-64-bits", "[18446744073709551616, 1]"),
    ("UINT32-negative", "[-1, 1]"),
    ("INT32-fraction", "[1, 2.5]"),
    ("INT32-float", "[1.0, 2]"),
    ("INT32-exponent", "[1e1, 2]"),
    ("INT32-text", '[1, "2"]'),
    ("INT32-boolean", "[true, 1]"),
    ("INT32-null", "[null, 1]"),
    ("INT32-object", "[{}, 1]"),
    ("INT32-nan", "[NaN, 1]"),
    ("BOOL-numbers", "[1, 0]"),
    ("BOOL-text", '["true", "false"]'),
    ("FP32-text", '["1", 2]'),
    ("FP32-null", "[null, 1]"),
    ("FP32-boolean", "[true, 1]"),
    ("BYTES-numbers", "[1, 2]"),
    ("BYTES-null", '[null, "a"]'),
)
"""JSON that is not of the datatype."""

NO_JSON = (
    ("FP64-too-big-a-number", "[1e400, 1]"),
    ("INT32-leading-zero", "[01, 1]"),
    ("INT32-plus", "[+1, 1]"),
    ("INT32-trailing-comma", "[1, 2,]"),
    ("INT32-comment", "[1, /* two */ 2]"),
    ("BYTES-lone-surrogate", r'["\ud800", "a"]'),
    ("BYTES-bad-escape", r'["\x41", "a"]'),
    ("BYTES-raw-control", '["\x01", "a"]'),
)

TOO_WIDE = (
    ("INT8-wraps", "[200, 1]"),
    ("INT16-wraps", "[1, -32769]"),
    ("INT32-wraps", "[1099511627783, 1]"),
    ("UINT8-wraps", "[256, 1]"),
    ("UINT16-wraps", "[65536, 1]"),
    ("UINT32-wraps", "[4294967296, 1]"),
)


def edges() -> Iterator[Case]:
    for tables, differs, field in (
        (ACCEPTED, None, ""),
        (NO_VALUES, MALFORMED_IS_400, DATA),
        (NO_JSON, MALFORMED_IS_400, BROKEN_JSON),
        (TOO_WIDE, NARROW_INTEGERS, DATA),
    ):
        for name, data in tables:
            datatype = name.partition("-")[0]
            yield Case(name, echo_text(datatype, data, [2]), differs, field)
    many_digits = "[123456789012345678901234567890, 18446744073709551616]"
    yield Case("FP64-30-digits", echo_text("FP64", many_digits, [2]), EXACT_DOUBLES)


def odd_bytes() -> Iterator[Case]:
    no_text = texts(b"\xff\xfe", b"a")
    raw_byte = infer("echo_BYTES", echo_bytes_text(b'"\xff", "a"'))
    yield Case("BYTES-raw-0xFF", raw_byte, STRICT_JSON, BROKEN_JSON)
    yield Case("BYTES-no-text-to-json", echo_binary("BYTES", no_text, [2]), TEXT_OUTPUT, "'OUT'")
    to_binary = echo_binary("BYTES", no_text, [2], parameters=BINARY)
    yield Case("BYTES-no-text-to-binary", to_binary)
    yield Case("BOOL-any-byte-is-true", echo_binary("BOOL", bytes([2, 255]), [2]))
    nans = bytes.fromhex("0100c07f000080ff")
    yield Case("FP32-nan-bits", echo_binary("FP32", nans, [2]))
    yield Case("FP32-nan-bits-to-binary", echo_binary("FP32", nans, [2], parameters=BINARY))


def echo_bytes_text(elements: bytes) -> bytes:
    marked = document(tensor("IN", "BYTES", [2], ["DATA"]))
    return marked.replace(b'"DATA"', elements)


def large() -> Iterator[Case]:
    """Bodies that the gateway reads with another parser than small ones."""
    ints = list(range(-10_000, 10_000))
    floats = [at / 7 for at in range(20_000)]
    yield Case("INT32-20000", echo("INT32", ints))
    yield Case("INT32-20000-nested", echo("INT32", [ints[:10_000], ints[10_000:]], [20_000]))
    yield Case("FP32-20000", echo("FP32", floats))
    yield Case("FP64-20000", echo("FP64", floats), EXACT_DOUBLES)
    yield Case("FP64-20000-to-binary", echo("FP64", floats, parameters=BINARY), EXACT_DOUBLES)
    yield Case("INT64-20000", echo("INT64", [at * 2**40 for at in ints]))
    yield Case("UINT64-20000", echo("UINT64", [2**64 - 1 - at for at in range(20_000)]))
    yield Case("UINT8-70000", echo("UINT8", [at % 256 for at in range(70_000)]))
    yield Case("BOOL-20000", echo("BOOL", [at % 3 == 0 for at in range(20_000)]))
    yield Case("BYTES-20000", echo("BYTES", [f"text {at} ä" for at in range(20_000)]))
    yield Case("FP32-20000-with-nan", echo("FP32", [float("nan"), *floats]))
    yield Case("FP32-20000-integers", echo("FP32", ints))
    for name, request in {
        "with-text": echo("INT32", [*ints, "7"]),
        "with-fraction": echo("INT32", [*ints, 7.5]),
        "too-few": echo("INT32", ints, [20_001]),
        "too-many": echo("INT32", ints, [19_999]),
    }.items():
        yield Case(f"INT32-20000-{name}", request, MALFORMED_IS_400, DATA)
    whole = document(tensor("IN", "INT32", [20_000], ints))
    cut_off = infer("echo_INT32", whole[:-9])
    yield Case("INT32-20000-cut-off", cut_off, MALFORMED_IS_400, BROKEN_JSON)
    yield Case("INT8-20000-wraps", echo("INT8", [*([1] * 30_000), 200]), NARROW_INTEGERS, DATA)
    twice = whole.replace(b'"data"', b'"data": [1], "data"')
    first_is_short = infer("echo_INT32", twice)
    yield Case("INT32-20000-twice", first_is_short, LAST_AND_WHOLE)


CASES = [*every_form(), *edges(), *odd_bytes(), *large()]
