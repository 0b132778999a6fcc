"""What models look like: signature, metadata and configuration, as their servers report them.

`ModelBook` keeps the descriptions the prober fetched, so that the metadata and config routes cost
no server a call. Equal texts are kept once: a fleet mostly holds the same models many times.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.control import call_method
from gateway.upstream.proto_json import to_json_object
from gateway.upstream.transport import Upstream
from routing.admission.limits import Shape
from routing.fleet import ModelVersion
from routing.queueing import NO_QUEUES, Queueing, QueuePolicy
from routing.types import ModelSpec, TensorSpec

# Extensions of Triton that work through the gateway; a route that is missing is not announced.
OFFERED_EXTENSIONS = (
    "sequence",
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


_GPU = model_config_pb2.ModelInstanceGroup.KIND_GPU
DEFAULT_SEQUENCE_IDLE_S = 1.0
"""What Triton takes for `max_sequence_idle_microseconds` when it is unset or 0 (model_config)."""


@dataclass(frozen=True, slots=True)
class Description:
    """One version on one server: its signature, and the JSON of its metadata and config.

    `sequence_idle_s` is None for models that are not scheduled by sequence. `queueing` is what of
    it concerns priorities: no part of the signature, since no caller's request depends on it.
    `shape` is how much of it can be under way at a time.
    """

    spec: ModelSpec
    metadata: Mapping[str, Any]
    config: bytes
    sequence_idle_s: float | None = None
    queueing: Queueing = NO_QUEUES
    shape: Shape = field(default_factory=Shape)


async def describe(upstream: Upstream, key: ModelVersion, *, timeout_s: float) -> Description:
    """Ask the server for one version's configuration and metadata. Raises Fault."""
    name, version = key.model, str(key.version)
    config, metadata = await asyncio.gather(
        call_method(
            upstream,
            "ModelConfig",
            pb.ModelConfigRequest(name=name, version=version),
            pb.ModelConfigResponse,
            timeout_s=timeout_s,
        ),
        call_method(
            upstream,
            "ModelMetadata",
            pb.ModelMetadataRequest(name=name, version=version),
            pb.ModelMetadataResponse,
            timeout_s=timeout_s,
        ),
    )
    return Description(
        spec=model_spec(key, config.config),
        metadata=to_json_object(metadata),
        config=orjson.dumps(to_json_object(config.config)),
        shape=shape_of(config.config),
        sequence_idle_s=sequence_idle_s(config.config),
        queueing=queueing_of(config.config),
    )


def model_spec(key: ModelVersion, config: model_config_pb2.ModelConfig) -> ModelSpec:
    """Return the signature of a version out of its configuration."""
    return ModelSpec(
        model=key.model,
        version=key.version,
        inputs=tuple(_tensor(tensor) for tensor in config.input),
        outputs=tuple(_tensor(tensor) for tensor in config.output),
        max_batch_size=config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
        sequence=config.HasField("sequence_batching"),
        scheduling=config.WhichOneof("scheduling_choice") or "",
    )


