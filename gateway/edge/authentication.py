"""Who calls, by what a request shows: before its body is read.

Looked at, in this order: an API key or token (`Authorization: Bearer`, `X-API-Key`), the client
certificate, the address, and else the caller is `anonymous`. What is shown must be good: a wrong
key is refused, however good the address. Two credentials must be of one tenant. Nothing in a URL
counts. No credential is kept, logged or repeated. Called by the API listener.
"""

from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

from aiohttp import hdrs, web
from multidict import istr

from gateway.edge.access import Access
from gateway.edge.routes import is_public
from gateway.exchange import ANONYMOUS, Exchange, Refusal
from gateway.faults import RETRY_AFTER_S, Fault, Kind, Origin
from gateway.identity.keys import PREFIX, KeyRing
from gateway.identity.refused import UNKNOWN, Reason, Refused
from gateway.identity.tenants import Address, Caller, Network, Tenants
from gateway.identity.tokens import Tokens
from gateway.switches import Feature, Switches

API_KEY = istr("X-API-Key")
_FORWARDED_FOR = istr("X-Forwarded-For")
_BEARER = "bearer "
_MESSAGES = {
    Reason.MISSING: "a key or token is needed: send it as 'Authorization: Bearer <key>'",
    Reason.EXPIRED: "the key or token has expired",
    Reason.CONFLICT: "the request shows credentials of different callers",
    Reason.UNVERIFIABLE: "tokens cannot be verified at the moment",
}
_WRONG = "the key or token is not valid"


class Authentication:
    """Recognises the callers of the API listener.

    `tokens` is None where none are accepted; `wall_clock` returns seconds of the epoch. While it is
    switched off callers are only observed, but scopes are held to: what changes servers stays shut.
    """

    def __init__(
        self,
        *,
        enforce: bool,
        allow_anonymous: bool,
        tenants: Tenants,
        keys: KeyRing,
        tokens: Tokens | None,
        proxies: Sequence[Network],
        switches: Switches,
        wall_clock: Callable[[], float],
    ) -> None:
        self._enforce = enforce
        self._allow_anonymous = allow_anonymous
        self._tenants = tenants
        self._keys = keys
        self._tokens = tokens
        self._proxies = proxies
        self._switches = switches
        self._wall_clock = wall_clock

    async def admit(self, exchange: Exchange, request: web.BaseRequest) -> Access:
        """Return what the caller may do, and note who it is on the exchange.

        Raises Fault: UNAUTHENTICATED for a caller that is not known and not only observed, and
        UNAVAILABLE while that cannot be found out.
        """
        known, enforce = True, self._enforce
        if enforce and self._switches.disabled(Feature.AUTH):
            enforce = False
        try:
            caller = await self._recognise(exchange, request)
        except Refused as refused:
            known = not enforce
            exchange.tenant = refused.tenant
            if not is_public(request.method, request.raw_path):
                _refuse(exchange, refused, enforce=enforce)
            caller = self._tenants.named(ANONYMOUS if refused.tenant == UNKNOWN else refused.tenant)
        if known:
            exchange.tenant, exchange.tier = caller.tenant, caller.tier
        return Access(exchange, caller, enforce=enforce, enforce_scopes=self._enforce, known=known)

    async def _recognise(self, exchange: Exchange, request: web.BaseRequest) -> Caller:
        """Return who calls. Raises Refused."""
        address = None
        if self._proxies or self._tenants.look_at_addresses:
            address = self._address(request)
            exchange.caller = str(address) if address is not None else exchange.caller
        shown: Caller | None = None
        for credential in _credentials(request):
            holder = self._key_holder(credential) or await self._token_holder(credential)
            shown = _agreeing(shown, holder)
        if self._tenants.look_at_certificates and (certified := self._certified(request)):
            shown = _agreeing(shown, certified)
        if shown is not None:
            return shown
        if address is not None and (found := self._tenants.at(address)):
            return found
        if not self._allow_anonymous:
            raise Refused(Reason.MISSING, tenant=ANONYMOUS)
        return self._tenants.named(ANONYMOUS)

    def _key_holder(self, credential: str) -> Caller | None:
        if not credential.startswith(PREFIX):
            return None
        return self._tenants.named(self._keys.tenant_of(credential, self._wall_clock()))

    async def _token_holder(self, credential: str) -> Caller:
        if self._tokens is None:
            raise Refused(Reason.UNKNOWN_KEY)
        return self._tenants.with_claims(
            await self._tokens.claims_of(credential, self._wall_clock())
        )

    def _certified(self, request: web.BaseRequest) -> Caller | None:
        transport = request.transport
        shown = transport.get_extra_info("peercert") if transport is not None else None
        if not shown:
            return None
        parts = (part for together in shown.get("subject", ()) for part in together)
        return self._tenants.with_subject(frozenset(parts))

    def _address(self, request: web.BaseRequest) -> Address | None:
        """Return where the caller is: the last address that is no proxy of ours."""
        address = _parsed(request.remote or "")
        for forwarded in _forwarded(request):
            if address is None or not any(address in network for network in self._proxies):
                break
            address = _parsed(forwarded)
        return address


def _refuse(exchange: Exchange, refused: Refused, *, enforce: bool) -> None:
    reason = refused.reason
    exchange.refusal = Refusal(reason.value, refused.tenant, enforced=enforce)
    if not enforce:
        return
    message = _MESSAGES.get(reason, _WRONG)
    if reason is Reason.UNVERIFIABLE:
        raise Fault(Kind.UNAVAILABLE, message, origin=Origin.GATEWAY, retry_after_s=RETRY_AFTER_S)
    raise Fault(Kind.UNAUTHENTICATED, message, origin=Origin.CLIENT)


def _agreeing(one: Caller | None, other: Caller) -> Caller:
    """Return the caller of two credentials; the first one says what it may do."""
    if one is None:
        return other
    if one.tenant != other.tenant:
        raise Refused(Reason.CONFLICT, tenant=UNKNOWN)
    return one


def _credentials(request: web.BaseRequest) -> Iterator[str]:
    """Yield the keys and tokens that a request shows. Raises Refused for what is none."""
    headers = request.headers
    authorizations = headers.getall(hdrs.AUTHORIZATION, ())
    api_keys = headers.getall(API_KEY, ())
    if len(authorizations) > 1 or len(api_keys) > 1:
        raise Refused(Reason.MALFORMED)
    for text in authorizations:
        if text[: len(_BEARER)].lower() != _BEARER or not text.isascii():
            raise Refused(Reason.MALFORMED)
        yield text[len(_BEARER) :].strip()
    for text in api_keys:
        if not text.startswith(PREFIX) or not text.isascii():
            raise Refused(Reason.UNKNOWN_KEY)
        yield text.strip()


def _forwarded(request: web.BaseRequest) -> Iterator[str]:
    """Yield the addresses of X-Forwarded-For, the one the nearest proxy has written first."""
    values = request.headers.getall(_FORWARDED_FOR, ())
    return reversed([part.strip() for value in values for part in value.split(",")])


def _parsed(text: str) -> Address | None:
    """Return an address, which may have brackets and a port; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
