"""What clients have sent to servers and broken them with, each with the one status it has here.

Nothing is sent from here. The scripted server behind the gateway takes whatever reaches it: what
only a model can judge is left to Triton, and compared with it elsewhere.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.conformance.build import (
    HEADER,
    binary,
    document,
    echo,
    echo_binary,
    echo_text,
    infer,
    infer_path,
    output,
    tensor,
    texts,
)
from tests.conformance.raw_http import chunk, head, request

BINARY_OUT = {"binary_data_output": True}
GOOD_BODY = document(tensor("IN", "INT32", [3], [1, 2, 3]))
NAMES = ("m.v1", "m v", "m\nv", 'm"}', "модель", "stats", "ready", "versions", "infer", "index")
"""Models with names that are odd, encoded in a path, or those of routes."""


@dataclass(frozen=True)
class Item:
    """A request and the one status it has; `names` is what an error has to name."""

    id: str
    request: bytes
    status: int
    names: str = ""


def json_items(good: dict[str, Any], rows: Iterable[tuple[str, Any, int, str]]) -> Iterator[Item]:
    """Change a field of a good request's input; `...` leaves it out."""
    for field, value, status, names in rows:
        changed = {**good, field: value}
        entry = {key: inner for key, inner in changed.items() if inner is not ...}
        body = document(entry)
        yield Item(f"{field}={value!r:.60}", infer("echo_INT32", body), status, names)


def wrong_types() -> Iterator[Item]:
    good = tensor("IN", "INT32", [3], [1, 2, 3])
    dims: tuple[Any, ...] = ("3", None, {}, [1.0], ["3"], [True], [[3]])
    data: tuple[Any, ...] = ({"b64": "AQID"}, "123", None, [{}], [None], [1, "2", 3], [1, 2.5, 3])
    yield from json_items(good, [("shape", value, 400, "'inputs[0].shape'") for value in dims])
    yield from json_items(good, [("data", value, 400, "'inputs[0].data'") for value in data])
    yield from json_items(
        good,
        [
            ("data", [True, False, True], 400, "'inputs[0].data'"),
            ("data", ..., 400, "'inputs[0]'"),
            *(
                ("datatype", v, 400, "'inputs[0].datatype'")
                for v in ("STRING", "int32", 5, "", ...)
            ),
            *(("name", value, 400, "'inputs[0].name'") for value in (7, "", ...)),
        ],
    )


def wrong_documents() -> Iterator[Item]:
    good = json.loads(GOOD_BODY)
    rows: tuple[tuple[str, Any, int, str], ...] = (
        ("inputs", {}, 400, "'inputs'"),
        ("inputs", None, 400, "'inputs'"),
        ("inputs", [], 400, "'inputs'"),
        ("inputs", ..., 400, "'inputs'"),
        ("outputs", [{}], 400, "'outputs[0].name'"),
        ("outputs", {"name": "OUT"}, 400, "'outputs'"),
        ("outputs", [{"name": "NOPE"}], 200, ""),  # only the model knows
        ("id", 12, 400, "'id'"),
        ("id", None, 400, "'id'"),
        ("id", "x" * 2**20, 400, "'id'"),
        ("id", "a\nb", 200, ""),
        ("parameters", [], 400, "'parameters'"),
        ("parameters", {"priority": "1"}, 400, "'parameters.priority'"),
        ("parameters", {"x": {"y": 1}}, 400, "'parameters.x'"),
    )
    for field, value, status, names in rows:
        changed = {**good, field: value}
        body = {key: inner for key, inner in changed.items() if inner is not ...}
        sent = infer("echo_INT32", json.dumps(body).encode())
        yield Item(f"{field}={value!r:.60}", sent, status, names)


def wrong_bodies() -> Iterator[Item]:
    broken = "failed to parse the request JSON buffer"
    lone_byte = GOOD_BODY[:-1] + b',"id":"\xff"}'
    twice = GOOD_BODY.replace(b'"data"', b'"data": [7, 8, 9], "data"')
    for name, body, status, names in (
        ("nothing", b"", 400, HEADER),
        ("null", b"null", 400, broken),
        ("array", b"[]", 400, broken),
        ("text", b'"x"', 400, broken),
        ("two documents", b"{}{}", 400, broken),
        ("byte order mark", b"\xef\xbb\xbf" + GOOD_BODY, 400, broken),
        ("UTF-16", GOOD_BODY.decode().encode("utf-16"), 400, broken),
        ("0xFF in a text", lone_byte, 400, broken),
        ("a key twice", twice, 200, ""),
    ):
        yield Item(f"body: {name}", infer("echo_INT32", body), status, names)
    for label in ("application/x-www-form-urlencoded", "text/plain"):
        labelled = infer("echo_INT32", GOOD_BODY, f"Content-Type: {label}")
        yield Item(f"content type {label}", labelled, 200)
    yield Item("no content type", infer("echo_INT32", GOOD_BODY), 200)


