"""Restricted parts of the API: the key is asked for, whatever else is wrong with a request."""

from functools import partial

import pytest

from gateway.edge.restricted import Restriction, Restrictions
from gateway.edge.routes import match
from gateway.faults import Fault, Kind

RESTRICTIONS = Restrictions(
    [
        Restriction(("health", "trace"), "X-One", "k1"),
        Restriction(("model-repository",), "X-Two", "k2"),
    ]
)
PATHS = {
    "/v2/health/live": "X-One",
    "/v2/health/ready": "X-One",
    "/v2/models/m/ready": "X-One",
    "/v2/models/m/versions/1/ready": "X-One",
    "/v2/trace/setting": "X-One",
    "/v2/repository/index": "X-Two",
    "/v2/repository/r/models/m/load": "X-Two",
}


def kind(method: str, path: str, **headers: str) -> Kind | None:
    try:
        match(method, path, partial(RESTRICTIONS.check, headers))
    except Fault as fault:
        return fault.kind
    return None


def test_nothing_restricted_is_nothing_to_do() -> None:
    assert not Restrictions([])
    assert RESTRICTIONS


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_the_key_comes_before_the_method(method: str, path: str) -> None:
    header = PATHS[path]
    with pytest.raises(Fault, match=f"^This API is restricted, expecting header '{header}'$"):
        match(method, path, partial(RESTRICTIONS.check, {}))
    key = {"X-One": "k1", "X-Two": "k2"}
    assert kind(method, path, **key) in (None, Kind.NOT_ALLOWED)


@pytest.mark.parametrize("given", ["", "k", "K1", "k1 ", "k2", "k\udc80", "é"])
def test_another_key_is_none(given: str) -> None:
    assert kind("GET", "/v2/health/live", **{"X-One": given}) is Kind.FORBIDDEN


@pytest.mark.parametrize("path", ["/v2", "/v2/models/m", "/v2/logging", "/v2/models/m/config"])
def test_the_rest_is_open(path: str) -> None:
    assert kind("GET", path) is None


def test_what_is_not_there_is_not_there() -> None:
    assert kind("GET", "/v2/health/nope") is Kind.NOT_FOUND
