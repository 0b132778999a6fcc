"""Priority classes: how important requests are, compared with others.

Decides what may be said about the classes, and about who may have which. The rules between keys are
in `config.priority_checks`.
"""

from typing import Annotated, Literal

from pydantic import Field, Strict

from config.fields import Name, Seconds, Section

BUILT_IN = ("critical", "standard", "sheddable")
"""The classes there are when none are written; STANDARD is that of callers without a word."""
STANDARD = "standard"
MAX_LEVEL = 4_294_967_295


ClassName = Name
"""What callers, metrics and operators know a class by."""
PriorityLevel = Annotated[int, Field(ge=1, le=MAX_LEVEL)]
"""One of a model's `priority_levels`; 1 is served first."""


class PriorityClass(Section):
    """One class."""

    name: ClassName
    """Its name, as callers write it into the header `Triton-Gateway-Class`."""
    ceiling: float | None = Field(None, gt=0, le=1)
    """Share of a model's places and queue in the gateway, above 0 and up to 1, at which requests of
    the class are held back, so that more important ones still find room. Unset, evenly from 1.0
    for the most important class to 0.7 for the last."""
    queue_timeout_s: Seconds | None = None
    """Longest wait in a model's queue on its server, in seconds: sent as Triton's `timeout`, unless
    the request asks for less. Counts only for models with `allow_timeout_override` and a longer
    `default_timeout_microseconds`. Unset, as long as the model lets them."""


Classes = Annotated[tuple[PriorityClass, ...], Strict(False), Field(max_length=100)]


class Priority(Section):
    """How important requests are."""

    mode: Literal["enforce", "observe"] = "enforce"
    """`observe` lowers and refuses nothing, and counts for each tenant what it would have: for
    trying out who asks for what (`triton_gateway_priority_objections_total`)."""
    classes: Classes = ()
    """The classes, the most important first. Unset, `critical`, `standard` and `sheddable`, with
    ceilings of 1.0, 0.9 and 0.7."""
    default: ClassName = STANDARD
    """The class of callers of whom nothing is written. `standard` unless there is none."""


class MayRank(Section):
    """What may be said of the importance of somebody's requests."""

    priority_class: ClassName | None = None
    """The class of requests that ask for none. Unset, what the tenant's tier says, or else
    `priority.default`."""
    max_priority_class: ClassName | None = None
    """The most important class that requests may ask for, by `Triton-Gateway-Class` or by Triton's
    parameter `priority`; those that ask for more get this one. Unset, what the tenant's tier says,
    or else the class they have without asking."""
