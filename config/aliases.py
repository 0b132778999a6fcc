"""Aliases: names of routes that stand for weighted versions of models.

Decides what may be said about one. Which models exist is known only at run time.
"""

from typing import Annotated, Literal

from pydantic import Field, Strict

from config.fields import HeaderName, ModelName, Section


class Arm(Section):
    """One way a request for the alias may take."""

    model: ModelName
    """The model that is asked. Always a model, never another alias."""
    version: int | None = Field(None, ge=1)
    """Its version. Unset, the model's default version."""
    weight: float = Field(ge=0, allow_inf_nan=False)
    """Share of the requests, relative to the other arms' weights. 0 gets none, not even when the
    other arms fail."""


class Alias(Section):
    """One route name that callers use like a model's name."""

    arms: Annotated[tuple[Arm, ...], Strict(False), Field(min_length=1)]
    """The versions of models behind the name. The heaviest answers for metadata, configuration,
    readiness and statistics."""
    sticky: Literal["nothing", "tenant", "header"] = "nothing"
    """What sends the same caller to the same arm: its tenant, a header, or nothing, the default:
    each request takes its chance. Changing weights moves only as many callers as it has to."""
    header: HeaderName | None = None
    """The header that `sticky: header` looks at, such as `X-User-Id`. A request without it takes
    its chance."""
    salt: str = ""
    """Mixed into what is stuck to. Aliases are told apart by their names already; change it to draw
    the callers of an arm anew."""