def nestings() -> Iterator[Item]:
    for datatype, one, other in (("BYTES", '"p"', '"q"'), ("INT32", "1", "2")):
        for form in ("[{0},{1}]", "[[{0}],[{1}]]", "[[{0},{1}]]", "[{0},[{1}]]"):
            data = form.format(one, other)
            yield Item(f"{datatype} {data}", echo_text(datatype, data, [2, 1]), 200)
        data = f"[{one},[{other},{other}]]"
        too_many = echo_text(datatype, data, [2, 1])
        yield Item(f"{datatype} {data}", too_many, 400, "'inputs[0].data'")
    escapes = r'["\u0000","\ud83d\ude00"]'
    yield Item("escapes", echo_text("BYTES", escapes, [2, 1]), 200)
    surrogate = echo_text("BYTES", r'["\ud800"]', [1, 1])
    yield Item("lone surrogate", surrogate, 400, "failed to parse the request JSON buffer")


def shapes() -> Iterator[Item]:
    three = [1, 2, 3]
    shape, data = "'inputs[0].shape'", "'inputs[0].data'"
    for dims, values, status, names in (
        ([-1], three, 400, shape),
        ([0], three, 200, ""),
        ([], [1], 200, ""),
        ([], three, 400, data),
        ([2**63 - 1], three, 400, shape),
        ([2**63], three, 400, shape),
        ([2**32, 2**32], [], 400, shape),
        ([2**31], [], 400, shape),
        ([2, -3], three, 400, shape),
        ([1] * 1000, [1], 200, ""),
        ([1] * 100_000, [1], 400, shape),
        ([3], [1, 2], 400, data),
        ([3], [1, 2, 3, 4], 400, data),
    ):
        sent = echo("INT32", values, dims)
        yield Item(f"{len(dims)} dims {dims!r:.40} data {values}", sent, status, names)


def half_precision() -> Iterator[Item]:
    tails = {"FP16": bytes.fromhex("003c00c1"), "BF16": bytes.fromhex("803f20c0")}
    for datatype, tail in tails.items():
        for parameters in ({}, BINARY_OUT):
            for values in ([1.0, -2.5], [65504], [65520], [1e-8]):
                sent = echo(datatype, values, parameters=parameters)
                yield Item(f"{datatype} {values} {parameters}", sent, 200)
            sent = echo_binary(datatype, tail, [2], parameters=parameters)
            yield Item(f"{datatype} tail {parameters}", sent, 200)


FP32_TAIL = struct.pack("<3f", 1.5, -0.1, 7.0)
FP32_HEAD = document(tensor("IN", "FP32", [3], binary_data_size=12))


def header_lengths() -> Iterator[Item]:
    size, whole = len(FP32_HEAD), len(FP32_HEAD + FP32_TAIL)
    for length, status, names in (
        ("0", 400, "raw_input"),
        (size, 200, ""),
        (size - 1, 400, HEADER),
        (size + 1, 400, HEADER),
        (whole, 400, HEADER),
        (whole + 1, 400, HEADER),
        ("-1", 400, HEADER),
        (f"+{size}", 400, HEADER),
        (f" {size} ", 200, ""),
        (f"{size}.0", 400, HEADER),
        (f"0x{size:x}", 400, HEADER),
        ("9" * 5000, 400, HEADER),
    ):
        sent = binary("echo_FP32", FP32_HEAD, FP32_TAIL, length=length)
        yield Item(f"header {length!r:.30}", sent, status, names)
    body, line = FP32_HEAD + FP32_TAIL, f"{HEADER}: {size}"
    yield Item("header absent", infer("echo_FP32", body), 400, HEADER)
    yield Item("header twice", infer("echo_FP32", body, line, line), 200)
    other = infer("echo_FP32", body, line, f"{HEADER}: {size - 1}")
    yield Item("header twice, different", other, 400, HEADER)


