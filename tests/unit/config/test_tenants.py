from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter, ValidationError

from config.tenants import Tenant, TenantName, parse_moment, split_subject

HASH = f"hmac-sha256:{'0a' * 6}:{'1b' * 16}:{'2c' * 32}"
HELLO = "tgk_0a0a0a0a0a0a_W5HHLJw-4mj5ReiryDJtIMSCYiBbaBEo9PLMRbOC0dE"


def _refusal(**fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Tenant.model_validate(fields)
    (error,) = caught.value.errors()
    return str(error["ctx"]["error"])


def test_the_usual_tenant_may_use_everything_and_change_nothing():
    assert Tenant().model_dump() == {
        "priority_class": None,
        "max_priority_class": None,
        "tier": None,
        "models": ("*",),
        "scopes": (),
        "keys": (),
        "key_files": (),
        "certificates": (),
        "networks": (),
        "claims": {},
    }


def test_a_tenant_may_use_no_model_at_all():
    assert Tenant.model_validate({"models": []}).models == ()


@pytest.mark.parametrize("name", ["a", "team-1", "a.b_c", "x" * 63])
def test_names_of_tenants(name):
    assert TypeAdapter(TenantName).validate_python(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Team", "use at most 63 of"),
        ("x" * 64, "use at most 63 of"),
        ("unknown", "has a meaning of its own"),
        ("other", "has a meaning of its own"),
    ],
)
def test_names_no_tenant_can_have(name, why):
    with pytest.raises(ValidationError, match=why):
        TypeAdapter(TenantName).validate_python(name)


@pytest.mark.parametrize("text", [HELLO, HASH.upper(), HASH + "0", "hmac-sha256:0:1:2", ""])
def test_what_is_no_hash_is_refused_and_never_shown(text):
    told = _refusal(keys=[{"hash": text}])
    assert told.startswith("not the hash of a key")
    assert not text or text not in told


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, 23, 59, 59, 999999, UTC)),
        ("2027-01-31T12:00:00Z", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_date_counts_to_its_end_and_a_time_in_its_zone(text, moment):
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    ("text", "why"),
    [("31.1.2027", "is no date"), ("2027-01-31T12:00:00", "is in no time zone")],
)
def test_times_nobody_can_be_sure_of_are_refused(text, why):
    assert why in _refusal(keys=[{"hash": HASH, "not_after": text}])


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("CN=app", (("commonName", "app"),)),
        ("cn=app, O=Example", (("commonName", "app"), ("organizationName", "Example"))),
        (r"O=A\, B=C,UID=7", (("organizationName", "A, B=C"), ("userId", "7"))),
    ],
)
def test_a_subject_is_taken_apart(text, subject):
    assert split_subject(text) == subject
    assert Tenant.model_validate({"certificates": [text]}).certificates == (text,)


@pytest.mark.parametrize("text", ["", "app", "CN=", "CN=a,", "CN=a,,O=b", "XX=a", "CN=a,O"])
def test_what_is_no_subject(text):
    assert "is no subject" in _refusal(certificates=[text])


def test_networks_are_written_exactly():
    networks = ("10.0.0.0/8", "192.0.2.7", "fd00::/8")
    assert Tenant.model_validate({"networks": list(networks)}).networks == networks
    assert "host bits set - write a network" in _refusal(networks=["10.1.0.0/8"])


def test_a_claim_has_a_value():
    assert _refusal(claims={"team": []}) == "the list is empty - write at least one"
    assert Tenant.model_validate({"claims": {"team": ["a"]}}).claims == {"team": ("a",)}
