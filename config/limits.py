"""Rate limits: who may ask for how much.

Decides what may be said about one. The rules between its keys are in `config.limit_checks`.
"""

from typing import Annotated, Literal

from pydantic import Field, Strict

from config.fields import Name, Section, Text
from config.servers import Patterns

MAX_BURST = 1_000_000_000_000


LimitName = Name
"""What callers, metrics and operators know a limit by."""
Names = Annotated[
    tuple[Text, ...], Strict(False), Field(min_length=1, json_schema_extra={"minItems": 1})
]
Rate = Annotated[float, Field(ge=0.001, le=MAX_BURST)]


class Limit(Section):
    """One limit: `of` at `per_s` or `per_minute`, or `concurrent`."""

    tenants: Names | None = None
    """Tenants it is for, as patterns with `*`, `?` and `[...]`. Unset, all."""
    tiers: Names | None = None
    """Tiers of tenants it is for, as such patterns. Unset, all."""
    models: Patterns | None = None
    """Models it is for, as such patterns, by the names the servers know. Unset, all."""
    of: Literal["requests", "rows", "input_bytes", "elements"] = "requests"
    """What is counted: requests, their batch rows, the bytes of their input tensors, or the
    elements of these. A model that does not batch has one row a request."""
    per_s: Rate | None = None
    """How many of them a second."""
    per_minute: Rate | None = None
    """How many of them a minute, instead of `per_s`."""
    burst: int | None = Field(None, ge=1, le=MAX_BURST)
    """How many at once, after a time with fewer. A request that counts more than this is refused
    with 400. Unset, what the rate yields in a second, and at least one."""
    concurrent: int | None = Field(None, ge=1, le=1_000_000)
    """Requests at a time, instead of a rate. A request counts until its work on the server has
    ended, also when its caller is gone."""
    per: Literal["tenant", "global", "tenant_model"] = "tenant"
    """Who has a quota of its own: each tenant, the default; each tenant for each model; or all
    callers together have one (`global`)."""
    mode: Literal["enforce", "observe"] = "enforce"
    """`observe` refuses nothing and counts what it would have refused: for trying a limit out."""
    on_store_failure: Literal["local", "open", "closed"] = "local"
    """What decides while Redis does not answer: each gateway process for its share of the limit
    (`local`, the default: neither outage nor flood), nobody (`open`), or a refusal with 503
    (`closed`), for limits that must hold whatever happens."""