def tensor_sizes() -> Iterator[Item]:
    field = "'inputs[0].parameters.binary_data_size'"
    for size, status, names in (
        ("12", 400, field),
        (-4, 400, field),
        (12.0, 400, field),
        (2**31, 400, "input 'IN'"),
        (2**63, 400, "input 'IN'"),
        (2**64, 400, field),
        (11, 400, "input 'IN'"),
        (13, 400, "input 'IN'"),
    ):
        described = document(tensor("IN", "FP32", [3], binary_data_size=size))
        yield Item(f"size {size!r}", binary("echo_FP32", described, FP32_TAIL), status, names)
    no_size = document(tensor("IN", "FP32", [3]))
    yield Item("size missing", binary("echo_FP32", no_size, FP32_TAIL), 400, "'inputs[0]'")
    both = document(tensor("IN", "FP32", [3], [1, 2, 3], binary_data_size=12))
    yield Item("size and data", binary("echo_FP32", both, FP32_TAIL), 400, "'inputs[0]'")
    odd = echo_binary("FP32", FP32_TAIL[:-1], [3])
    yield Item("not a multiple of 4", odd, 400, "Expected 12, got 11")
    other = echo_binary("FP32", FP32_TAIL, [4])
    yield Item("another shape", other, 400, "Expected 16, got 12")
    cut = echo_binary("BYTES", texts(b"ab", b"c")[:-1], [2])
    yield Item("text cut off", cut, 400, "input 'IN'")


def mixed_framing() -> Iterator[Item]:
    ends = [tensor(name, "INT32", [2], binary_data_size=8) for name in ("A", "C")]
    middle = tensor("B", "INT32", [1], [7])
    described = document(ends[0], middle, ends[1], parameters=BINARY_OUT)
    tail = struct.pack("<4i", 1, 2, 3, 4)
    yield Item("JSON between two binary inputs", binary("three", described, tail), 200)
    short = binary("three", described, tail[:-1])
    yield Item("second one short", short, 400, "input 'C'")
    long = binary("three", described, tail + b"\0")
    yield Item("one byte more", long, 400, "binary_data_size")


