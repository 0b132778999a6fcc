"""Who a credential is of, and what that lets its holder do."""

import os
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from gateway.identity.keys import KeyRing, hash_key, new_key, parse_hash
from gateway.identity.refused import Reason, Refused
from gateway.identity.tenants import Caller, ClaimNames, ModelNames, Tenants

NAMES = ClaimNames(tenant="tenant", tier="tier", models="models", scopes="scope")


def tenants(**fields: Any) -> Tenants:
    callers = {
        "anonymous": Caller("anonymous"),
        "a": Caller("a", "gold", (ModelNames(["m*"]),), frozenset({"admin"})),
        "b": Caller("b"),
    }
    usual: dict[str, Any] = {
        "subjects": {}, "networks": [], "claims": {}, "claim_names": NAMES, "tiers": {"silver"},
    }  # fmt: skip
    return Tenants(callers, **{**usual, **fields})


def refusal(ring: KeyRing, key: str, now_s: float = 0.0) -> Refused:
    with pytest.raises(Refused) as caught:
        ring.tenant_of(key, now_s)
    return caught.value


# --- keys


def test_a_key_opens_for_its_tenant_alone() -> None:
    keys = {name: new_key(os.urandom) for name in ("a", "b")}
    ring = KeyRing(parse_hash(hash_key(key, os.urandom), tenant=t) for t, key in keys.items())
    assert {ring.tenant_of(key, 0.0) for key in keys.values()} == {"a", "b"}


def test_what_is_almost_a_key_opens_nothing() -> None:
    key = new_key(os.urandom)
    ring = KeyRing([parse_hash(hash_key(key, os.urandom), tenant="a")])
    other_end = key[:-1] + ("A" if key[-1] != "A" else "B")
    for wrong in (other_end, key[:-1], key + "A", key.upper(), new_key(os.urandom), "tgk_", ""):
        assert refusal(ring, wrong).reason is Reason.UNKNOWN_KEY
        assert refusal(ring, wrong).tenant == "unknown"


def test_an_expired_key_is_still_known_as_whose_it_was() -> None:
    key = new_key(os.urandom)
    ring = KeyRing([parse_hash(hash_key(key, os.urandom), tenant="a", not_after_s=10.0)])
    assert ring.tenant_of(key, 10.0) == "a"
    assert (refusal(ring, key, 10.1).reason, refusal(ring, key, 10.1).tenant) == (
        Reason.EXPIRED,
        "a",
    )


def test_every_comparison_takes_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        return one == other

    monkeypatch.setattr("gateway.identity.keys.hmac.compare_digest", compare)
    refusal(KeyRing([]), new_key(os.urandom))
    assert compared == [32]


def test_the_same_key_is_hashed_differently_each_time_and_never_contained() -> None:
    key = new_key(os.urandom)
    hashes = {hash_key(key, os.urandom) for _ in range(3)}
    assert len(hashes) == 3
    assert not any(key[17:] in hashed for hashed in hashes)


def test_only_keys_of_our_making_are_hashed() -> None:
    with pytest.raises(ValueError, match="keys new") as caught:
        hash_key("password1", os.urandom)
    assert "password1" not in str(caught.value)


# --- models


@pytest.mark.parametrize(
    ("patterns", "fits", "fits_not"),
    [
        (["*"], ["m", "any/thing\n"], []),
        ([], [], ["m", ""]),
        (["m*", "x?"], ["m", "models", "xy"], ["am", "x", "M", "xyz", "xy\n"]),
        (["a|b"], ["a|b"], ["a", "b"]),
    ],
)
def test_patterns_of_models(patterns: list[str], fits: list[str], fits_not: list[str]) -> None:
    names = ModelNames(patterns)
    assert [name for name in (*fits, *fits_not) if names.has(name)] == fits


# --- certificates and networks


def test_a_subject_is_a_tenants_whatever_the_order_of_its_parts() -> None:
    subject = frozenset({("commonName", "app"), ("organizationName", "O")})
    known = tenants(subjects={subject: "a"})
    found = known.with_subject(frozenset([("organizationName", "O"), ("commonName", "app")]))
    assert found is not None
    assert found.tenant == "a"
    assert known.with_subject(frozenset([("commonName", "app")])) is None


def test_the_smallest_network_counts() -> None:
    known = tenants(networks=[(ip_network("10.0.0.0/8"), "a"), (ip_network("10.1.0.0/16"), "b")])
    found = [known.at(ip_address(text)) for text in ("10.1.2.3", "10.2.0.1", "11.0.0.1", "::1")]
    assert [caller and caller.tenant for caller in found] == ["b", "a", None, None]
    assert known.look_at_addresses
    assert not tenants().look_at_addresses


# --- claims


def of_claims(known: Tenants, **claims: Any) -> Caller:
    return known.with_claims(claims)


def test_all_claims_of_a_tenant_have_to_be_there() -> None:
    known = tenants(claims={"a": {"team": ("x", "y"), "env": ("prod",)}}, claim_names=ClaimNames())
    assert of_claims(known, team="y", env="prod").tenant == "a"
    assert of_claims(known, team=["z", "x"], env="prod").tenant == "a"
    for claims in ({"team": "x"}, {"team": "z", "env": "prod"}, {"team": 1, "env": "prod"}, {}):
        with pytest.raises(Refused):
            of_claims(known, **claims)


@pytest.mark.parametrize("named", ["nobody", "", None, 7, ["a"]])
def test_a_token_names_a_tenant_that_is_there(named: object) -> None:
    assert of_claims(tenants(), tenant="b").tenant == "b"
    with pytest.raises(Refused) as caught:
        of_claims(tenants(), tenant=named)
    assert caught.value.reason is Reason.BAD_TOKEN


def test_a_token_can_name_a_tier_that_is_there() -> None:
    tiers = [of_claims(tenants(), tenant="a", tier=tier).tier for tier in ("silver", "top", 1)]
    assert tiers == ["silver", "gold", "gold"]


def test_a_token_narrows_what_its_tenant_may_do_and_never_widens_it() -> None:
    narrow = of_claims(tenants(), tenant="a", models=["m1", "x"], scope="read admin")
    assert [narrow.may_use(name) for name in ("m1", "m2", "x")] == [True, False, False]
    assert narrow.scopes == {"admin"}
    assert of_claims(tenants(), tenant="a").scopes == set()
    assert of_claims(tenants(), tenant="b", scope="admin").scopes == set()
    assert of_claims(tenants(claim_names=ClaimNames("tenant")), tenant="a").scopes == {"admin"}
