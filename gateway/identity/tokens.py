"""JSON Web Tokens (RFC 7519): whether one is the issuer's, for this gateway, and good now.

Only signatures with a public key count, and only by the algorithms that are allowed: what a token
says of its own algorithm is compared, never believed. Called by the authentication of the API
listener.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.identity.issuer import IssuerKeys
from gateway.identity.refused import Reason, Refused

_MOST_REMEMBERED = 10_000
_OPTIONS: Any = {
    "require": ["exp", "iss", "aud"],
    # Judged here, by the clock given, and again each time a remembered token is shown.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must be. `leeway_s` is how far clocks may be apart."""

    issuer: str
    audience: Sequence[str]
    algorithms: Collection[str]
    leeway_s: float


class Tokens:
    """Verifies tokens, and remembers by their digests those that were good."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys) -> None:
        self._rules = rules
        self._keys = keys
        self._remembered: dict[bytes, Mapping[str, Any]] = {}
        self._generation = -1

    async def claims_of(self, token: str, now_s: float) -> Mapping[str, Any]:
        """Return the claims of a token; `now_s` is in seconds of the epoch. Raises Refused."""
        await self._keys.ready()
        if self._generation != self._keys.generation:
            self._remembered.clear()
            self._generation = self._keys.generation
        digest = hashlib.sha256(token.encode()).digest()
        claims = self._remembered.get(digest)
        if claims is None:
            claims = await self._verify(token)
            if len(self._remembered) >= _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[digest] = claims
        self._check_times(claims, now_s)
        return claims

    async def _verify(self, token: str) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415 - 8 MB of each process, and few accept tokens

        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))
            if algorithm not in self._rules.algorithms:
                raise Refused(Reason.BAD_TOKEN)
            key = await self._keys.find(header.get("kid"))
            if key is None or key.algorithm not in (None, algorithm):
                raise Refused(Reason.BAD_TOKEN)
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                options=_OPTIONS,
            )
        # A key of another kind than the algorithm wants is a TypeError or ValueError.
        except (jwt.PyJWTError, TypeError, ValueError, AttributeError):
            raise Refused(Reason.BAD_TOKEN) from None
        return claims

    def _check_times(self, claims: Mapping[str, Any], now_s: float) -> None:
        times = [claims["exp"], claims.get("nbf", 0), claims.get("iat", 0)]
        if not all(isinstance(time_s, int | float) for time_s in times):
            raise Refused(Reason.BAD_TOKEN)
        until_s, *since_s = times
        if now_s > until_s + self._rules.leeway_s:
            raise Refused(Reason.EXPIRED)
        if now_s < max(since_s) - self._rules.leeway_s:
            raise Refused(Reason.BAD_TOKEN)
