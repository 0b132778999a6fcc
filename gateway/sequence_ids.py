"""What a sequence is called: on the servers, and in the store that gateways share.

Ids are unique only for one tenant, and only as far as their type goes. Called by
`gateway.sequences`.
"""

from hashlib import blake2b
from urllib.parse import quote

from gateway.codec.request_parameters import MAX_SEQUENCE_ID_BYTES
from gateway.codec.types import Scalar
from gateway.exchange import ANONYMOUS


def wire_id(tenant: str, own_id: Scalar) -> Scalar:
    """Return the id by which a server knows a tenant's sequence.

    Servers know no tenants, so equal ids of two tenants must differ there: numbers are hashed into
    the 64 bits they have (0 is no id), text gets a prefix. Anonymous callers keep their ids.
    """
    if tenant == ANONYMOUS:
        return own_id
    if isinstance(own_id, int):
        digest = blake2b(f"{tenant}\0{own_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") or 1
    prefix = blake2b(tenant.encode(), digest_size=8).hexdigest()
    text = f"{prefix}:{own_id}"
    if len(text.encode()) <= MAX_SEQUENCE_ID_BYTES:
        return text
    return f"{prefix}:{blake2b(str(own_id).encode(), digest_size=32).hexdigest()}"


def pin_key(tenant: str, name: str, version: str, own_id: Scalar) -> str:
    """Return where the store has the pin of a sequence; 5 and "5" are two.

    `name` is what requests call the model, `version` empty where they name none.
    """
    kind = "n" if isinstance(own_id, int) else "t"
    return f"seq:{quote(tenant, safe='')}:{quote(name, safe='')}:{version}:{kind}{own_id}"