def chunked_framing() -> Iterator[Item]:
    body, border = FP32_HEAD + FP32_TAIL, len(FP32_HEAD)
    for length, status, names in ((border, 200, ""), (border - 1, 400, HEADER)):
        lines = ["Transfer-Encoding: chunked", f"{HEADER}: {length}"]
        for cut in (border // 2, border, border + 2):
            chunks = chunk(body[:cut]) + chunk(body[cut:]) + chunk(b"")
            sent = head("POST", infer_path("echo_FP32"), lines) + chunks
            yield Item(f"chunks of {cut}, header {length}", sent, status, names)


def empties() -> Iterator[Item]:
    yield Item("[0]", echo("INT32", []), 200)
    yield Item("[2,0] nested", echo("INT32", [[], []], [2, 0]), 200)
    yield Item("[2,0] flat", echo("INT32", [], [2, 0]), 200)
    yield Item("[0,3]", echo("BYTES", [], [0, 3]), 200)
    missing = document(tensor("IN", "INT32", [0]))
    yield Item("[0] without data", infer("echo_INT32", missing), 400, "'inputs[0]'")
    nothing = document(tensor("IN", "INT32", [0], binary_data_size=0))
    yield Item("binary [0]", infer("echo_INT32", nothing), 200)
    yield Item("binary [0], then [3]", empty_then_full(), 200)


def empty_then_full() -> bytes:
    first = tensor("A", "INT32", [0], binary_data_size=0)
    second = tensor("B", "INT32", [3], binary_data_size=12)
    wanted = [output(name, binary_data=True) for name in ("A", "B")]
    return binary("three", document(first, second, outputs=wanted), struct.pack("<3i", 1, 2, 3))


BODIES: dict[str, list[Item]] = {
    "wrong types": [*wrong_types(), *wrong_documents(), *wrong_bodies()],
    "nesting": [*nestings()],
    "shapes": [*shapes()],
    "half precision": [*half_precision()],
    "framing": [*header_lengths(), *tensor_sizes(), *mixed_framing(), *chunked_framing()],
    "empties": [*empties()],
}

VERSIONS: tuple[tuple[str, int, str], ...] = (
    ("1", 200, "1"),
    ("01", 200, "1"),
    ("10", 200, "10"),
    ("0", 404, ""),
    *((text, 404, "") for text in ("-1", "+1", "1.0", "1p0", "1e0", "0x1", "latest", "")),
    ("9223372036854775807", 404, ""),
    ("9223372036854775808", 400, ""),
    *((text, 404, "") for text in ("%31", "1%20", "%EF%BC%91", "1%2F..%2F2")),
)
"""A version segment, its status, and the version that answers."""

MODELS: tuple[tuple[str, int, str], ...] = (
    *((quote(name, safe=""), 200, name) for name in NAMES),
    ("echo_INT32", 200, "echo_INT32"),
    ("ECHO_INT32", 404, ""),
    ("Echo_INT32", 404, ""),
    ("%2e%2e", 404, ""),
    ("..", 404, ""),
    ("%252e%252e%252fx", 404, ""),
    ("m%2520v", 404, ""),
    ("a%2Fb", 404, ""),
    ("..%2Fadmin", 404, ""),
    ("echo_INT32%2Finfer", 404, ""),
    ("m%00v", 404, ""),
    ("%FF%FE", 404, ""),
    ("x" * 5000, 404, ""),
)
"""A model segment, its status, and the model that answers."""


def version_paths() -> Iterator[Item]:
    for version, status, _ in VERSIONS:
        path = f"/v2/models/whoami/versions/{version}"
        no_such_version = version.isdigit() and status == 404
        yield Item(f"infer {version}", request("POST", f"{path}/infer", GOOD_BODY), status)
        ready = 400 if no_such_version else status
        yield Item(f"ready {version}", request("GET", f"{path}/ready"), ready)
        for leaf in ("", "/config", "/stats"):
            yield Item(f"{leaf or 'metadata'} {version}", request("GET", path + leaf), status)
    for path in ("/v2/models/whoami/versions", "/v2/models/whoami/versions/"):
        yield Item(path, request("GET", path), 404)


def model_paths() -> Iterator[Item]:
    for segment, status, _ in MODELS:
        name = segment[:30]
        yield Item(f"infer {name}", infer(segment, GOOD_BODY), status)
        if segment != "stats":  # that path is the statistics of all models
            yield Item(f"metadata {name}", request("GET", f"/v2/models/{segment}"), status)
        for leaf in ("config", "stats"):
            path = f"/v2/models/{segment}/{leaf}"
            yield Item(f"{leaf} {name}", request("GET", path), status)


HEADERS: dict[str, str | bytes] = {
    "Latin-1": b"X-Note: caf\xe9",
    "UTF-8": "X-Note: café",
    "tab": "X-Note: a\tb",
    "empty": "X-Note:",
    "upper case": "X-UPPER: value",
    "not base64": "x-blob-bin: not base64!",
    "deadline of gRPC": "grpc-timeout: 1n",
    "status of gRPC": "grpc-status: 0",
    "encoding of gRPC": "grpc-encoding: gzip",
    "te": "te: gzip",
    "type of gRPC": "content-type: application/grpc",
    "200 hops": "x-forwarded-for: " + ", ".join(["10.0.0.1"] * 200),
    "20 KiB": "X-Large: " + "x" * 20 * 1024,
    "200 of them": "\r\n".join(f"X-Many-{at}: {at}" for at in range(200)),
    "authorization": "Authorization: Bearer secret",
    "metadata of Triton": "triton_grpc_error: true",
    "restricted API": "triton-grpc-protocol-infer: key",
    "id with escaped line ends": "X-Request-Id: a%0d%0aX-Evil: 1",
    "id with backslashes": r"X-Request-Id: a\r\nX-Evil: 1",
    "id of Latin-1": b"X-Request-Id: caf\xe9",
    "id of 20 KiB": "X-Request-Id: " + "x" * 20 * 1024,
}
"""Header lines that are legal HTTP: none of them makes a call fail."""

REFUSED: dict[str, bytes] = {
    "control character": infer("echo_INT32", GOOD_BODY, "X-Note: a\x01b"),
    "NUL": infer("echo_INT32", GOOD_BODY, "X-Note: a\0b"),
    "bare carriage return": infer("echo_INT32", GOOD_BODY, "X-Note: a\rX-Evil: 1"),
    "no colon": infer("echo_INT32", GOOD_BODY, "X-Note"),
    "space before the colon": infer("echo_INT32", GOOD_BODY, "X-Note : a"),
    "space in a name": infer("echo_INT32", GOOD_BODY, "X Note: a"),
    "id of 100 KiB": infer("echo_INT32", GOOD_BODY, "X-Request-Id: " + "x" * 100 * 1024),
    "300 headers": infer("echo_INT32", GOOD_BODY, *(f"X-Many-{at}: {at}" for at in range(300))),
    "two lengths": infer("echo_INT32", GOOD_BODY, f"Content-Length: {len(GOOD_BODY) + 1}"),
    "length and chunks": infer("echo_INT32", GOOD_BODY, "Transfer-Encoding: chunked"),
    "length with a sign": head("POST", "/v2/models/echo_INT32/infer", ["Content-Length: +3"]),
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "target of 70 KiB": request("GET", "/" + "x" * 70 * 1024),
    "target that is not ASCII": infer("модель", GOOD_BODY),
    "no host": b"GET /v2/health/live HTTP/1.1\r\n\r\n",
}
"""Malformed HTTP: nobody knows where the next request would begin."""
