"""Routing refuses with Triton's own words, which callers match on."""

import pytest

from routing.errors import NoReadyEndpoint, NoSuchModel, RoutingError


@pytest.mark.parametrize(
    ("version", "reason", "text"),
    [
        (None, "is not found", "Request for unknown model: 'm' is not found"),
        (3, "is not found", "Request for unknown model: 'm' version 3 is not found"),
        (
            3,
            "is not at ready state",
            "Request for unknown model: 'm' version 3 is not at ready state",
        ),
        (
            None,
            "has no available versions",
            "Request for unknown model: 'm' has no available versions",
        ),
    ],
)
def test_an_unknown_model_is_reported_like_triton_does(
    version: int | None, reason: str, text: str
) -> None:
    error = NoSuchModel("m", version, reason)
    assert isinstance(error, RoutingError)
    assert str(error) == text


def test_no_ready_endpoint_tells_whether_servers_are_full() -> None:
    assert not NoReadyEndpoint("none is ready").saturated
    error = NoReadyEndpoint("all are full", saturated=True)
    assert error.saturated
    assert (isinstance(error, RoutingError), str(error)) == (True, "all are full")
