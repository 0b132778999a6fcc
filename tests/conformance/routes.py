"""Cases about paths and methods."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.build import document, infer, infer_path, tensor
from tests.conformance.case import Case
from tests.conformance.raw_http import head, request

BODY = document(tensor("IN", "INT32", [1], [1]))
GET = (
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/whoami/ready",
    "/v2/models/whoami/versions/2/ready",
    "/v2/models/whoami/versions/3/ready",
    "/v2/models/nope/ready",
    "/v2/models/nope/versions/1/ready",
    "/v2/models/nope",
    "/v2/models/nope/config",
    "/v2/models/nope/stats",
    "/v2/models/whoami/versions/3",
    "/v2/models/whoami/versions/3/config",
    "/v2/models/whoami/versions/3/stats",
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
    "/v2/models/whoami/",
    "/v2/models/whoami/ready/",
    "/v2/models/whoami/nope",
    "/v2/models/whoami/versions",
    "/v2/models/whoami/versions/",
    "/v2/models/whoami/versions/1/",
    "/v2/models/whoami/versions/1/nope",
    "/v2/models//ready",
    "/v2/models/whoami/ready/ready",
    "/metrics",
    "/v2/health/live;a=b",
    "/v2/models/",
    "/v2/repository/index/x",
)
WRONG = (
    ("HEAD", "/v2"),
    ("HEAD", "/v2/health/live"),
    ("HEAD", "/v2/models/whoami"),
    ("HEAD", "/nope"),
    ("OPTIONS", "/v2"),
    ("OPTIONS", "/v2/models/echo_INT32/infer"),
    ("POST", "/v2"),
    ("POST", "/v2/health/live"),
    ("POST", "/v2/models/whoami"),
    ("POST", "/v2/models/whoami/ready"),
    ("POST", "/v2/models/whoami/config"),
    ("POST", "/v2/models/whoami/stats"),
    ("PUT", "/v2/models/echo_INT32/infer"),
    ("DELETE", "/v2/models/echo_INT32"),
    ("PATCH", "/v2/models/echo_INT32/infer"),
    ("GET", "/v2/models/echo_INT32/infer"),
    ("GET", "/v2/models/nope/infer"),
    ("GET", "/v2/models/echo_INT32/versions/1/infer"),
    ("HEAD", "/v2/models/echo_INT32/infer"),
    ("GET", "/v2/repository/index"),
    ("GET", "/v2/repository/r/index"),
    ("DELETE", "/nope"),
    ("POST", "/nope"),
)
VERSIONS = (
    "1", "01", "10", "2", "0", "-1", "+1", "1.0", "1p0", "1e0", "0x1", "latest", "",
    "9223372036854775807", "9223372036854775808", "99999999999999999999999", "%31", "1%20",
    "%EF%BC%91", "1%2F..%2F2", "１",
)
MODELS = (
    "a%2Fb", "..%2Fadmin", "%2e%2e", "..", "%252e%252e%252fx", "stats", "ready", "versions",
    "infer", "index", "m.v1", "m%20v", "m%00v", "m%0Av", "m%22%7D", "модель", "%FF%FE", "x" * 5000,
    "ECHO_INT32", "echo%5FINT32",
)  # fmt: skip


def paths() -> Iterator[Case]:
    yield from (Case(f"GET {path}", request("GET", path)) for path in GET)
    yield from (Case(f"unknown {path}", request("GET", path)) for path in UNKNOWN)
    yield from (Case(f"{method} {path}", request(method, path)) for method, path in WRONG)


def spellings() -> Iterator[Case]:
    yield Case("query", request("GET", "/v2/health/live?x=1&y"))
    yield Case("query-with-slashes", request("GET", "/v2/health/live?/../nope"))
    yield Case("query-empty", request("GET", "/v2/health/live?"))
    yield Case("query-on-infer", request("POST", infer_path("echo_INT32") + "?a=b", BODY))
    yield Case("encoded-letter-in-a-route", request("GET", "/v2/health/l%69ve"))
    yield Case("encoded-slash-in-a-route", request("GET", "/v2%2Fhealth/live"))
    yield Case("encoded-query-mark", request("GET", "/v2/health/live%3Fx"))
    yield Case("dots", request("GET", "/v2/x/../health/live"))
    yield Case("body-on-GET", request("GET", "/v2/health/live", b"hello"))
    yield Case("absolute-form", request("GET", "http://t/v2/health/live"))


def versions() -> Iterator[Case]:
    for version in VERSIONS:
        name = version or "empty"
        path = f"/v2/models/whoami/versions/{version}"
        yield Case(f"version {name} infer", infer("whoami", BODY, version=version) if version else request("POST", path + "/infer", BODY), view=without_pid)
        yield Case(f"version {name} ready", request("GET", path + "/ready"))
        yield Case(f"version {name} metadata", request("GET", path))
    yield Case("default-version", infer("whoami", BODY), view=without_pid)


def without_pid(answer: dict[str, object]) -> object:
    """Leave out what the `whoami` model says of its server and process."""
    outputs = answer["outputs"]
    assert isinstance(outputs, list)
    return {**answer, "outputs": outputs[0]["data"][1]}


def models() -> Iterator[Case]:
    for model in MODELS:
        name = model[:20]
        yield Case(f"model {name} infer", infer(model, BODY))
        yield Case(f"model {name} ready", request("GET", f"/v2/models/{model}/ready"))
        yield Case(f"model {name} metadata", request("GET", f"/v2/models/{model}"))


def connections() -> Iterator[Case]:
    path = infer_path("echo_INT32")
    yield Case("http-1.0", request("POST", path, BODY, version="HTTP/1.0"))
    yield Case("http-1.0-keep-alive", request("POST", path, BODY, ["Connection: keep-alive"], "HTTP/1.0"))
    yield Case("connection-close", infer("echo_INT32", BODY, "Connection: close"))
    expecting = head("POST", path, ["Expect: 100-continue", f"Content-Length: {len(BODY)}"])
    yield Case("expect-continue", (expecting, BODY))
    yield Case("expect-continue-at-once", expecting + BODY)


CASES = [*paths(), *spellings(), *versions(), *models(), *connections()]
