"""What the sections `auth`, `tenants` and `tiers` mean for the API listener's callers."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_network

from config.auth import Jwt
from config.key_files import WrittenKey, keys_of
from config.models import Config
from config.tenants import Tenant as TenantConfig
from config.tenants import split_subject
from gateway.edge.authentication import Authentication
from gateway.exchange import ANONYMOUS
from gateway.identity.issuer import FetchRules, IssuerKeys
from gateway.identity.keys import HashedKey, KeyRing, parse_hash
from gateway.identity.tenants import Caller, ClaimNames, ModelNames, Tenants
from gateway.identity.tokens import TokenRules, Tokens
from gateway.ports import LogEvent
from gateway.switches import Switches
from gateway.wiring.clock import CLOCK, WALL_CLOCK


def issuer_of(config: Config, before: IssuerKeys | None, *, told: LogEvent) -> IssuerKeys | None:
    """Return the keys of the issuer of tokens: those of `before`, if they are the same.

    They outlast a reload, since the issuer may be out of reach just then.
    """
    jwt = config.auth.jwt
    if jwt is None or config.auth.mode == "off":
        return None
    rules = FetchRules(
        url=jwt.jwks_url,
        refresh_s=jwt.refresh_s,
        retry_s=jwt.retry_s,
        max_stale_s=jwt.max_stale_s,
        timeout_s=jwt.timeout_s,
    )
    if before is not None and before.rules == rules:
        return before
    return IssuerKeys(rules, clock=CLOCK, told=told)


def authentication_of(
    config: Config, issuer: IssuerKeys | None, switches: Switches
) -> Authentication | None:
    """Build what recognises callers, None where nobody is asked.

    Raises OSError or ValueError for a file of hashes that is of no use any more.
    """
    auth = config.auth
    if auth.mode == "off":
        return None
    return Authentication(
        enforce=auth.mode == "enforce",
        allow_anonymous=auth.allow_anonymous,
        tenants=_tenants(config),
        keys=KeyRing(_keys(config)),
        tokens=_tokens(auth.jwt, issuer),
        proxies=[ip_network(text) for text in auth.trusted_proxies],
        switches=switches,
        wall_clock=WALL_CLOCK,
    )


def keys_in_files(config: Config) -> Mapping[str, frozenset[WrittenKey]]:
    """Return what stands in each tenant's files of hashes. Raises OSError or ValueError."""
    return {
        name: frozenset(key for key in keys_of(tenant) if key.file)
        for name, tenant in config.tenants.items()
        if tenant.key_files
    }


def _tenants(config: Config) -> Tenants:
    tenants = {ANONYMOUS: TenantConfig(), **config.tenants}
    return Tenants(
        {name: _caller(name, tenant) for name, tenant in tenants.items()},
        subjects={
            frozenset(split_subject(text)): name
            for name, tenant in tenants.items()
            for text in tenant.certificates
        },
        networks=[
            (ip_network(text), name) for name, tenant in tenants.items() for text in tenant.networks
        ],
        claims={name: tenant.claims for name, tenant in tenants.items() if tenant.claims},
        claim_names=_claim_names(config.auth.jwt),
        tiers=frozenset(config.tiers),
    )


def _caller(name: str, tenant: TenantConfig) -> Caller:
    return Caller(
        name,
        tier=tenant.tier or "",
        models=(ModelNames(tenant.models),),
        scopes=frozenset(tenant.scopes),
    )


def _keys(config: Config) -> Iterator[tuple[str, HashedKey]]:
    for name, tenant in config.tenants.items():
        for key in keys_of(tenant):
            until_s = key.not_after.timestamp() if key.not_after else float("inf")
            yield parse_hash(key.hash, tenant=name, not_after_s=until_s)


def _claim_names(jwt: Jwt | None) -> ClaimNames:
    if jwt is None:
        return ClaimNames()
    return ClaimNames(jwt.tenant_claim, jwt.tier_claim, jwt.models_claim, jwt.scopes_claim)


def _tokens(jwt: Jwt | None, issuer: IssuerKeys | None) -> Tokens | None:
    if jwt is None or issuer is None:
        return None
    rules = TokenRules(
        issuer=jwt.issuer,
        audience=jwt.audience,
        algorithms=frozenset(jwt.algorithms),
        leeway_s=jwt.leeway_s,
    )
    return Tokens(rules, issuer)
