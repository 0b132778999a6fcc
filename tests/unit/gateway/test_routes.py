"""Request targets are matched like Triton matches them, and never in another way."""

from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.edge.routes import ROUTES, Route, match
from gateway.faults import Fault, Kind

MODEL = "/v2/models/m"


def fault(method: str, target: str) -> Fault:
    with pytest.raises(Fault) as caught:
        match(method, target)
    return caught.value


@pytest.mark.parametrize(
    ("method", "target", "route"),
    [
        ("GET", "/v2", Route("server_metadata")),
        ("GET", "/v2?x=1/2", Route("server_metadata")),
        ("GET", "/v2#part", Route("server_metadata")),
        ("GET", "http://host:8000/v2", Route("server_metadata")),
        ("GET", "/v2/health/live", Route("live")),
        ("GET", "/v2/health/ready", Route("ready")),
        ("GET", "/v2/models", Route("models")),
        ("GET", "/v2/models/stats", Route("statistics")),
        ("POST", "/v2/repository/index", Route("repository_index")),
        ("POST", "/v2/repository/any%2Fname/index", Route("repository_index")),
        ("GET", MODEL, Route("model_metadata", "m")),
        ("GET", f"{MODEL}/ready", Route("model_ready", "m")),
        ("GET", f"{MODEL}/config", Route("model_config", "m")),
        ("GET", f"{MODEL}/stats", Route("model_statistics", "m")),
        ("POST", f"{MODEL}/infer", Route("infer", "m")),
        ("POST", f"{MODEL}/infer?a=/v2/x", Route("infer", "m")),
        ("POST", f"{MODEL}/generate", Route("generate", "m")),
        ("POST", f"{MODEL}/versions/3/generate_stream", Route("generate_stream", "m", 3)),
        ("POST", f"http://h{MODEL}/infer", Route("infer", "m")),
        ("GET", f"{MODEL}/versions/3", Route("model_metadata", "m", 3)),
        ("POST", f"{MODEL}/versions/3/infer", Route("infer", "m", 3)),
        ("POST", f"{MODEL}/versions/01/infer", Route("infer", "m", 1)),
        ("POST", f"{MODEL}/versions/0/infer", Route("infer", "m", 0)),
        ("POST", f"{MODEL}/versions/{2**63 - 1}/infer", Route("infer", "m", 2**63 - 1)),
        ("GET", "/v2/models/versions", Route("model_metadata", "versions")),
        ("GET", "/v2/models/ready", Route("model_metadata", "ready")),
        ("GET", "/v2/models/stats/versions/1", Route("model_metadata", "stats", 1)),
        ("POST", "/v2/models/infer/infer", Route("infer", "infer")),
        ("POST", "/v2/models/index/infer", Route("infer", "index")),
        ("POST", "/v2/models/m.v1/infer", Route("infer", "m.v1")),
        ("POST", "/v2/models/m%20v/infer", Route("infer", "m v")),
        ("POST", "/v2/models/m%0Av/infer", Route("infer", "m\nv")),
        ("POST", "/v2/models/m%22%7D/infer", Route("infer", 'm"}')),
        ("POST", "/v2/models/%D0%BC/infer", Route("infer", "м")),
        ("POST", "/v2/models/%2e%2e/infer", Route("infer", "..")),
        ("POST", "/v2/models/a%252Fb/infer", Route("infer", "a%2Fb")),  # decoded once
        ("POST", "/v2/models/M/infer", Route("infer", "M")),
        ("POST", "/v2/repository/models/m%20v/load", Route("load", "m v")),
        ("POST", "/v2/repository/models/index/unload?server=a", Route("unload", "index")),
        ("POST", "/v2/repository/r/models/m/load", Route("load", "m", in_repository=True)),
        ("POST", "/v2/repository/models/models/m/load", Route("load", "m", in_repository=True)),
        ("POST", "/v2/repository/models/index", Route("repository_index")),
        ("GET", "/v2/trace/setting", Route("trace_setting")),
        ("POST", "/v2/trace/setting", Route("update_trace_setting")),
        ("GET", f"{MODEL}/trace/setting", Route("trace_setting", "m")),
        ("POST", f"{MODEL}/trace/setting", Route("update_trace_setting", "m")),
        ("GET", "/v2/logging", Route("logging")),
        ("POST", "/v2/logging", Route("update_logging")),
        ("GET", "/v2/systemsharedmemory/status", Route("shared_memory")),
        ("POST", "/v2/cudasharedmemory/region/r/register", Route("shared_memory")),
    ],
)
def test_known_targets(method: str, target: str, route: Route) -> None:
    assert match(method, target) == route


