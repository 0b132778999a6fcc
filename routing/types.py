"""The nouns routing decides about. Immutable, and shared by every part of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class State(Enum):
    """Triton's model states, plus the ones only a fleet can be in (protocol: RepositoryIndex)."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"
    UNKNOWN = "UNKNOWN"


class Replay(Enum):
    """Whether a failed request may be sent again to another server."""

    SAFE = "safe"  # known not to have run
    UNSURE = "unsure"  # it may have run
    NEVER = "never"  # it would fail the same way again, or must not run twice


class Blame(Enum):
    """Whom the outcome of an attempt speaks against."""

    NOBODY = "nobody"  # the server did its part: an answer, or a request that was wrong
    UNTOLD = "untold"  # it was abandoned, or the server was known not to have it ready
    OVERLOAD = "overload"  # the server is full: load, not a fault
    SLOW = "slow"  # no answer before the deadline
    VERSION = "version"  # this version on this server failed
    FATAL = "fatal"  # ... in a way that will not pass by itself (dead stub, sick GPU)
    SERVER = "server"  # the connection to the server failed


@dataclass(frozen=True, slots=True)
class Server:
    """One configured server, as far as routing cares.

    `capacity` is its share of the work relative to the others: twice the capacity takes twice
    the rows in flight before it counts as equally loaded; `model_capacity` overrides it for single
    models. `serve` are shell patterns of the model names it is used for.
    """

    name: str
    capacity: float = 1.0
    zone: str | None = None
    pool: str | None = None
    serve: tuple[str, ...] = ("*",)
    model_capacity: Mapping[str, float] = field(default_factory=dict)

    def capacity_for(self, model: str) -> float:
        """Return its share of the work of one model."""
        return self.model_capacity.get(model, self.capacity)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model's configuration.

    `dims` are the configured dims: without the batch dimension, -1 for a variable one.
    `datatype` is the wire name (`FP32`, `BYTES`, ...).
    """

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The signature of one model version, from its ModelConfig.

    `max_batch_size` 0 means the model does not batch. `sequence` models keep state between
    requests; `decoupled` ones may answer any number of times. `scheduling` names the scheduler.
    """

    model: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    sequence: bool = False
    scheduling: str = ""

    def differs_in(self, other: "ModelSpec") -> list[str]:
        """Return the parts of the signature in which two specs of one version differ."""
        parts = ("inputs", "outputs", "max_batch_size", "decoupled", "scheduling")
        return [part for part in parts if getattr(self, part) != getattr(other, part)]


class ModelVersion(NamedTuple):
    """The key of one version of one model."""

    model: str
    version: int


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model version on one server. `reason` explains every state but READY."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """What an operator laid down for one model.

    `pool` limits it to the servers of that pool. With `compatible` servers whose signature differs
    from the majority's are used all the same.
    """

    default_version: int | None = None
    pool: str | None = None
    compatible: bool = False
