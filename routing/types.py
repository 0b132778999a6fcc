"""The nouns routing decides about. Immutable, and shared by every part of the gateway."""

from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True)
class Server:
    """One configured server, as far as routing cares.

    `capacity` is its share of the work relative to the others: twice the capacity takes twice
    the rows in flight before it counts as equally loaded.
    """

    name: str
    capacity: float = 1.0
    zone: str | None = None


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
    requests; `decoupled` ones may answer any number of times.
    """

    model: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    sequence: bool = False
