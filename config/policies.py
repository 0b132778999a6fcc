"""How requests are treated: deadlines, the watch over the fleet, the choice of a server, models.

Also what is logged and how the gateway stops. Decides what may be said about these. Carries none
of it out.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from config.fields import (
    Auto,
    Capacity,
    FileName,
    Seconds,
    SecondsOrZero,
    Section,
    ServerName,
    ServerPatterns,
    Text,
)
from config.priorities import ClassName, PriorityLevel

Policy = Literal["least_request", "peak_ewma", "round_robin"]


class Deadlines(Section):
    """How long a request may take.

    For a stream (`generate_stream`) `default_s`, `max_s` and `models.*.deadline_s` bound the time
    to its first event; a client's own limit (`X-Request-Timeout-Ms`) bounds all of it."""

    default_s: Seconds = 60.0
    """Time a request may take when neither it nor its model says otherwise, in seconds. A minute
    covers nearly every model and still ends calls that hang."""
    max_s: Seconds = 600.0
    """Longest time a request may ask for and a model may be given, in seconds. Ten minutes leave
    room for slow generation."""
    stream_idle_s: Seconds = 60.0
    """Longest wait for the next event of a stream, in seconds, at most `stream_max_s`. A minute is
    far longer than a model pauses between two tokens, and ends streams that hang."""
    stream_max_s: Seconds = 3600.0
    """Longest time a whole stream may take, in seconds. An hour covers any generation and ends
    models that never stop."""


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


class Balancing(Section):
    """How a request finds its server among those that have the model ready."""

    policy: Policy = "least_request"
    """`least_request`, the default, takes of two random servers the one with less work for its
    capacity and needs no history. `peak_ewma` also weighs how slowly they answered of late, for
    servers of unlike speed. `round_robin` takes all in turn, by capacity, whatever their work."""
    zone: Text | None = None
    """The gateway's own zone, as in `servers[].zone`. Servers there are preferred; others help
    when much of the zone's capacity is out or its servers are far busier. Unset, zones make no
    difference."""
    slow_start_s: SecondsOrZero = 30.0
    """Time over which a server grows from a tenth to its full share after it became ready for a
    version or healthy again, in seconds. Half a minute, because first requests are often slow.
    0 gives the full share at once."""


class Breaker(Section):
    """When a server that answers badly gets no more requests, and how it comes back."""

    consecutive_failures: int = Field(5, ge=1)
    """Failures in a row after which a server is left out: for the version that failed, or for all
    of them when its connection did. Five forgive a bad moment."""
    min_success_rate: float = Field(0.8, gt=0, le=1)
    """Share of successes over about 30 s, above 0 and up to 1, below which a server is left out
    too. A request that ran into a deadline its caller did not choose is half a failure. 0.8
    forgives a model that fails on some inputs."""
    min_requests: int = Field(20, ge=1)
    """Requests within those 30 s before the success rate counts. Twenty, so that it is no
    chance."""
    open_min_s: Seconds = 5.0
    """Time a server is left out the first time, in seconds; each further time doubles it. Up to
    half is taken off at random, so that gateways do not return together. Then single requests try
    the server, and three successes bring it back. Short, since most faults are."""
    open_max_s: Seconds = 120.0
    """Bound of the doubling, in seconds. Two minutes spare a broken server and still find a
    repaired one soon."""
    max_ejected_share: float = Field(0.5, ge=0, le=1)
    """Share of the servers that may be left out together, 0 to 1. One always may, the last one
    never. Half, because what most servers fail at is the model's fault, not theirs."""


class Retries(Section):
    """When a failed request is sent to another server."""

    max_attempts: int = Field(3, ge=1, le=10)
    """Attempts for one request, the first included. What is known not to have run is sent again
    until they are used up; what may have run at most once more, and only if the model allows it
    (`models.*.idempotent`). Three get past two bad servers; 1 means no retries."""
    budget: float = Field(0.1, ge=0, le=1)
    """Retries of what may have run, as a share of the model's requests over about 10 s, 0 to 1. A
    tenth, so that a failing fleet is not hit twice as hard."""
    min_per_s: float = Field(1.0, ge=0)
    """Such retries a second that each model has besides. One, so that a model with few requests
    has any."""


