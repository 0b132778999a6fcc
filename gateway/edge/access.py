"""What the caller of one request may do, for whoever answers it.

Decides between refusing and only noting that one would have refused. Refuses to know how a caller
was recognised. Built by the authentication, carried by the matched route.
"""

from gateway.exchange import Exchange, Refusal
from gateway.faults import Fault, Kind, Origin
from gateway.identity.refused import Reason
from gateway.identity.tenants import Caller


class Access:
    """What one caller may do.

    `known` is False for a stranger on a public route: nothing of its body is read. With `enforce`
    off everything is allowed, and what would have been refused is noted on the exchange; but with
    `enforce_scopes` what needs a scope is refused without it.
    """

    __slots__ = ("_caller", "_enforce", "_enforce_scopes", "_exchange", "known")

    def __init__(
        self,
        exchange: Exchange,
        caller: Caller,
        *,
        enforce: bool,
        enforce_scopes: bool,
        known: bool = True,
    ) -> None:
        self._exchange = exchange
        self._caller = caller
        self._enforce = enforce
        self._enforce_scopes = enforce_scopes
        self.known = known

    def sees(self, model: str) -> bool:
        """Whether a model or alias of that name exists for the caller, as in a list of them."""
        return not self._enforce or self._caller.may_use(model)

    def may_use(self, model: str) -> bool:
        """Whether a request for that name may go on; if not, it must look like an unknown one."""
        return self._caller.may_use(model) or self._lets_pass(Reason.MODEL, self._enforce)

    def require_scope(self, scope: str) -> bool:
        """Whether the caller has the scope; False only where nobody is held to it.

        Raises Fault (FORBIDDEN) for a caller that would need it and has it not. Where the answer
        is False, something else than scopes has to decide.
        """
        if scope in self._caller.scopes:
            return True
        if self._lets_pass(Reason.SCOPE, self._enforce_scopes):
            return False
        raise Fault(Kind.FORBIDDEN, f"this needs the scope '{scope}'", origin=Origin.CLIENT)

    def _lets_pass(self, reason: Reason, enforce: bool) -> bool:
        """Note a refusal; whether the request goes on all the same.

        Of several the first one counts, unless a later one ends the request.
        """
        exchange = self._exchange
        if exchange.refusal is None or (enforce and not exchange.refusal.enforced):
            exchange.refusal = Refusal(reason.value, self._caller.tenant, enforced=enforce)
        return not enforce


class _Everything(Access):
    """What everybody may do where nobody is asked."""

    __slots__ = ()

    def __init__(self) -> None:
        self.known = True

    def sees(self, model: str) -> bool:
        return True

    def may_use(self, model: str) -> bool:
        return True

    def require_scope(self, scope: str) -> bool:
        return False


EVERYTHING: Access = _Everything()
