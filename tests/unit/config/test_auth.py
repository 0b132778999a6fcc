import pytest
from pydantic import ValidationError

from config.auth import Auth, Jwt

JWT = {"issuer": "i", "audience": ["a"], "jwks_url": "https://login.example.com/keys"}


def _refusal(**fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Jwt.model_validate(JWT | fields)
    (error,) = caught.value.errors()
    return str(error.get("ctx", {}).get("error", error["type"]))


def test_nobody_is_asked_by_default():
    assert Auth().model_dump() == {
        "mode": "off",
        "allow_anonymous": False,
        "trusted_proxies": (),
        "jwt": None,
    }


def test_the_usual_rules_for_tokens():
    assert Jwt.model_validate(JWT).model_dump() == {
        **JWT,
        "audience": ("a",),
        "algorithms": ("RS256", "ES256"),
        "leeway_s": 30.0,
        "refresh_s": 300.0,
        "retry_s": 10.0,
        "max_stale_s": 86400.0,
        "timeout_s": 5.0,
        "tenant_claim": None,
        "tier_claim": None,
        "models_claim": None,
        "scopes_claim": None,
    }


@pytest.mark.parametrize("algorithm", ["none", "HS256", "rs256"])
def test_shared_secrets_and_unsigned_tokens_cannot_be_configured(algorithm):
    assert _refusal(algorithms=[algorithm]) == "literal_error"


@pytest.mark.parametrize("key", ["audience", "algorithms"])
def test_a_list_of_what_is_accepted_is_not_empty(key):
    assert _refusal(**{key: []}) == "the list is empty - write at least one"


@pytest.mark.parametrize(
    "url",
    ["https://x/keys", "https://x:8443/keys", "http://127.0.0.1:1/k", "http://localhost/k"],
)
def test_where_keys_may_come_from(url):
    assert Jwt.model_validate(JWT | {"jwks_url": url}).jwks_url == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://login.example.com/keys", "plain http could be exchanged"),
        ("http://10.0.0.1/keys", "plain http could be exchanged"),
        ("https://user:pw@x/keys", "write a URL"),
        ("https:///keys", "write a URL"),
        ("file:///etc/keys", "write a URL"),
        ("ftp://x/keys", "write a URL"),
        ("https://x:0/keys", "write a URL"),
        ("https://[x/keys", "write a URL"),
    ],
)
def test_where_keys_may_not_come_from(url, why):
    told = _refusal(jwks_url=url)
    assert why in told
    assert "pw" not in told.replace("password", "")
