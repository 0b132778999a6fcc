"""API keys: how they look, what is kept of them, and whose they are.

A key is `tgk_ID_SECRET`: the prefix, by which people and scanners of source code recognise it, a
public id, by which its hash is found without trying every one, and 256 random bits. Kept is
HMAC-SHA-256 under a salt of its own. Slow hashes such as bcrypt protect secrets that can be
guessed; here there is nothing to guess, and they would only let strangers burn processor time.
Called by the authentication of the API listener and by the command line.
"""

import base64
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gateway.identity.refused import Reason, Refused

PREFIX = "tgk_"
_KEY = re.compile(r"tgk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID_BYTES, _SECRET_BYTES, _SALT_BYTES = 6, 32, 16

RandomBytes = Callable[[int], bytes]
"""Returns so many bytes that nobody can foresee."""


def new_key(random_bytes: RandomBytes) -> str:
    """Return a new key."""
    secret = base64.urlsafe_b64encode(random_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    return f"{PREFIX}{random_bytes(_ID_BYTES).hex()}_{secret}"


def hash_key(key: str, random_bytes: RandomBytes) -> str:
    """Return what is kept of a key, under a new salt: `hmac-sha256:ID:SALT:HASH`.

    Raises ValueError, which does not show the text, for anything that `new_key` does not return.
    """
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError("not a key that `triton-gateway keys new` has made")
    salt = random_bytes(_SALT_BYTES)
    return f"hmac-sha256:{found[1]}:{salt.hex()}:{_digest(salt, key).hex()}"


@dataclass(frozen=True, slots=True)
class HashedKey:
    """What is kept of one key. `not_after_s` is in seconds of the epoch."""

    tenant: str
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    not_after_s: float = float("inf")


def parse_hash(
    text: str, *, tenant: str, not_after_s: float = float("inf")
) -> tuple[str, HashedKey]:
    """Return the id of a key, and what is kept of it, from a well-formed hash."""
    _, key_id, salt, digest = text.split(":")
    return key_id, HashedKey(tenant, bytes.fromhex(salt), bytes.fromhex(digest), not_after_s)


_NOBODY = HashedKey("", b"\0" * _SALT_BYTES, b"")


class _Lock:
    """Compares keys with one kept key; what its salt contributes is worked out once."""

    def __init__(self, kept: HashedKey) -> None:
        self.kept = kept
        self._salted = hmac.new(kept.salt, digestmod="sha256")

    def fits(self, key: str) -> bool:
        """Whether this is the key; takes the same time for all that are not."""
        digest = self._salted.copy()
        digest.update(key.encode())
        return hmac.compare_digest(digest.digest(), self.kept.digest)


class KeyRing:
    """All keys, by their ids."""

    def __init__(self, keys: Iterable[tuple[str, HashedKey]]) -> None:
        self._by_id = {key_id: _Lock(kept) for key_id, kept in keys}
        self._nobody = _Lock(_NOBODY)

    def tenant_of(self, key: str, now_s: float) -> str:
        """Return whose key it is. Raises Refused. One hash, however many keys there are."""
        found = _KEY.fullmatch(key)
        if found is None:
            raise Refused(Reason.UNKNOWN_KEY)
        lock = self._by_id.get(found[1], self._nobody)
        if not lock.fits(key):
            raise Refused(Reason.UNKNOWN_KEY)
        kept = lock.kept
        if now_s > kept.not_after_s:
            raise Refused(Reason.EXPIRED, tenant=kept.tenant)
        return kept.tenant


def _digest(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode(), "sha256")
