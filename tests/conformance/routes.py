"""Cases about request lines and connections: paths, methods, versions, names, HTTP itself."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from tests.conformance.build import document, infer, infer_path, tensor
from tests.conformance.case import Case
from tests.conformance.differences import (
    ASCII_TARGETS,
    CLEAN_HEADERS,
    DECODED_AND_FOUND,
    DECODED_NAMES,
    HOST_IS_REQUIRED,
    IMPOSSIBLE_NAMES,
    JSON_ERRORS,
    MALFORMED_IS_400,
    MODELS_ARE_LISTED,
    STATISTICS_ARE_FOUND_OR_NOT,
    STRICT_FIELDS,
    STRICT_HTTP,
    VERSION_WORDS,
    Difference,
)
from tests.conformance.raw_http import head, request

BODY = document(tensor("IN", "INT32", [1], [1]))
INFER = infer_path("echo_INT32")

KNOWN = (
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/whoami/ready",
    "/v2/models/nope/ready",
    "/v2/models/nope/versions/1/ready",
    "/v2/models/nope",
    "/v2/models/nope/config",
    "/v2/health/live?x=1&y",
    "/v2/health/live?/../nope",
    "/v2/health/live?",
    "/v2/models/whoami/ready?version=1",
)
UNKNOWN = (
    "/",
    "/v1",
    "/v2/",
    "/v3",
    "/v2/nope",
    "/v2/health",
    "/v2/health/",
    "/v2/health/live/",
    "/v2/health/nope",
    "//v2/health/live",
    "/v2//health/live",
    "/v2/health//live",
    "/V2/health/live",
    "/v2/Health/live",
    "/v2/models/",
    "/v2/models/whoami/",
    "/v2/models/whoami/ready/",
    "/v2/models/whoami/ready/ready",
    "/v2/models/whoami/nope",
    "/v2/models//ready",
    "/v2/models/whoami/versions",
    "/v2/models/whoami/versions/1/",
    "/v2/models/whoami/versions/1/nope",
    "/v2/repository/index/x",
    "/metrics",
    "/v2/health/live;a=b",
    "/v2/health/l%69ve",
    "/v2%2Fhealth/live",
    "/v2/health/live%3Fx",
    "/v2/x/../health/live",
)
WRONG_METHODS = (
    ("HEAD", "/v2"),
    ("HEAD", "/v2/health/live"),
    ("HEAD", "/v2/models/whoami"),
    ("HEAD", INFER),
    ("HEAD", "/nope"),
    ("OPTIONS", "/v2"),
    ("OPTIONS", INFER),
    ("POST", "/v2"),
    ("POST", "/v2/health/live"),
    ("POST", "/v2/models/whoami"),
    ("POST", "/v2/models/whoami/ready"),
    ("POST", "/v2/models/whoami/config"),
    ("POST", "/v2/models/whoami/stats"),
    ("POST", "/v2/models/stats"),
    ("POST", "/nope"),
    ("PUT", INFER),
    ("PATCH", INFER),
    ("DELETE", "/v2/models/echo_INT32"),
    ("DELETE", "/nope"),
    ("GET", INFER),
    ("GET", "/v2/models/nope/infer"),
    ("GET", infer_path("echo_INT32", "1")),
    ("GET", "/v2/repository/index"),
    ("GET", "/v2/repository/r/index"),
)
VERSIONS: tuple[tuple[str, Difference | None], ...] = (
    *((version, None) for version in ("1", "01", "10", "2", "3", "0", "9223372036854775807")),
    *((version, None) for version in ("-1", "+1", "1.0", "1p0", "1e0", "0x1", "latest", "")),
    *((version, None) for version in ("%31", "1%20", "%EF%BC%91", "1%2F..%2F2")),
    ("9223372036854775808", VERSION_WORDS),
    ("99999999999999999999999", VERSION_WORDS),
    ("１", ASCII_TARGETS),
)
MODELS: tuple[tuple[str, Difference | None], ...] = (
    *((name, None) for name in ("..", "ready", "versions", "infer", "index", "m.v1")),
    *((name, None) for name in ("x" * 2000, "ECHO_INT32")),
    *((name, DECODED_NAMES) for name in ("%2e%2e", "%252e%252e%252fx", "m%20v", "m%0Av")),
    *((name, DECODED_NAMES) for name in ("m%22%7D", quote("модель"))),
    *((name, IMPOSSIBLE_NAMES) for name in ("a%2Fb", "..%2Fadmin", "m%00v", "%FF%FE")),
    ("echo%5FINT32", DECODED_AND_FOUND),
    ("модель", ASCII_TARGETS),
)
MALFORMED_HTTP: tuple[tuple[str, bytes, Difference | None], ...] = (
    ("no-http", b"GARBAGE\r\n\r\n", STRICT_HTTP),
    ("http-2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", STRICT_HTTP),
    ("method-in-lower-case", b"get /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n", STRICT_HTTP),
    ("length-that-is-none", head("POST", INFER, ["Content-Length: x"]), STRICT_HTTP),
    (
        "chunk-size-that-is-none",
        head("POST", INFER, ["Transfer-Encoding: chunked"]) + b"zz\r\n\r\n",
        STRICT_HTTP,
    ),
    ("no-host", b"GET /v2/health/live HTTP/1.1\r\n\r\n", HOST_IS_REQUIRED),
    ("control-character", request("GET", "/v2/health/live", headers=["X: a\x01b"]), CLEAN_HEADERS),
    ("space-before-colon", request("GET", "/v2/health/live", headers=["X : a"]), CLEAN_HEADERS),
    ("two-spaces", b"GET  /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n", None),
)


def paths() -> Iterator[Case]:
    yield from (Case(f"GET {path}", request("GET", path)) for path in KNOWN)
    yield from (Case(f"unknown {path}", request("GET", path)) for path in UNKNOWN)
    yield from (Case(f"{method} {path}", request(method, path)) for method, path in WRONG_METHODS)
    yield Case("POST infer with a query", request("POST", f"{INFER}?a=b", BODY))
    yield Case("GET with a body", request("GET", "/v2/health/live", b"hello"))
    unlabelled = request("GET", "/nope")
    yield Case("content type of an error", unlabelled, JSON_ERRORS, error_types=True)
    yield Case("GET /v2/models", request("GET", "/v2/models"), MODELS_ARE_LISTED)
    for path in ("/v2/models/nope/stats", "/v2/models/whoami/versions/3/stats"):
        yield Case(f"GET {path}", request("GET", path), STATISTICS_ARE_FOUND_OR_NOT)


def indexes() -> Iterator[Case]:
    index = "/v2/repository/index"
    for name, body, differs, field in (
        ("ready-number", b'{"ready":1}', MALFORMED_IS_400, "'ready'"),
        ("ready-text", b'{"ready":"true"}', MALFORMED_IS_400, "'ready'"),
        ("ready-null", b'{"ready":null}', MALFORMED_IS_400, "'ready'"),
        ("cut-off", b'{"ready":', MALFORMED_IS_400, "failed to parse"),
        ("array", b"[]", STRICT_FIELDS, "not an object"),
        ("null", b"null", STRICT_FIELDS, "not an object"),
    ):
        yield Case(f"index {name}", request("POST", index, body), differs, field)


def versions() -> Iterator[Case]:
    for version, differs in VERSIONS:
        path = f"/v2/models/whoami/versions/{version}"
        name = f"version {version or 'empty'}"
        yield Case(f"{name} infer", request("POST", f"{path}/infer", BODY), differs, view=who)
        yield Case(f"{name} ready", request("GET", f"{path}/ready"), differs)
        yield Case(f"{name} metadata", request("GET", path), differs)
        yield Case(f"{name} config", request("GET", f"{path}/config"), differs)
    yield Case("no version infer", infer("whoami", BODY), view=who)
    yield Case("no version metadata", request("GET", "/v2/models/whoami"))


def who(answer: dict[str, object]) -> object:
    """Leave out what the `whoami` model says of its server and process."""
    outputs = answer["outputs"]
    assert isinstance(outputs, list)
    return {**answer, "outputs": outputs[0]["data"][1]}


def models() -> Iterator[Case]:
    for model, differs in MODELS:
        name = f"model {model[:20]}"
        yield Case(f"{name} infer", infer(model, BODY), differs)
        yield Case(f"{name} metadata", request("GET", f"/v2/models/{model}"), differs)
        if differs is not ASCII_TARGETS:
            # What is not ready is not named, so only the names that are no route differ.
            told = differs in (IMPOSSIBLE_NAMES, DECODED_AND_FOUND)
            ready = request("GET", f"/v2/models/{model}/ready")
            yield Case(f"{name} ready", ready, differs if told else None)


def connections() -> Iterator[Case]:
    http_1_0 = "HTTP/1.0"
    for name, headers, version in (
        ("http-1.0", [], http_1_0),
        ("http-1.0-keep-alive", ["Connection: keep-alive"], http_1_0),
        ("connection-close", ["Connection: close"], "HTTP/1.1"),
        ("connection-keep-alive", ["Connection: keep-alive"], "HTTP/1.1"),
    ):
        yield Case(name, request("POST", INFER, BODY, headers, version))
        unknown = request("GET", "/v2/models/nope", b"", headers, version)
        yield Case(f"{name}-of-an-error", unknown)
    expecting = head("POST", INFER, ["Expect: 100-continue", f"Content-Length: {len(BODY)}"])
    yield Case("expect-continue", (expecting, BODY))
    yield Case("expect-continue-at-once", expecting + BODY)
    for name, sent, differs in MALFORMED_HTTP:
        yield Case(name, sent, differs)


CASES = [*paths(), *indexes(), *versions(), *models(), *connections()]