def queueing_of(config: model_config_pb2.ModelConfig) -> Queueing:
    """Return what the model's scheduler makes of priorities and timeouts."""
    batching = config.dynamic_batching
    return Queueing(
        scheduler=config.WhichOneof("scheduling_choice") or "",
        levels=batching.priority_levels,
        usual=_queue_policy(batching.default_queue_policy),
        by_level={
            level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def _queue_policy(policy: model_config_pb2.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(policy.default_timeout_microseconds, policy.allow_timeout_override)


def shape_of(config: model_config_pb2.ModelConfig) -> Shape:
    """Return how much of a version can be under way at a time.

    A group of instances on GPUs is there once on each of them (protocol: ModelInstanceGroup). Where
    none are told, as for ensembles, one is assumed.
    """
    instances = sum(
        group.count * (max(1, len(group.gpus)) if group.kind == _GPU else 1)
        for group in config.instance_group
    )
    return Shape(
        instances=max(1, instances),
        max_batch=config.max_batch_size,
        batch_delay_s=config.dynamic_batching.max_queue_delay_microseconds / 1e6,
        decoupled=config.model_transaction_policy.decoupled,
    )


def sequence_idle_s(config: model_config_pb2.ModelConfig) -> float | None:
    """Return how long a silent sequence is kept, None for models not scheduled by sequence."""
    if not config.HasField("sequence_batching"):
        return None
    idle_us = config.sequence_batching.max_sequence_idle_microseconds
    return idle_us / 1e6 if idle_us else DEFAULT_SEQUENCE_IDLE_S


def _tensor(tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput) -> TensorSpec:
    name = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return TensorSpec(
        name=tensor.name,
        datatype="BYTES" if name == "STRING" else name,
        dims=tuple(tensor.dims),
    )


class ModelBook:
    """The descriptions of everything the fleet has ready; see `gateway.ports.Descriptions`.

    `changes` counts how often one became another, for whoever draws conclusions from them.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._pages: dict[tuple[str, ModelVersion], Description] = {}
        self._kept: dict[bytes, Description] = {}
        self._extensions: dict[str, frozenset[str]] = {}

    def learn(self, server: str, key: ModelVersion, description: Description) -> None:
        """Keep what `server` says of this version."""
        text = orjson.dumps(description.metadata) + description.config
        page = self._kept.setdefault(text, description)
        self.changes += self._pages.get((server, key)) is not page
        self._pages[server, key] = page

    def take_over(self, before: "ModelBook", kept: Collection[str]) -> None:
        """Take over what `before` has of the `kept` servers."""
        for (server, key), page in before._pages.items():
            if server in kept:
                self.learn(server, key, page)
        self._extensions |= {n: found for n, found in before._extensions.items() if n in kept}

    def keep_only(self, server: str, ready: frozenset[ModelVersion]) -> None:
        """Forget the versions the server does not have ready any more."""
        gone = [at for at in self._pages if at[0] == server and at[1] not in ready]
        for at in gone:
            del self._pages[at]
        if gone:
            used = {id(page) for page in self._pages.values()}
            self._kept = {text: page for text, page in self._kept.items() if id(page) in used}

    def forget(self, server: str) -> None:
        """Forget everything a server has said."""
        self.keep_only(server, frozenset())
        self._extensions.pop(server, None)

    def learn_extensions(self, server: str, extensions: Sequence[str]) -> None:
        """Keep the protocol extensions the server announces."""
        self._extensions[server] = frozenset(extensions)

    def metadata(self, server: str, key: ModelVersion) -> Mapping[str, Any] | None:
        """Return the metadata object as `server` describes it."""
        page = self._pages.get((server, key))
        return page.metadata if page else None

    def config(self, server: str, key: ModelVersion) -> bytes | None:
        """Return the configuration as `server` describes it."""
        page = self._pages.get((server, key))
        return page.config if page else None

    def sequence_idle_s(self, server: str, key: ModelVersion) -> float | None:
        """Return how long `server` keeps a silent sequence of this version."""
        page = self._pages.get((server, key))
        return page.sequence_idle_s if page else None

    def queueing(self, server: str, key: ModelVersion) -> Queueing | None:
        """Return what this version's scheduler on `server` makes of priorities and timeouts."""
        page = self._pages.get((server, key))
        return page.queueing if page else None

    def shape(self, server: str, key: ModelVersion) -> Shape | None:
        """Return how much of this version `server` can have under way; None while not known."""
        page = self._pages.get((server, key))
        return page.shape if page else None

    def extensions(self) -> Sequence[str]:
        """Return what every server announces and the gateway offers."""
        common = frozenset.intersection(*self._extensions.values()) if self._extensions else ()
        return [name for name in OFFERED_EXTENSIONS if name in common]
