"""Authentication on the API listener: whether callers must be known, and by which tokens.

Decides what may be said about it. Who the tenants are is in `config.tenants`.
"""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from config.fields import Seconds, SecondsOrZero, Section, Text, not_empty, parse_ip
from config.tenants import Network


def _check_url(url: str) -> str:
    try:
        split = urlsplit(url)
        host = split.hostname or ""
        valid = split.port != 0 and "@" not in split.netloc
    except ValueError:
        valid, host = False, ""
    if not valid or not host or split.scheme not in ("https", "http"):
        raise ValueError("write a URL as in https://login.example.com/keys, without a password")
    address = parse_ip(host)
    if split.scheme == "http" and not (address.is_loopback if address else host == "localhost"):
        raise ValueError(
            f"keys from {host} over plain http could be exchanged on the way - write https"
        )
    return url


Url = Annotated[
    str, AfterValidator(_check_url), WithJsonSchema({"type": "string", "pattern": "^https?://"})
]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
_FILLED = Field(json_schema_extra={"minItems": 1})
Texts = Annotated[tuple[Text, ...], Strict(False), AfterValidator(not_empty), _FILLED]
Algorithms = Annotated[tuple[Algorithm, ...], Strict(False), AfterValidator(not_empty), _FILLED]


class Jwt(Section):
    """JSON Web Tokens that callers show as bearer tokens."""

    issuer: Text
    """What the claim `iss` must be."""
    audience: Texts
    """What the claim `aud` must hold one of."""
    jwks_url: Url
    """Where the issuer publishes its keys, as a JSON Web Key Set; over https, except from this
    machine."""
    algorithms: Algorithms = ("RS256", "ES256")
    """Signature algorithms that are accepted. The default has the two that nearly every issuer
    uses. There are none with shared secrets, and no unsigned tokens."""
    leeway_s: SecondsOrZero = 30.0
    """How far the clocks of issuer and gateway may be apart, in seconds. Half a minute forgives
    machines that are not quite in step."""
    refresh_s: Seconds = 300.0
    """Age at which the keys are fetched again, in seconds, by the next token. Five minutes, after
    which a key the issuer has withdrawn counts no more."""
    retry_s: Seconds = 10.0
    """Shortest time between two attempts to fetch the keys, in seconds, also for tokens signed with
    a key that is not known yet. Ten seconds find a new key soon, and strangers cannot make the
    gateway trouble the issuer."""
    max_stale_s: SecondsOrZero = 86_400.0
    """How long the keys are used on while they cannot be fetched again, in seconds, from the last
    time they were. A day outlasts most outages of an issuer."""
    timeout_s: Seconds = 5.0
    """Longest time a fetch of the keys may take, in seconds. Requests wait for it only when they
    cannot be judged without it."""
    tenant_claim: Text | None = None
    """Claim that holds the name of the tenant, which must be one of `tenants`. It is looked at when
    no tenant's `claims` fit. Unset, only those count."""
    tier_claim: Text | None = None
    """Claim that holds the name of a tier, which then counts instead of the tenant's. A tier that
    is not in `tiers` does not count. Unset, the tenant's counts."""
    models_claim: Text | None = None
    """Claim with patterns of models, a list or text with spaces between. A token that has it is
    good for what it and the tenant's `models` both allow. Unset, the tenant's count."""
    scopes_claim: Text | None = None
    """Claim with scopes, a list or text with spaces between, such as `scope`. Set, a bearer has
    those of the tenant's `scopes` that the token has as well. Unset, the tenant's count."""


class Auth(Section):
    """Whether callers of the API must be known."""

    mode: Literal["off", "observe", "enforce"] = "off"
    """`off`: nobody is asked. `observe`: callers are recognised, everybody passes, and what would
    have been refused is counted and logged. `enforce`: every route but `/v2/health/live` and
    `/v2/health/ready` needs a caller that is known. Off by default, as a Triton asks nobody."""
    allow_anonymous: bool = False
    """Whether callers that show nothing are known as the tenant `anonymous`. What is shown and
    wrong is refused all the same."""
    trusted_proxies: Annotated[tuple[Network, ...], Strict(False)] = ()
    """Networks of the proxies whose `X-Forwarded-For` is believed: the caller is then the last
    address in it that is no such proxy. By default none, and the connection's address counts."""
    jwt: Jwt | None = None
    """Tokens that callers may show instead of a key. Unset, none are accepted."""
