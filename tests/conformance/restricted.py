"""Cases about restricted parts of the API: who lacks the key is refused before all else."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.case import Case
from tests.conformance.raw_http import request

CATEGORIES = (
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""All but health, without which nobody could tell that the server is ready."""
HEADER, KEY = "X-Some-Key", "s3cret"
PATHS = {
    "metadata": ("/v2", "/v2/models/whoami", "/v2/models/nope/versions/1"),
    "inference": (
        "/v2/models/whoami/infer",
        "/v2/models/whoami/generate",
        "/v2/models/whoami/versions/1/generate_stream",
    ),
    "shared-memory": ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/register"),
    "model-config": ("/v2/models/whoami/config",),
    "model-repository": ("/v2/repository/index", "/v2/repository/models/whoami/load"),
    "statistics": ("/v2/models/stats", "/v2/models/whoami/stats"),
    "trace": ("/v2/trace/setting", "/v2/models/whoami/trace/setting"),
    "logging": ("/v2/logging",),
}
OPEN = ("/v2/health/live", "/v2/models/whoami/ready")


def restricted() -> Iterator[Case]:
    for category, paths in PATHS.items():
        for path in paths:
            for method in ("GET", "POST", "PUT"):
                yield Case(f"{category} {method} {path}", request(method, path))
    for path in OPEN:
        yield Case(f"open {path}", request("GET", path))
    yield Case("unknown", request("GET", "/v2/nope"))
    huge = "/v2/models/whoami/versions/99999999999999999999/config"
    yield Case("version too large", request("GET", huge))


def keys() -> Iterator[Case]:
    path = "/v2/models/whoami/config"
    for name, line in (
        ("right", f"{HEADER}: {KEY}"),
        ("lower-case-name", f"{HEADER.lower()}: {KEY}"),
        ("wrong", f"{HEADER}: {KEY}2"),
        ("beginning", f"{HEADER}: {KEY[:-1]}"),
        ("other-case", f"{HEADER}: {KEY.upper()}"),
        ("empty", f"{HEADER}:"),
        ("not-ascii", f"{HEADER}: schl\xfcssel".encode("latin-1")),
        ("other-header", f"X-Other: {KEY}"),
    ):
        yield Case(f"key {name}", request("GET", path, headers=[line]))
    right = f"{HEADER}: {KEY}"
    yield Case("right key, wrong method", request("PUT", path, headers=[right]))


CASES = [*restricted(), *keys()]