class Hedging(Section):
    """A second request to another server when the first one is slow; the first answer counts."""

    after_s: Seconds
    """Time the first server has before a second one is asked, in seconds, at most the model's
    deadline. What 95 to 99 of 100 answers need is a good value."""
    max_share: float = Field(0.02, gt=0, le=0.5)
    """Second requests as a share of the model's requests, above 0 and up to 0.5. Small, so that
    a slow fleet does not get twice the work."""


class ModelPolicy(Section):
    """What is special about one model."""

    deadline_s: Seconds | None = None
    """Time a request to this model may take when it does not say, in seconds, at most
    `deadlines.max_s`. Unset, `deadlines.default_s` counts."""
    default_version: int | None = Field(None, ge=1)
    """Version used when a request names none. Unset, the highest one that is ready on enough
    servers (`fleet.default_version_quorum`)."""
    idempotent: Auto = "auto"
    """Whether a request that may have run can run once more on another server. `auto`, the default,
    and `true`: yes, unless it belongs to a sequence. `false`: never, for models with side
    effects."""
    policy: Policy | None = None
    """How a server is chosen for this model. Unset, `balancing.policy` counts."""
    capacity: Mapping[ServerName, Capacity] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    """Capacity of single servers for this model: server name to share, above 0. Empty by default:
    `servers[].capacity` counts for all that are not listed."""
    concurrency: int | None = Field(None, ge=1, le=1_000_000)
    """Batch rows of the model in flight at a time on each server (requests, if it does not batch).
    Each gateway counts its own. Unset, admission finds out what is good for each server; needs
    `admission.mode` `observe` or `enforce`."""
    pool: Text | None = None
    """Serve the model from the servers of this pool only (`servers[].pool`). Unset, from all
    servers."""
    placement: ServerPatterns | None = None
    """The servers that hold the model, as names or shell patterns (`*`, `?`, `[...]`): where it is
    loaded and unloaded when a command names no servers. Unset, a command must name them. It says
    nothing about where requests go."""
    priority_levels: Mapping[ClassName, PriorityLevel] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    """What each priority class means at this model: name of the class to one of the model's own
    `priority_levels`, 1 being served first. All classes, or none: then the first class is level 1,
    the last one the model's last, and the others lie evenly between. For an ensemble, which has no
    levels, it is what its steps are told."""
    compatible: bool = False
    """Use servers as well that report another signature (inputs, outputs, batching) for a version
    than most do. Off by default: what differs is likely another model of the same name."""
    hedging: Hedging | None = None
    """Ask a second server when the first is slow. Unset, only one is asked. Never done where the
    slow call could not be cancelled safely (`servers[].cancel_upstream`), nor for requests that
    need the state of one server; refused with `idempotent: false`."""


class Steering(Section):
    """What operators decide by hand while the gateway runs: cordoned servers, blocked models, and
    what is switched off for a while."""

    state_file: FileName | None = None
    """File that keeps these decisions over a restart. It is written by the gateway, so its folder
    must exist and be writable. Unset, they are forgotten at a restart."""


class Reload(Section):
    """How a changed configuration is taken up while the gateway runs."""

    watch: bool = True
    """Look after the files of the configuration, and those it names (secrets, certificates, hashes
    of keys), and take up what changed there. `false` leaves it to SIGHUP and to
    `triton-gateway reload`. On by default, since a mounted folder is replaced without a word to the
    gateway."""
    interval_s: Seconds = 2.0
    """Time between two looks at the files, in seconds. A change is taken up when it has stood
    still from one look to the next, so 2 s make it two to four."""
    first_probe_s: SecondsOrZero = 10.0
    """Longest wait for the first answers of new servers, in seconds, before a configuration comes
    into force without them. Ten cover a server that is slow to list its models; nobody waits for
    servers that are not new."""


class Request(Section):
    """How request bodies are read."""

    strict_integers: bool = True
    """Refuse integers outside the range of their datatype with 400. `false` lets them wrap round
    silently, as Triton does; the default finds the mistake instead."""
    max_batch_rows: int = Field(65_536, ge=1)
    """Most rows of one request to a model that batches: the first dimension of its inputs. More is
    refused with 400. Far beyond the `max_batch_size` of any model, which Triton itself enforces;
    lower it where one caller's rows hold up everybody's."""
    max_tensors: int = Field(4_096, ge=1, le=4_096)
    """Most inputs, and most outputs, that one request may name. More is refused with 400. Far more
    than any model has, since each costs more time than bytes."""


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
