"""What a caller may do, and what is noted when it may not."""

import pytest

from gateway.edge.access import EVERYTHING, Access
from gateway.exchange import Exchange, Refusal
from gateway.faults import Fault, Kind
from gateway.identity.tenants import Caller, ModelNames


@pytest.fixture
def exchange() -> Exchange:
    return Exchange("r", "caller", "route", lambda: 0.0, 0.0)


def access(
    exchange: Exchange, *scopes: str, enforce: bool = True, enforce_scopes: bool | None = None
) -> Access:
    caller = Caller("a", models=(ModelNames(["m"]),), scopes=frozenset(scopes))
    if enforce_scopes is None:
        enforce_scopes = enforce
    return Access(exchange, caller, enforce=enforce, enforce_scopes=enforce_scopes)


def test_where_nobody_is_asked_everything_is_seen_and_no_scope_decides() -> None:
    assert EVERYTHING.known
    assert EVERYTHING.sees("m")
    assert EVERYTHING.may_use("m")
    assert EVERYTHING.require_scope("admin") is False


def test_a_scope_that_a_caller_has_decides(exchange: Exchange) -> None:
    for enforce in (True, False):
        assert access(exchange, "admin", enforce=enforce).require_scope("admin") is True
    assert exchange.refusal is None


def test_a_scope_that_a_caller_has_not_is_a_refusal(exchange: Exchange) -> None:
    with pytest.raises(Fault) as caught:
        access(exchange, "read").require_scope("admin")
    assert (caught.value.kind, caught.value.message) == (
        Kind.FORBIDDEN,
        "this needs the scope 'admin'",
    )
    assert exchange.refusal == Refusal("scope", "a", enforced=True)


def test_an_observed_caller_passes_and_the_first_refusal_is_noted(exchange: Exchange) -> None:
    observed = access(exchange, enforce=False)
    assert observed.require_scope("admin") is False
    assert observed.may_use("other")
    assert observed.sees("other")
    assert exchange.refusal == Refusal("scope", "a", enforced=False)


def test_models_are_used_and_seen_by_their_names(exchange: Exchange) -> None:
    refusing = access(exchange)
    assert (refusing.may_use("m"), refusing.sees("m")) == (True, True)
    assert exchange.refusal is None
    assert (refusing.sees("other"), exchange.refusal) == (False, None)
    assert refusing.may_use("other") is False
    assert exchange.refusal == Refusal("model", "a", enforced=True)


def test_scopes_may_be_held_to_where_all_else_is_observed(exchange: Exchange) -> None:
    observed = access(exchange, enforce=False, enforce_scopes=True)
    assert observed.may_use("other")
    assert exchange.refusal == Refusal("model", "a", enforced=False)
    with pytest.raises(Fault, match="scope 'admin'"):
        observed.require_scope("admin")
    assert exchange.refusal == Refusal("scope", "a", enforced=True)
