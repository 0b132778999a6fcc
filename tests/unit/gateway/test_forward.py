"""Headers that go on to servers: the allowed ones, if gRPC can carry them."""

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.edge.forward import ForwardedHeaders


def take(*headers: tuple[str, str], allowed: tuple[str, ...] = ("X-Note", "traceparent")):
    return ForwardedHeaders(allowed).take(CIMultiDictProxy(CIMultiDict(headers)))


def test_allowed_headers_go_on_in_lower_case_and_others_stay():
    given = [("X-NOTE", " hello "), ("X-Other", "1"), ("Traceparent", "00-ab-cd-01")]
    assert take(*given) == ((("traceparent", "00-ab-cd-01"), ("x-note", "hello")), ())


def test_a_header_that_comes_twice_goes_on_twice():
    assert take(("x-note", "1"), ("x-note", "2"))[0] == (("x-note", "1"), ("x-note", "2"))


@pytest.mark.parametrize("value", ["caf\xe9", "\udce9", "a\tb", "\x01", "x" * 5000])
def test_what_grpc_cannot_carry_is_left_out_and_named(value):
    assert take(("x-note", value), ("traceparent", "1")) == ((("traceparent", "1"),), ("x-note",))


def test_without_an_allow_list_nothing_goes_on():
    assert take(("x-note", "1"), allowed=()) == ((), ())
