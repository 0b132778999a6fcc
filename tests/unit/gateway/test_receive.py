"""What a request says in its headers, before its body is read."""

import contextlib
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.receive import REQUEST_ID, TIMEOUT, request_id, timeout_s
from gateway.faults import Fault, Kind


def request(**headers: str) -> Any:
    return make_mocked_request("POST", "/", headers)


@pytest.mark.parametrize("given_id", ["r", "a" * 128, "01234567-89ab-cdef", "A_b.c:d/e+f=g@h~i"])
def test_a_callers_id_is_kept(given_id: str) -> None:
    assert request_id(request(**{REQUEST_ID: given_id})) == given_id


@pytest.mark.parametrize("given_id", ["", "a" * 129, "a b", 'a"b', "é", "a%0d", "{x}", "a\tb"])
def test_an_id_that_could_break_a_log_is_replaced(given_id: str) -> None:
    made = request_id(request(**{REQUEST_ID: given_id}))
    assert made != given_id
    assert len(made) == 16
    assert int(made, 16) >= 0


def test_a_missing_id_is_made_and_differs_each_time() -> None:
    assert len({request_id(request()) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("text", "allowed_s"),
    [
        ("1", 0.001),
        ("250", 0.25),
        ("60000", 60.0),
        ("000250", 0.25),
        (str(10**12 - 1), 999_999_999.999),
    ],
)
def test_a_timeout_is_in_milliseconds(text: str, allowed_s: float) -> None:
    assert timeout_s(request(**{TIMEOUT: text})) == allowed_s


def test_no_timeout_is_no_timeout() -> None:
    assert timeout_s(request()) is None


BAD = ["", "0", "000", "-1", "+1", "1.5", "1e3", " 5", "5 ", "5s", "soon", "٣", "1_000", "0x10"]


@pytest.mark.parametrize("text", [*BAD, str(10**12), "9" * 30])
def test_a_bad_timeout_is_refused(text: str) -> None:
    with pytest.raises(Fault) as caught:
        timeout_s(request(**{TIMEOUT: text}))
    assert caught.value.kind is Kind.INVALID
    assert caught.value.message == (
        "X-Request-Timeout-Ms must be a positive whole number of milliseconds"
    )


@pytest.mark.parametrize(
    "zeros_and_nines", [(10, 30), (19, 400), (19, 5000)], ids=["huge", "overflow", "too long"]
)
def test_a_long_timeout_is_judged_as_a_whole(zeros_and_nines: tuple[int, int]) -> None:
    zeros, nines = zeros_and_nines
    with pytest.raises(Fault):
        timeout_s(request(**{TIMEOUT: "0" * zeros + "1" + "9" * nines}))


@given(st.text(st.characters(max_codepoint=0x7F, exclude_characters="\r\n\0"), max_size=20))
def test_any_timeout_is_seconds_or_a_fault(text: str) -> None:
    with contextlib.suppress(Fault):
        allowed_s = timeout_s(request(**{TIMEOUT: text}))
        assert allowed_s is not None
        assert 0 < allowed_s <= 1e9
