"""Tenants: who calls, how they are recognised, and what they may use.

Decides what may be said about a tenant and about a tier. The rules between keys are in
`config.tenant_checks`; who is let in without being known is a matter of `config.auth`. Verifies
nothing.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from config.fields import FileName, Name, Section, Text, not_empty
from config.priorities import MayRank
from config.servers import Pattern

ANONYMOUS = "anonymous"
"""The tenant of callers that show nothing; it is there whether it is written or not."""
_RESERVED = frozenset({"unknown", "other"})
_HASH = r"^hmac-sha256:[0-9a-f]{12}:[0-9a-f]{32}:[0-9a-f]{64}$"
SUBJECT_NAMES = {
    "CN": "commonName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "C": "countryName",
    "ST": "stateOrProvinceName",
    "L": "localityName",
    "DC": "domainComponent",
    "UID": "userId",
    "EMAILADDRESS": "emailAddress",
    "SERIALNUMBER": "serialNumber",
}
"""Short names of the parts of a subject (RFC 4514, OpenSSL), and the long names OpenSSL reports."""
_ATTRIBUTE = re.compile(r"\s*([A-Za-z]+)\s*=\s*((?:[^,\\]|\\.)+)(,|$)")


def _check_not_reserved(name: str) -> str:
    if name in _RESERVED:
        raise ValueError(f"{name!r} has a meaning of its own in metrics - choose another name")
    return name


def _check_hash(text: str) -> str:
    # What stands here is not shown: it may be the key itself, written in the wrong place.
    if not re.fullmatch(_HASH, text):
        raise ValueError(
            "not the hash of a key - write the line that `triton-gateway keys new` or"
            " `triton-gateway keys hash` prints, never the key itself"
        )
    return text


def parse_moment(text: str) -> datetime:
    """Return the moment that a date (its end, UTC) or an RFC 3339 time stands for.

    Raises ValueError that says what to write instead.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is no date - write 2027-01-31, {_OR_TIME}") from None
    if re.fullmatch(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}", text):
        return datetime.combine(moment.date(), time.max, UTC)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} is in no time zone - write a date alone, {_OR_TIME}")
    return moment


_OR_TIME = "or a time with its zone as in 2027-01-31T12:00:00Z"


def _check_moment(text: str) -> str:
    parse_moment(text)
    return text


def _check_network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error} - write a network as in 10.1.0.0/16 or fd00::/8") from None
    return text


def split_subject(text: str) -> tuple[tuple[str, str], ...]:
    """Return the parts of a subject such as `CN=app,O=Example`, under OpenSSL's long names.

    A comma within a value is written as a backslash and a comma. Raises ValueError.
    """
    attributes: list[tuple[str, str]] = []
    at = 0
    while at < len(text) or not attributes:
        found = _ATTRIBUTE.match(text, at)
        name = SUBJECT_NAMES.get(found[1].upper()) if found else None
        if found is None or name is None or (found[3] and found.end() == len(text)):
            raise ValueError(
                f"{text[:200]!r} is no subject - write it as `openssl x509 -noout -subject -nameopt"
                f" RFC2253` shows it: CN=app,O=Example, with {', '.join(SUBJECT_NAMES)}"
            )
        attributes.append((name, re.sub(r"\\(.)", r"\1", found[2])))
        at = found.end()
    return tuple(attributes)


def _check_subject(text: str) -> str:
    split_subject(text)
    return text


TenantName = Annotated[Name, AfterValidator(_check_not_reserved)]
TierName = Name
KeyHash = Annotated[
    str, AfterValidator(_check_hash), WithJsonSchema({"type": "string", "pattern": _HASH})
]
Moment = Annotated[str, AfterValidator(_check_moment)]
"""A date, or a time with its zone; `parse_moment` reads it."""
Network = Annotated[str, AfterValidator(_check_network)]
"""An IP network in CIDR form, or a single address."""
Subject = Annotated[str, AfterValidator(_check_subject)]
"""The subject of a certificate; `split_subject` reads it."""
Scope = Literal["admin"]
ClaimValues = Annotated[
    tuple[Text, ...],
    Strict(False),
    AfterValidator(not_empty),
    Field(json_schema_extra={"minItems": 1}),
]


class TenantKey(Section):
    """One API key of a tenant: its hash, never the key itself."""

    hash: KeyHash
    """The line that `triton-gateway keys new` prints: the key's public id, a salt and a hash."""
    not_after: Moment | None = None
    """Until when the key is good: a date (its last day, UTC), or a time with its zone. Unset, until
    it is removed here."""


class Tenant(MayRank):
    """One tenant: how its callers are recognised, and what they may use."""

    tier: TierName | None = None
    """Which of `tiers` the tenant belongs to. Unset, none."""
    models: Annotated[tuple[Pattern, ...], Strict(False)] = ("*",)
    """Shell patterns (`*`, `?`, `[...]`; case counts) of the models, and aliases, the tenant may
    use and see, by the name a request uses: with an alias alone the models behind it need not be
    listed. Others look to it as if they did not exist. All by default; an empty list is none."""
    scopes: Annotated[tuple[Scope, ...], Strict(False)] = ()
    """What the tenant may do beyond using models. `admin`: load and unload models and change the
    servers' settings. Nothing by default."""
    keys: Annotated[tuple[TenantKey, ...], Strict(False)] = ()
    """Hashes of the API keys that callers show. To rotate, add the new one, then remove the old."""
    key_files: Annotated[tuple[FileName, ...], Strict(False)] = ()
    """Files with more hashes, one a line; a `not_after` may follow behind a space, and lines that
    begin with # do not count. A changed one is taken up
    as the configuration itself is."""
    certificates: Annotated[tuple[Subject, ...], Strict(False)] = ()
    """Subjects of client certificates, such as `CN=app,O=Example`: the whole subject, its parts in
    any order. Needs `api.tls.client_ca_file`."""
    networks: Annotated[tuple[Network, ...], Strict(False)] = ()
    """Networks, such as `10.1.0.0/16`, whose callers belong to the tenant when they show nothing
    else. Of several that fit, the smallest counts."""
    claims: Mapping[Text, ClaimValues] = Field(default_factory=dict)
    """Claims of a token that make its bearer this tenant: name of the claim to the values that are
    accepted. All claims listed here have to be there. Needs `auth.jwt`."""


class Tier(MayRank):
    """What tenants of one tier have in common."""
