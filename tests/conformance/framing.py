"""Cases about how a body is put together: JSON and bytes, raw bytes, compression, chunks."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator

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
from tests.conformance.raw_http import chunk, head

TAIL = struct.pack("<3f", 1.5, -0.1, 7.0)
HEAD = document(tensor("IN", "FP32", [3], binary_data_size=len(TAIL)))


def header_lengths() -> Iterator[Case]:
    size = len(HEAD)
    lengths: dict[str, object] = {
        "right": size,
        "one-less": size - 1,
        "one-more": size + 1,
        "whole": size + len(TAIL),
        "beyond": size + len(TAIL) + 1,
        "minus-one": -1,
        "plus": f"+{size}",
        "fraction": f"{size}.0",
        "hexadecimal": f"0x{size:x}",
        "trailing-letters": f"{size}abc",
        "text": "abc",
        "empty": "",
        "spaces": f"  {size}  ",
        "leading-zeros": f"000{size}",
        "beyond-int64": 2**70,
    }
    for name, length in lengths.items():
        yield Case(f"header-{name}", binary("echo_FP32", HEAD, TAIL, length=length))
    yield Case("header-absent", infer("echo_FP32", HEAD + TAIL))
    yield Case("header-lower-case", infer("echo_FP32", HEAD + TAIL, f"{HEADER.lower()}: {size}"))
    twice = f"{HEADER}: {size}"
    yield Case("header-twice-the-same", infer("echo_FP32", HEAD + TAIL, twice, twice))
    other = f"{HEADER}: {size - 1}"
    yield Case("header-twice-different", infer("echo_FP32", HEAD + TAIL, twice, other))
    json_only = document(tensor("IN", "FP32", [1], [1.5]))
    yield Case("header-of-all-json", binary("echo_FP32", json_only, b""))


def sizes() -> Iterator[Case]:
    claims = {
        "text": "12",
        "negative": -4,
        "float": 12.0,
        "null": None,
        "2**31": 2**31,
        "2**63": 2**63,
        "one-short": 11,
        "four-short": 8,
        "one-long": 13,
    }
    for name, claim in claims.items():
        described = tensor("IN", "FP32", [3], binary_data_size=claim)
        yield Case(f"size-{name}", binary("echo_FP32", document(described), TAIL))
    both = tensor("IN", "FP32", [3], [1, 2, 3], binary_data_size=12)
    yield Case("size-and-data", binary("echo_FP32", document(both), TAIL))
    unclaimed = document(tensor("IN", "FP32", [1], [1.5]))
    yield Case("bytes-nobody-claims", binary("echo_FP32", unclaimed, TAIL))
    yield Case("size-without-bytes", infer("echo_FP32", HEAD))
    yield Case("odd-size", echo_binary("FP32", TAIL[:-1], [3]))
    yield Case("other-shape", echo_binary("FP32", TAIL, [4]))
    yield Case("other-rank", echo_binary("FP32", TAIL, [1, 3]))
    yield Case("nothing", infer("echo_FP32", document(tensor("IN", "FP32", [0], binary_data_size=0))))
    yield Case("unknown-datatype", binary("echo_FP32", HEAD.replace(b"FP32", b"FP31"), TAIL))
    yield Case("other-datatype", binary("echo_FP32", HEAD.replace(b"FP32", b"INT32"), TAIL))
    yield Case("other-name", binary("echo_FP32", HEAD.replace(b'"IN"', b'"NO"'), TAIL))


def strings() -> Iterator[Case]:
    for name, tail in {
        "length-cut-off": texts(b"ab", b"c") + b"\1\0",
        "text-cut-off": texts(b"ab", b"cdef")[:-2],
        "one-too-few": texts(b"ab"),
        "one-too-many": texts(b"ab", b"c", b"d"),
        "length-beyond": struct.pack("<I", 2**32 - 1) + b"ab",
    }.items():
        yield Case(f"BYTES-{name}", echo_binary("BYTES", tail, [2]))


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


def raw() -> Iterator[Case]:
    zero = f"{HEADER}: 0"
    one = struct.pack("<10f", *range(10))
    yield Case("raw-FP32", infer("echo_FP32", TAIL, zero))
    yield Case("raw-FP32-odd", infer("echo_FP32", TAIL[:-1], zero))
    yield Case("raw-FP32-empty", infer("echo_FP32", b"", zero))
    yield Case("raw-INT64", infer("echo_INT64", bytes(range(16)), zero))
    yield Case("raw-batching-model", infer("simple_onnx", one, zero))
    yield Case("raw-batching-model-short", infer("simple_onnx", one[:-4], zero))
    yield Case("raw-batching-model-long", infer("simple_onnx", one + one, zero))
    yield Case("raw-version", infer("simple_onnx", one, zero, version="1"))
    yield Case("raw-two-inputs", infer("two_in", one, zero))
    yield Case("raw-BYTES-of-any-length", infer("echo_BYTES", b"text", zero))
    yield Case("raw-json", infer("echo_INT32", document(tensor("IN", "INT32", [1], [1])), zero))
    yield Case("raw-variable-dims", infer("identity_fp32", TAIL, zero))
    yield Case("no-body-at-all", infer("echo_FP32", b""))


def compression() -> Iterator[Case]:
    json_body = document(tensor("IN", "FP32", [3], [1, 2, 3]))
    packed = {
        "gzip": gzip.compress(json_body),
        "deflate": zlib.compress(json_body),
        "identity": json_body,
    }
    for name, body in packed.items():
        yield Case(f"encoded-{name}", infer("echo_FP32", body, f"Content-Encoding: {name}"))
    for name in ("br", "GZIP", "gzip, deflate", "zstd", ""):
        request = infer("echo_FP32", packed["gzip"] if name else json_body, f"Content-Encoding: {name}")
        yield Case(f"encoded-{name.replace(', ', '-') or 'empty'}", request)
    gz = "Content-Encoding: gzip"
    deflate = "Content-Encoding: deflate"
    length = f"{HEADER}: {len(HEAD)}"
    yield Case("encoded-binary", infer("echo_FP32", gzip.compress(HEAD + TAIL), gz, length))
    yield Case("encoded-raw", infer("echo_FP32", zlib.compress(TAIL), deflate, f"{HEADER}: 0"))
    yield Case("gzip-called-deflate", infer("echo_FP32", packed["gzip"], deflate))
    yield Case("deflate-called-gzip", infer("echo_FP32", packed["deflate"], gz))
    yield Case("gzip-of-two-members", infer("echo_FP32", gzip.compress(json_body[:9]) + gzip.compress(json_body[9:]), gz))
    yield Case("gzip-cut-off", infer("echo_FP32", packed["gzip"][:-9], gz))
    yield Case("gzip-that-is-plain", infer("echo_FP32", json_body, gz))
    yield Case("gzip-of-nothing", infer("echo_FP32", b"", gz))
    yield Case("gzip-with-rest", infer("echo_FP32", packed["gzip"] + b"rest", gz))
    yield Case("unknown-model-encoded", infer("nope", b"x", "Content-Encoding: br"))
    accepted = (
        "gzip", "deflate", "gzip, deflate", "deflate, gzip", "identity", "identity, gzip", "br",
        "*", "gzip;q=0", "gzip;q=0.5, deflate;q=0.9", "identity;q=0.1, gzip;q=0.2", "GZIP",
        "br, gzip;q=0.1", "gzip; q=0.4, deflate", "",
    )
    for name in accepted:
        request = infer("echo_FP32", json_body, f"Accept-Encoding: {name}")
        yield Case(f"accept-{name.replace(' ', '') or 'nothing'}", request)
    both = document(tensor("IN", "FP32", [3], [1, 2, 3]), parameters={"binary_data_output": True})
    yield Case("accept-gzip-binary", infer("echo_FP32", both, "Accept-Encoding: gzip"))
    yield Case("accept-deflate-binary", infer("echo_FP32", both, "Accept-Encoding: deflate"))
    yield Case("accept-gzip-of-an-error", infer("echo_FP32", document(tensor("NO", "FP32", [1], [1])), "Accept-Encoding: gzip"))


def chunked() -> Iterator[Case]:
    framed = head("POST", infer_path("echo_FP32"), ["Transfer-Encoding: chunked", f"{HEADER}: {len(HEAD)}"])
    body = HEAD + TAIL
    at = len(HEAD)
    for name, cuts in {
        "whole": [],
        "inside-the-json": [at // 2],
        "on-the-border": [at],
        "inside-a-number": [at + 2],
        "in-three": [7, at - 1],
        "byte-by-byte": list(range(1, len(body))),
    }.items():
        edges = [0, *cuts, len(body)]
        chunks = [chunk(body[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
        request = framed + b"".join(chunks) + chunk(b"")
        yield Case(f"chunked-{name}", request)
    pieces = (framed + chunk(body[:at])[:-1], b"\n" + chunk(body[at:])[:3], chunk(body[at:])[3:] + b"0\r", b"\n\r\n")
    yield Case("chunked-torn-apart", pieces)
    yield Case("chunked-with-extension", framed + b"%x;a=b\r\n" % len(body) + body + b"\r\n" + chunk(b""))
    yield Case("chunked-upper-case-size", framed + b"%X\r\n" % len(body) + body + b"\r\n" + chunk(b""))
    yield Case("chunked-with-trailer", framed + chunk(body) + b"0\r\nX-Sum: 1\r\n\r\n")
    plain = echo("FP32", [1.5])
    cut = plain.index(b"\r\n\r\n") + 4
    yield Case("body-after-a-pause", (plain[:cut], plain[cut:]))
    yield Case("body-in-halves", (plain[: cut + 9], plain[cut + 9 :]))
    yield Case("head-in-halves", (plain[:9], plain[9 : cut - 2], plain[cut - 2 :]))


CASES = [
    *header_lengths(),
    *sizes(),
    *strings(),
    *mixed(),
    *raw(),
    *compression(),
    *chunked(),
]
