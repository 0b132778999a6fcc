"""Admission: how much of each model servers are given at a time, and what waits for room there.

Decides what may be said about it. Limits of single models are in `config.policies.ModelPolicy`.
"""

from typing import Literal

from pydantic import Field

from config.fields import Seconds, Section


class Admission(Section):
    """Each server is given only as much of a model as it has use for at the moment, found out from
    how long requests wait inside it; the rest waits here, where the gateway knows who is important,
    whose turn it is and who has left. `models.*.concurrency` sets the limit of a model by hand."""

    mode: Literal["off", "observe", "enforce"] = "observe"
    """`observe`, the default, sends everything at once, and counts what `enforce` would let wait or
    refuse: look at it before you enforce it. `off` does not even count."""
    max_queued: int = Field(256, ge=1, le=1_000_000)
    """Requests to one model that may wait at a time. Each class of requests is held back at its own
    share of this. Beyond it a request is refused with 503, or another one that is less important or
    of a tenant with more in the queue. A few times what the servers take at once: longer queues
    only make for late answers. Several workers share it equally."""
    max_queued_per_tenant: int | None = Field(None, ge=1, le=1_000_000)
    """How many of these may be of one tenant; at most `max_queued`. Unset, half of it, so that none
    has the queue for itself. Callers that are not known are one tenant, `anonymous`."""
    max_queued_bytes: int = Field(268_435_456, ge=1)
    """Bytes of input tensors that may wait, of all models together; a request with more never
    waits. An eighth of what `api.max_inbound_bytes` lets in. Several workers share it equally."""
    max_wait_s: Seconds = 10.0
    """Longest time a request may wait, in seconds; then it is refused with 503. Its own deadline
    ends the wait earlier, as soon as it cannot be met any more. Ten seconds outlast a burst, and
    tell callers of a lasting overload in time."""
