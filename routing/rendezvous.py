"""Where a sequence begins: rendezvous hashing with a bound on what one server gets.

Every gateway that asks for one key among the same servers finds the same one first, and a server
that comes or goes moves only its own share of the keys (Thaler and Ravishankar, 1998). The bound
(Mirrokni, Thorup and Zadimoghaddam, 2016) keeps chance and popular keys from filling one server: a
server at its bound is passed over for the next in the key's own order. Refuses to know what is
counted; called by the pool.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

BOUND = 1.25
"""How far above its fair part a server may be; the value common in practice."""

_HASHES = 2**52


def place(key: str, names: Sequence[str], shares: Sequence[float], held: Sequence[int]) -> int:
    """Return the index of the server that takes one more. Never called without servers.

    `shares` are the servers' capacities relative to each other, above 0, `held` is what each has.
    No server gets more than `BOUND` times its part of all there is, rounded up.
    """
    per_share = BOUND * (sum(held) + 1) / sum(shares)
    free = [at for at, has in enumerate(held) if has < math.ceil(per_share * shares[at])]
    return max(free, key=lambda at: _score(key, names[at], shares[at]))


def _score(key: str, name: str, share: float) -> float:
    # Weighted rendezvous: by -share / ln(hash) each wins as often as its share is large.
    digest = blake2b(f"{name}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    drawn = ((int.from_bytes(digest, "big") >> 12) + 0.5) / _HASHES
    return -share / math.log(drawn)
