"""The whole configuration: which sections there are.

Each section holds the rules of its own keys; the rules between keys are in `config.checks`.
Built by `config.loader`, read by wiring and the command line only.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PrivateAttr, Strict

from config.admission import Admission
from config.aliases import Alias
from config.auth import Auth
from config.control import ModelControl, ServerSettings
from config.discovery import Discovery
from config.fields import ModelName, Section, Source, Workers
from config.limits import Limit, LimitName
from config.listeners import Api, Ops
from config.policies import (
    Balancing,
    Breaker,
    Deadlines,
    Fleet,
    Logging,
    ModelPolicy,
    Reload,
    Request,
    Retries,
    Shutdown,
    Steering,
)
from config.priorities import Priority
from config.servers import Server, Upstream
from config.stores import Redis, Sequences
from config.tenants import Tenant, TenantName, Tier, TierName
from config.tree import Origin
from config.usage import Usage

# YAML has lists, the configuration tuples: that step alone is lax, the items are strict again.
Servers = Annotated[tuple[Server, ...], Strict(False)]
Sources = Annotated[tuple[Discovery, ...], Strict(False)]


class Config(Section):
    """Everything an operator may write. Only `servers` or `discovery` must be written."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["servers"]}, {"required": ["discovery"]}]}
    )

    servers: Servers = ()
    """The Triton servers that are always there. At least one, unless `discovery` finds them."""
    discovery: Sources = ()
    """Sources of servers that come and go while the gateway runs, each with exactly one of `dns`,
    `file` and `kubernetes`. A server that a source no longer names gets no new requests, and is
    forgotten when those it has are answered. None by default."""
    upstream: Upstream = Field(default_factory=Upstream)
    """How connections to the servers are kept; the same for all of them."""
    api: Api = Field(default_factory=Api)
    """The listener that applications call: the Open Inference Protocol over HTTP."""
    ops: Ops = Field(default_factory=Ops)
    """The listener for operators: health, metrics and the view of the fleet."""
    workers: Workers = 1
    """Worker processes that share the API's port, or `auto` for one a processor. One process is the
    leanest; more are for when it is busy on its processor all the time."""
    deadlines: Deadlines = Field(default_factory=Deadlines)
    """How long a request may take."""
    fleet: Fleet = Field(default_factory=Fleet)
    """How the gateway learns what each server holds and whether it answers."""
    balancing: Balancing = Field(default_factory=Balancing)
    """How a request finds its server among those that have the model ready."""
    breaker: Breaker = Field(default_factory=Breaker)
    """When a server that answers badly gets no more requests, and how it comes back."""
    retries: Retries = Field(default_factory=Retries)
    """When a failed request is sent to another server."""
    models: Mapping[ModelName, ModelPolicy] = Field(default_factory=dict)
    """What is special about single models, by name. Models that are not listed are served too."""
    aliases: Mapping[ModelName, Alias] = Field(default_factory=dict)
    """Names of routes, each for weighted versions of models, by name. A request that names a
    version as well means the model of that name instead."""
    auth: Auth = Field(default_factory=Auth)
    """Whether callers of the API must be known, and the tokens they may show."""
    tenants: Mapping[TenantName, Tenant] = Field(default_factory=dict)
    """Who calls, by name: how they are recognised and what they may use. `anonymous`, of those who
    show nothing, is there without being written, and may use every model. Nobody is asked as long
    as `auth.mode` is `off`."""
    tiers: Mapping[TierName, Tier] = Field(default_factory=dict)
    """What tenants have in common, by the name they refer to as their `tier`."""
    priority: Priority | None = None
    """How important requests are: classes, which tenants and tiers have, requests ask for, and
    models are told as their own priority levels. Unset, and with no word of classes elsewhere, all
    requests are alike unless they ask for a class or priority themselves, as everybody may."""
    limits: Mapping[LimitName, Limit] = Field(default_factory=dict)
    """Rate limits, by name. A request has to be within all that concern it; one that is not is
    answered 429 and counts nowhere."""
    admission: Admission = Field(default_factory=Admission)
    """How much each server is given at a time, and whose turn it is when that is reached."""
    sequences: Sequences = Field(default_factory=Sequences)
    """Requests that belong together and need the state in one server."""
    redis: Redis | None = None
    """What several gateways share. Unset, each one keeps it in its own memory: enough for a single
    gateway, except that open sequences are lost with a restart."""
    usage: Usage = Field(default_factory=Usage)
    """What each tenant uses of each model: requests, rows, bytes, errors and compute time, by
    month; see `triton-gateway usage`. With `redis` the months are those of all gateways."""
    model_control: ModelControl = Field(default_factory=ModelControl)
    """Loading and unloading models on the servers through the gateway."""
    server_settings: ServerSettings = Field(default_factory=ServerSettings)
    """The servers' trace and log settings, read and changed through the API."""
    steering: Steering = Field(default_factory=Steering)
    """What operators decide by hand while the gateway runs: cordoned servers, blocked models, and
    what is switched off for a while."""
    reload: Reload = Field(default_factory=Reload)
    """How a changed configuration is taken up while the gateway runs."""
    request: Request = Field(default_factory=Request)
    """How request bodies are read."""
    logging: Logging = Field(default_factory=Logging)
    """What is written to standard error."""
    shutdown: Shutdown = Field(default_factory=Shutdown)
    """How the gateway stops."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: Any, /) -> None:
        """Keep where each value was written, for what is found out only after loading."""
        if isinstance(context, Source):
            self._origin = context.origin

    @property
    def origin(self) -> Origin:
        """Where each value was written."""
        return self._origin