@pytest.mark.parametrize(
    "target",
    [
        "",
        "/",
        "*",
        "//",
        "/v2/",
        "//v2",
        "/V2",
        "/v1",
        "/metrics",
        "/v2/health",
        "/v2/health/live/",
        "/v2//health/live",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/models/m//infer",
        "/v2/models/m/other",
        "/v2/models/m/%69nfer",
        "/v2/models/m/infer/infer",
        "/v2/models/m/generates",
        "/v2/models/a%2Fb/infer",
        "/v2/models/..%2Fadmin/infer",
        "/v2/models/m%00v/infer",
        "/v2/models/%FF%FE/infer",
        "/v2/models/m\udcff/infer",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions//infer",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/+1/infer",
        "/v2/models/m/versions/1.0/infer",
        "/v2/models/m/versions/1e0/infer",
        "/v2/models/m/versions/0x1/infer",
        "/v2/models/m/versions/latest/infer",
        "/v2/models/m/versions/%31/infer",
        "/v2/models/m/versions/1%20/infer",
        "/v2/models/m/versions/１/infer",
        "/v2/models/m/versions/1%2F..%2F2/infer",
        "/v2/models/m/versions/1/",
        "/v2/models/m/versions/1/versions/1",
        "/v2/repository/index/",
        "/v2/repository//index",
        "/v2/repository/a/b/index",
        "/v2/repository/models/m",
        "/v2/repository/models//load",
        "/v2/repository//models/m/load",
        "/v2/repository/a/b/models/m/load",
        "/v2/repository/models/a%2Fb/load",
        "/v2/repository/models/m/reload",
        "/v2/trace",
        "/v2/trace/setting/",
        "/v2/models/m/trace",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/logging/",
        "/v2/systemsharedmemory",
        "/v2/systemsharedmemory/region/status",
        "/v2/cudasharedmemory/region//status",
        "/v2/rocmsharedmemory/status",
        "/v2/repository/a",
        "http://host",
    ],
)
def test_unknown_targets_are_not_found(target: str) -> None:
    methods = ("POST",) if target.endswith(("/infer", "/load")) else ("GET", "POST")
    found = [fault(method, target) for method in methods]
    assert {(f.kind, f.message) for f in found} == {(Kind.NOT_FOUND, "Not Found")}


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v2"),
        ("HEAD", "/v2/health/live"),
        ("OPTIONS", "/v2/models"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/repository/r/index"),
        ("GET", "/v2/repository/models/m/load"),
        ("PUT", "/v2/repository/r/models/m/unload"),
        ("DELETE", "/v2/trace/setting"),
        ("PUT", f"{MODEL}/trace/setting"),
        ("HEAD", "/v2/logging"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/region/r/register"),
        ("GET", f"{MODEL}/infer"),
        ("PUT", f"{MODEL}/infer"),
        ("GET", f"{MODEL}/generate"),
        ("GET", f"{MODEL}/generate_stream"),
        ("get", "/v2"),
        ("POST", MODEL),
        ("DELETE", f"{MODEL}/versions/1"),
    ],
)
def test_a_known_target_with_another_method_is_not_allowed(method: str, target: str) -> None:
    found = fault(method, target)
    assert (found.kind, found.message) == (Kind.NOT_ALLOWED, "Method Not Allowed")


@pytest.mark.parametrize("version", [2**63, 2**64, "9" * 99, "9" * 100, "9" * 20_000])
def test_a_version_beyond_64_bits_is_refused(version: int | str) -> None:
    found = fault("POST", f"{MODEL}/versions/{version}/infer")
    assert found.kind is Kind.INVALID
    assert found.message == (
        f"failed to get model version from specified version string '{version}'"
    )


SEGMENTS = st.sampled_from(
    [
        *("v2", "models", "m", "versions", "1", "infer", "stats", "repository", "index", "health"),
        *("load", "trace", "setting", "cudasharedmemory", "region", "status"),
    ]
) | st.text(max_size=6)
TARGETS = st.text() | st.lists(SEGMENTS).map(lambda parts: "/" + "/".join(parts))
METHODS = st.sampled_from(["GET", "POST", "HEAD"]) | st.text(max_size=5)


@given(METHODS, TARGETS)
@example("GET", "://")
@example("GET", "x://")
@example("POST", "/v2/models/\ud800/infer")
@example("POST", "/v2/models/%/infer")
def test_any_target_is_a_known_route_or_a_fault(method: str, target: str) -> None:
    kind: Kind | None = None
    try:
        route = match(method, target)
    except Fault as refused:
        kind = refused.kind
    else:
        assert route.name in ROUTES
        assert "/" not in route.model
        assert "\0" not in route.model
    assert kind in (None, Kind.NOT_FOUND, Kind.NOT_ALLOWED, Kind.INVALID)


@given(st.text(min_size=1).filter(lambda name: not set("/\0") & set(name)))
def test_a_quoted_model_name_arrives_as_it_was(name: str) -> None:
    assert match("POST", f"/v2/models/{quote(name, safe='')}/infer").model == name
