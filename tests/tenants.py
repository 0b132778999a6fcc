"""Keys and sections of the configuration for tests with tenants."""

import os
from typing import Any

from gateway.identity.keys import hash_key, new_key

KEYS = {name: new_key(os.urandom) for name in ("a", "b", "admin", "late")}
WRONG = new_key(os.urandom)


def hashed(name: str, **fields: str) -> dict[str, str]:
    """Return what the configuration says of a key."""
    return {"hash": hash_key(KEYS[name], os.urandom), **fields}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def sections(mode: str = "enforce", **auth: Any) -> dict[str, Any]:
    """Return `auth`, `tiers` and `tenants`: a has echo, b everything else, admin all."""
    return {
        "auth": {"mode": mode, **auth},
        "tiers": {"gold": {}},
        "tenants": {
            "a": {"tier": "gold", "models": ["echo"], "keys": [hashed("a")]},
            "b": {
                "models": ["other*"],
                "keys": [hashed("b"), hashed("late", not_after="2020-01-01")],
            },
            "admin": {"scopes": ["admin"], "keys": [hashed("admin")]},
        },
    }
