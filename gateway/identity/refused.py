"""Why a caller is refused: a closed set, which is counted and logged."""

from enum import Enum

UNKNOWN = "unknown"
"""Stands where a tenant is due, for callers that are none."""


class Reason(Enum):
    """Why. The values are metric labels."""

    MISSING = "missing"  # nothing was shown, and that is not enough
    MALFORMED = "malformed"  # what was shown cannot be read, or is there twice
    UNKNOWN_KEY = "unknown_key"
    EXPIRED = "expired"  # a key or token that was good
    BAD_TOKEN = "bad_token"  # not signed by the issuer, not for this audience, not of any tenant
    UNVERIFIABLE = "unverifiable"  # the issuer's keys cannot be had at the moment
    CONFLICT = "conflict"  # two credentials of different tenants
    MODEL = "model"  # the tenant may not use the model
    SCOPE = "scope"  # the tenant may not do that


class Refused(Exception):
    """A caller is not known, or not good. `tenant` is who it would be, as far as that is sure."""

    def __init__(self, reason: Reason, *, tenant: str = UNKNOWN) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.tenant = tenant
