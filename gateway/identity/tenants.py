"""Who belongs to which tenant, and what a tenant may use.

Decides by what has been verified elsewhere: a subject, an address, the claims of a token. Opens
nothing and waits for nothing. Called by the authentication of the API listener.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from gateway.identity.refused import Reason, Refused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Subject = frozenset[tuple[str, str]]
"""The parts of a certificate's subject, under OpenSSL's long names."""


class ModelNames:
    """Shell patterns of models. Case counts."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(patterns)
        self._all = "*" in patterns
        self._fits = re.compile("|".join(map(translate, patterns)) or r"(?!)").match

    def has(self, model: str) -> bool:
        """Whether a pattern fits the name."""
        return self._all or self._fits(model) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """One tenant, as far as one credential of it reaches. `models` must all have a model."""

    tenant: str
    tier: str = ""
    models: tuple[ModelNames, ...] = ()
    scopes: frozenset[str] = frozenset()

    def may_use(self, model: str) -> bool:
        """Whether it may use and see what is called so."""
        return all(names.has(model) for names in self.models)


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claims of a token say what; None where none does."""

    tenant: str | None = None
    tier: str | None = None
    models: str | None = None
    scopes: str | None = None


class Tenants:
    """All tenants, `anonymous` among them, and what they are recognised by.

    `claims` has for each tenant the claims it wants and the values it takes, in the order in which
    tenants are tried.
    """

    def __init__(
        self,
        callers: Mapping[str, Caller],
        *,
        subjects: Mapping[Subject, str],
        networks: Iterable[tuple[Network, str]],
        claims: Mapping[str, Mapping[str, Collection[str]]],
        claim_names: ClaimNames,
        tiers: Collection[str],
    ) -> None:
        self._callers = callers
        self._subjects = subjects
        # The smallest network first.
        self._networks = sorted(networks, key=lambda found: -found[0].prefixlen)
        self._claims = claims
        self._names = claim_names
        self._tiers = tiers

    def named(self, tenant: str) -> Caller:
        """Return a tenant that is there."""
        return self._callers[tenant]

    def with_subject(self, subject: Subject) -> Caller | None:
        """Return the tenant that a certificate is of, None for one nobody knows."""
        tenant = self._subjects.get(subject)
        return None if tenant is None else self._callers[tenant]

    @property
    def look_at_certificates(self) -> bool:
        """Whether any tenant is recognised by a client certificate."""
        return bool(self._subjects)

    @property
    def look_at_addresses(self) -> bool:
        """Whether any tenant is recognised by where it calls from."""
        return bool(self._networks)

    def at(self, address: Address) -> Caller | None:
        """Return the tenant whose callers come from there, None for nobody's address."""
        for network, tenant in self._networks:
            if address in network:
                return self._callers[tenant]
        return None

    def with_claims(self, claims: Mapping[str, Any]) -> Caller:
        """Return the tenant of a verified token, as far as the token lets it. Raises Refused."""
        names = self._names
        caller = self._callers[self._tenant_of(claims)]
        tier = claims.get(names.tier) if names.tier else None
        if isinstance(tier, str) and tier in self._tiers:
            caller = replace(caller, tier=tier)
        if names.models is not None and names.models in claims:
            allowed = ModelNames(_texts(claims[names.models]))
            caller = replace(caller, models=(*caller.models, allowed))
        if names.scopes is not None:
            scopes = caller.scopes.intersection(_texts(claims.get(names.scopes)))
            caller = replace(caller, scopes=scopes)
        return caller

    def _tenant_of(self, claims: Mapping[str, Any]) -> str:
        for tenant, wanted in self._claims.items():
            if wanted and all(
                not values_of.isdisjoint(_texts(claims.get(name)))
                for name, values_of in ((name, set(values)) for name, values in wanted.items())
            ):
                return tenant
        named = claims.get(self._names.tenant) if self._names.tenant else None
        if not isinstance(named, str) or named not in self._callers:
            raise Refused(Reason.BAD_TOKEN)
        return named


def _texts(claim: object) -> Sequence[str]:
    """Return the texts of a claim: a list's, or those of one text, as a whole and word by word."""
    if isinstance(claim, str):
        return [claim, *claim.split()]
    if isinstance(claim, list):
        return [item for item in claim if isinstance(item, str)]
    return []
