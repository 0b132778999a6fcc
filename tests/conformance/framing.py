"""Cases about how a body is put together: JSON and bytes, raw bytes, compression, chunks."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise

from tests.conformance.build import (
    HEADER,
    binary,
    document,
    echo,
    echo_binary,
    infer,
    infer_path,
    output,
    tensor,
    texts,
)
from tests.conformance.case import Case
from tests.conformance.differences import (
    CHUNK_EXTENSIONS,
    DAMAGED_COMPRESSION,
    EMPTY_ENCODING,
    GZIP_MEMBERS,
    HEADER_IS_A_NUMBER,
    MALFORMED_IS_400,
    NO_ACCIDENTAL_RAW,
    NO_ID_PREFIX,
    OWN_WORDS,
    SAYS_WHERE,
    Difference,
)
from tests.conformance.raw_http import chunk, head

TAIL = struct.pack("<3f", 1.5, -0.1, 7.0)
HEAD = document(tensor("IN", "FP32", [3], binary_data_size=len(TAIL)))
JSON_BODY = document(tensor("IN", "FP32", [3], [1, 2, 3]))
RAW = f"{HEADER}: 0"
SIZE_FIELD = "'inputs[0].parameters.binary_data_size'"

LENGTHS: tuple[tuple[str, object, Difference | None], ...] = (
    ("right", len(HEAD), None),
    ("spaces", f"  {len(HEAD)}  ", None),
    ("leading-zeros", f"000{len(HEAD)}", None),
    ("one-less", len(HEAD) - 1, MALFORMED_IS_400),
    ("one-more", len(HEAD) + 1, OWN_WORDS),
    ("whole", len(HEAD) + len(TAIL), OWN_WORDS),
    ("beyond", len(HEAD) + len(TAIL) + 1, SAYS_WHERE),
    ("minus-one", -1, OWN_WORDS),
    ("plus", f"+{len(HEAD)}", HEADER_IS_A_NUMBER),
    ("fraction", f"{len(HEAD)}.0", HEADER_IS_A_NUMBER),
    ("hexadecimal", f"0x{len(HEAD):x}", OWN_WORDS),
    ("trailing-letters", f"{len(HEAD)}abc", HEADER_IS_A_NUMBER),
    ("text", "abc", OWN_WORDS),
    ("empty", "", OWN_WORDS),
    ("beyond-int64", 2**70, OWN_WORDS),
)
SIZES: tuple[tuple[str, object, Difference | None, str], ...] = (
    ("text", "12", MALFORMED_IS_400, SIZE_FIELD),
    ("negative", -4, MALFORMED_IS_400, SIZE_FIELD),
    ("float", 12.0, MALFORMED_IS_400, SIZE_FIELD),
    ("null", None, MALFORMED_IS_400, SIZE_FIELD),
    ("2**31", 2**31, None, ""),
    ("2**63", 2**63, None, ""),
    ("one-short", 11, OWN_WORDS, "input 'IN'"),
    ("four-short", 8, OWN_WORDS, "input 'IN'"),
    ("one-long", 13, None, ""),
)
STRINGS: tuple[tuple[str, bytes, Difference | None, str], ...] = (
    ("length-cut-off", texts(b"ab", b"c") + b"\1\0", NO_ID_PREFIX, ""),
    ("text-cut-off", texts(b"ab", b"cdef")[:-2], OWN_WORDS, "input 'IN'"),
    ("one-too-few", texts(b"ab"), NO_ID_PREFIX, ""),
    ("one-too-many", texts(b"ab", b"c", b"d"), NO_ID_PREFIX, ""),
    ("length-beyond", struct.pack("<I", 2**32 - 1) + b"ab", OWN_WORDS, "input 'IN'"),
)


def lengths() -> Iterator[Case]:
    for name, length, differs in LENGTHS:
        request = binary("echo_FP32", HEAD, TAIL, length=length)
        yield Case(f"header-{name}", request, differs, HEADER if differs else "")
    both = HEAD + TAIL
    yield Case("header-absent", infer("echo_FP32", both), OWN_WORDS, HEADER)
    right, wrong = f"{HEADER}: {len(HEAD)}", f"{HEADER}: {len(HEAD) - 1}"
    yield Case("header-lower-case", infer("echo_FP32", both, right.lower()))
    yield Case("header-twice-the-same", infer("echo_FP32", both, right, right))
    unequal = infer("echo_FP32", both, right, wrong)
    yield Case("header-twice-different", unequal, HEADER_IS_A_NUMBER, HEADER)
    yield Case("header-of-all-json", binary("echo_FP32", JSON_BODY, b""))


def sizes() -> Iterator[Case]:
    for name, claim, differs, field in SIZES:
        described = document(tensor("IN", "FP32", [3], binary_data_size=claim))
        yield Case(f"size-{name}", binary("echo_FP32", described, TAIL), differs, field)
    both = document(tensor("IN", "FP32", [3], [1, 2, 3], binary_data_size=12))
    yield Case("size-and-data", binary("echo_FP32", both, TAIL), SAYS_WHERE, "'inputs[0]'")
    unclaimed = binary("echo_FP32", JSON_BODY, TAIL)
    yield Case("bytes-nobody-claims", unclaimed, SAYS_WHERE, "binary_data_size")
    yield Case("size-without-bytes", infer("echo_FP32", HEAD), SAYS_WHERE, HEADER)
    yield Case("size-odd", echo_binary("FP32", TAIL[:-1], [3]), NO_ID_PREFIX)
    yield Case("size-of-another-shape", echo_binary("FP32", TAIL, [4]), NO_ID_PREFIX)
    yield Case("another-rank", echo_binary("FP32", TAIL, [1, 3]))
    empty = document(tensor("IN", "FP32", [0], binary_data_size=0))
    yield Case("size-0", infer("echo_FP32", empty))
    unknown = binary("echo_FP32", HEAD.replace(b"FP32", b"FP31"), TAIL)
    yield Case("datatype-unknown-in-binary", unknown, OWN_WORDS, "'inputs[0].datatype'")
    yield Case("other-datatype", binary("echo_INT32", HEAD, TAIL))
    yield Case("other-name", binary("echo_FP32", HEAD.replace(b'"IN"', b'"NO"'), TAIL))
    for name, tail, differs, field in STRINGS:
        yield Case(f"BYTES-{name}", echo_binary("BYTES", tail, [2]), differs, field)


def mixed() -> Iterator[Case]:
    rows = struct.pack("<16i", *range(16))
    first = tensor("INPUT0", "INT32", [1, 16], binary_data_size=64)
    second = tensor("INPUT1", "INT32", [1, 16], binary_data_size=64)
    plain = tensor("INPUT1", "INT32", [1, 16], list(range(16)))
    yield Case("binary-then-json", binary("two_in", document(first, plain), rows))
    yield Case("json-then-binary", binary("two_in", document(plain, first), rows))
    yield Case("both-binary", binary("two_in", document(first, second), rows + rows[::-1]))
    yield Case("both-binary-one-short", binary("two_in", document(first, second), rows))
    outputs = [output("OUTPUT1", binary_data=True), output("OUTPUT0")]
    described = document(first, plain, outputs=outputs, id="m")
    yield Case("mixed-both-ways", binary("two_in", described, rows))
    empty = tensor("IN", "INT32", [0], binary_data_size=0)
    yield Case("empty-binary-input", infer("echo_INT32", document(empty, outputs=[output("OUT")])))


def raw() -> Iterator[Case]:
    one = struct.pack("<10f", *range(10))
    for name, model, body, differs in (
        ("FP32", "echo_FP32", TAIL, None),
        ("FP32-odd", "echo_FP32", TAIL[:-1], NO_ID_PREFIX),
        ("FP32-empty", "echo_FP32", b"", None),
        ("INT64", "echo_INT64", bytes(range(16)), None),
        ("batching-model", "simple_onnx", one, None),
        ("batching-model-short", "simple_onnx", one[:-4], NO_ID_PREFIX),
        ("batching-model-long", "simple_onnx", one + one, NO_ID_PREFIX),
        ("two-inputs", "two_in", one, NO_ID_PREFIX),
        ("BYTES-of-any-length", "echo_BYTES", b"text", NO_ID_PREFIX),
        ("variable-dims", "identity_fp32", TAIL, None),
    ):
        yield Case(f"raw-{name}", infer(model, body, RAW), differs)
    yield Case("raw-version", infer("simple_onnx", one, RAW, version="1"))
    json_as_bytes = document(tensor("IN", "INT32", [1], [1])).ljust(64)
    yield Case("raw-json", infer("echo_INT32", json_as_bytes, RAW))
    yield Case("no-body-at-all", infer("echo_FP32", b""), NO_ACCIDENTAL_RAW, HEADER)


def encodings() -> Iterator[Case]:
    packed, deflated = gzip.compress(JSON_BODY), zlib.compress(JSON_BODY)
    gz, deflate = "Content-Encoding: gzip", "Content-Encoding: deflate"
    for name, body, coding in (
        ("encoded-gzip", packed, gz),
        ("encoded-deflate", deflated, deflate),
        ("encoded-identity", JSON_BODY, "Content-Encoding: identity"),
        ("encoded-br", packed, "Content-Encoding: br"),
        ("encoded-GZIP", packed, "Content-Encoding: GZIP"),
        ("encoded-twice", packed, "Content-Encoding: gzip, deflate"),
        ("encoded-zstd", packed, "Content-Encoding: zstd"),
        ("gzip-called-deflate", packed, deflate),
        ("deflate-called-gzip", deflated, gz),
    ):
        yield Case(name, infer("echo_FP32", body, coding))
    length = f"{HEADER}: {len(HEAD)}"
    yield Case("encoded-binary", infer("echo_FP32", gzip.compress(HEAD + TAIL), gz, length))
    yield Case("encoded-raw", infer("echo_FP32", zlib.compress(TAIL), deflate, RAW))
    no_coding = infer("echo_FP32", JSON_BODY, "Content-Encoding: ")
    yield Case("encoded-empty", no_coding, EMPTY_ENCODING)
    members = gzip.compress(JSON_BODY[:9]) + gzip.compress(JSON_BODY[9:])
    yield Case("gzip-of-two-members", infer("echo_FP32", members, gz), GZIP_MEMBERS)
    for name, body in {
        "cut-off": packed[:-9],
        "that-is-plain": JSON_BODY,
        "with-rest": packed + b"rest",
    }.items():
        request = infer("echo_FP32", body, gz)
        yield Case(f"gzip-{name}", request, DAMAGED_COMPRESSION, "decompress")
    yield Case("gzip-of-nothing", infer("echo_FP32", b"", gz), OWN_WORDS, "decompress")
    yield Case("unknown-model-encoded", infer("nope", b"x", "Content-Encoding: br"))


def accepted_encodings() -> Iterator[Case]:
    for accept in (
        "gzip",
        "deflate",
        "gzip, deflate",
        "deflate, gzip",
        "gzip, deflate, br",
        "identity",
        "identity, gzip",
        "br",
        "*",
        "gzip;q=0",
        "gzip;q=0.5, deflate;q=0.9",
        "identity;q=0.1, gzip;q=0.2",
        "GZIP",
        "br, gzip;q=0.1",
        "gzip; q=0.4, deflate",
        "",
    ):
        request = infer("echo_FP32", JSON_BODY, f"Accept-Encoding: {accept}")
        yield Case(f"accept-{accept.replace(' ', '') or 'nothing'}", request)
    binary_out = JSON_BODY[:-1] + b',"parameters":{"binary_data_output":true}}'
    refused = JSON_BODY.replace(b'"IN"', b'"NO"')
    for name, body in {"binary": binary_out, "an-error": refused}.items():
        for coding in ("gzip", "deflate"):
            request = infer("echo_FP32", body, f"Accept-Encoding: {coding}")
            yield Case(f"accept-{coding}-of-{name}", request)


def chunked() -> Iterator[Case]:
    headers = ["Transfer-Encoding: chunked", f"{HEADER}: {len(HEAD)}"]
    framed = head("POST", infer_path("echo_FP32"), headers)
    body, border, end = HEAD + TAIL, len(HEAD), chunk(b"")
    for name, cuts in {
        "whole": [],
        "inside-the-json": [border // 2],
        "on-the-border": [border],
        "inside-a-number": [border + 2],
        "in-three": [7, border - 1],
        "byte-by-byte": list(range(1, len(body))),
    }.items():
        edges = [0, *cuts, len(body)]
        chunks = [chunk(body[a:b]) for a, b in pairwise(edges)]
        yield Case(f"chunked-{name}", framed + b"".join(chunks) + end)
        yield Case(f"chunked-slowly-{name}", (framed, *chunks[:4], b"".join(chunks[4:]) + end))
    first, second = chunk(body[:border]), chunk(body[border:])
    torn = (framed + first[:-1], first[-1:] + second[:3], second[3:] + end[:2], end[2:])
    yield Case("chunked-torn-apart", torn)
    size = f"{len(body):x}"
    extended = size.encode() + b";a=b\r\n" + body + b"\r\n"
    yield Case("chunked-with-extension", framed + extended + end, CHUNK_EXTENSIONS)
    padded = b"000" + size.encode() + b"\r\n" + body + b"\r\n"
    yield Case("chunked-size-with-leading-zeros", framed + padded + end)
    yield Case("chunked-with-trailer", framed + chunk(body) + b"0\r\nX-Sum: 1\r\n\r\n")


def pauses() -> Iterator[Case]:
    plain = echo("FP32", [1.5])
    border = plain.index(b"\r\n\r\n") + 4
    for name, cuts in {
        "before-the-body": [border],
        "in-the-body": [border + 9],
        "in-the-head": [9, border - 2],
    }.items():
        edges = [0, *cuts, len(plain)]
        pieces = tuple(plain[a:b] for a, b in pairwise(edges))
        yield Case(f"pause-{name}", pieces)


CASES = [
    *lengths(),
    *sizes(),
    *mixed(),
    *raw(),
    *encodings(),
    *accepted_encodings(),
    *chunked(),
    *pauses(),
]
