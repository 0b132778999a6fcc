"""How requests are treated: deadlines, models, the watch over the fleet, logs and shutdown.

Decides what may be said about these. Carries none of it out.
"""

from typing import Annotated, Literal

from pydantic import Field

from config.fields import Auto, Seconds, SecondsOrZero, Section


class Deadlines(Section):
    """How long a request may take."""

    default_s: Seconds = 60.0
    """Time a request may take when neither it nor its model says otherwise, in seconds. A minute
    covers nearly every model and still ends calls that hang."""
    max_s: Seconds = 600.0
    """Longest time a request may ask for and a model may be given, in seconds. Ten minutes leave
    room for slow generation."""


class Fleet(Section):
    """How the gateway learns what each server holds and whether it answers."""

    statistics_interval_s: Seconds = 2.0
    """Time between two statistics calls to a server, in seconds. They show its queues and that it
    lives; Triton answers such calls on one thread, so ask gently."""
    statistics_timeout_s: Seconds = 2.0
    """Longest wait for a statistics answer, in seconds."""
    index_interval_s: Seconds = 30.0
    """Time between two readings of a server's list of models, in seconds. Models come and go
    rarely, and the list is costly to make on a large repository."""
    index_timeout_s: Seconds = 20.0
    """Longest wait for the list of models, in seconds. Long, because a large or remote repository
    is slow to list."""
    silent_probes: int = Field(3, ge=1, le=100)
    """Calls in a row a server may leave unanswered before it counts as silent. Three forgive a
    pause; with the intervals above a dead server is noticed within about ten seconds."""
    default_version_quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the servers holding a model on which a version must be ready before it becomes the
    default version, above 0 and up to 1. Half, so that the first server with a new version does
    not take all the traffic."""
    recently_ready_s: Seconds = 300.0
    """How long a model that was ready is remembered, in seconds. Within it a request is answered
    503 (come back later), after it 404. Five minutes cover a restart with large models."""


class ModelPolicy(Section):
    """What is special about one model."""

    deadline_s: Seconds | None = None
    """Time a request to this model may take when it does not say, in seconds, at most
    `deadlines.max_s`. Unset, `deadlines.default_s` counts."""
    default_version: int | None = Field(None, ge=1)
    """Version used when a request names none. Unset, the highest one that is ready on enough
    servers (`fleet.default_version_quorum`)."""
    idempotent: Auto = "auto"
    """Whether a request that may have run can run once more on another server. `auto`, the
    default: yes for unary, stateless models. `false` for models with side effects, `true` for
    those known to have none."""


class Request(Section):
    """How request bodies are read."""

    strict_integers: bool = True
    """Refuse integers outside the range of their datatype with 400. `false` lets them wrap round
    silently, as Triton does; the default finds the mistake instead."""


class Logging(Section):
    """What is written to standard error."""

    format: Literal["json", "console"] = "json"
    """`json` writes one object a line, for machines; `console` writes lines for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important events written. `info` shows every change of state and no inner detail."""
    requests: Literal["all", "errors", "none"] = "all"
    """Which requests get their line: all of them, only failed ones, or none."""
    sample: float = Field(1.0, ge=0, le=1)
    """Share of the successful requests that get their line, 0 to 1. Failed ones always do, unless
    `requests` is `none`. 1.0 misses nothing; lower it when the log grows too fast."""


class Shutdown(Section):
    """How the gateway stops."""

    drain_delay_s: SecondsOrZero = 5.0
    """Time between reporting not ready and closing the listeners, in seconds, still serving. Long
    enough for load balancers to notice; 0 when there is none."""
    grace_s: SecondsOrZero = 30.0
    """Time the requests in flight then have to end, in seconds. As long as Kubernetes waits by
    default, so set its `terminationGracePeriodSeconds` to the sum of the two or more."""
