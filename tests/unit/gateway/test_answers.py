"""Every kind of fault has one status, and every error is one JSON object."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.answers import STATUS, Answer, error_body, fault_answer, json_answer
from gateway.faults import Fault, Kind, Origin
from routing.errors import NoReadyEndpoint, NoSuchModel, RoutingError


def test_every_kind_has_a_status() -> None:
    assert set(STATUS) == set(Kind)
    assert all(400 <= status < 600 for status in STATUS.values())


def test_an_error_has_tritons_shape() -> None:
    answer = fault_answer(Fault(Kind.NOT_READY, "later", origin=Origin.GATEWAY, retry_after_s=1))
    assert (answer.status, json.loads(answer.parts[0])) == (503, {"error": "later"})
    assert answer.headers == {"Content-Type": "application/json", "Retry-After": "1"}


def test_those_that_are_shed_are_not_told_to_come_back_together() -> None:
    def told(kind: Kind) -> set[str]:
        fault = Fault(kind, "full", origin=Origin.GATEWAY, retry_after_s=2)
        return {fault_answer(fault).headers["Retry-After"] for _ in range(200)}

    assert told(Kind.OVERLOADED) == {"2", "3", "4"}
    assert told(Kind.LIMITED) == {"2"}  # that is the truth


def test_no_time_to_come_back_is_no_header() -> None:
    assert "Retry-After" not in fault_answer(Fault.invalid("x")).headers


@pytest.mark.parametrize(
    ("origin", "status"), [(Origin.CLIENT, 408), (Origin.GATEWAY, 504), (Origin.UPSTREAM, 504)]
)
def test_whose_time_ran_out_is_told_apart(origin: Origin, status: int) -> None:
    assert fault_answer(Fault(Kind.DEADLINE, "x", origin=origin)).status == status


@given(st.text(st.characters()))
def test_any_text_can_be_an_error(text: str) -> None:
    body = json.loads(error_body(text))
    assert set(body) == {"error"}


def test_bytes_that_are_not_utf_8_are_made_printable() -> None:
    assert json.loads(error_body("caf\udce9")) == {"error": "caf\\udce9"}


def test_a_json_answer_is_typed_without_a_charset() -> None:
    answer = json_answer({"a": 1}, status=201)
    assert answer == Answer(201, (b'{"a":1}',), {"Content-Type": "application/json"})
    assert answer.length == 7


@pytest.mark.parametrize(
    ("error", "kind", "origin", "retry_after_s"),
    [
        (NoSuchModel("m", None, "is not found"), Kind.NOT_FOUND, Origin.CLIENT, None),
        (NoReadyEndpoint("none"), Kind.NOT_READY, Origin.GATEWAY, 1),
        (NoReadyEndpoint("full", saturated=True), Kind.OVERLOADED, Origin.GATEWAY, 1),
    ],
)
def test_routings_refusals_become_faults(
    error: RoutingError, kind: Kind, origin: Origin, retry_after_s: int | None
) -> None:
    fault = Fault.of_routing(error)
    assert (fault.kind, fault.origin, fault.retry_after_s) == (kind, origin, retry_after_s)
    assert fault.message == str(error)


def test_a_fault_shows_what_it_is() -> None:
    assert repr(Fault.invalid("bad")) == "Fault(invalid, 'bad', origin=client, replay=never)"
    assert Fault.too_large("big").kind is Kind.TOO_LARGE
    assert Fault.unsupported("no").kind is Kind.UNSUPPORTED
