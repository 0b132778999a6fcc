"""The models of the scripted Triton: their configuration, their states, and how they misbehave."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2

Failure = tuple[grpc.StatusCode, str]


def model_config(
    name: str,
    inputs: Iterable[tuple[str, str, list[int]]] = (("IN", "FP32", [-1]),),
    outputs: Iterable[tuple[str, str, list[int]]] = (("OUT", "FP32", [-1]),),
    **fields: Any,
) -> Any:
    """Build a ModelConfig from (name, wire datatype, dims) triples and further fields by name."""

    def tensors(kind: Any, specs: Iterable[tuple[str, str, list[int]]]) -> list[Any]:
        return [kind(name=n, data_type=_config_type(d), dims=dims) for n, d, dims in specs]

    return model_config_pb2.ModelConfig(
        name=name,
        backend="python",
        input=tensors(model_config_pb2.ModelInput, inputs),
        output=tensors(model_config_pb2.ModelOutput, outputs),
        **fields,
    )


def _config_type(datatype: str) -> Any:
    return model_config_pb2.DataType.Value("TYPE_" + datatype.replace("BYTES", "STRING"))


def wire_type(data_type: Any) -> str:
    name: str = model_config_pb2.DataType.Name(data_type)
    return name.removeprefix("TYPE_").replace("STRING", "BYTES")


@dataclass
class FakeModel:
    """One model and how it behaves; every field may be changed while the server runs."""

    config: Any
    states: dict[str, str] = field(default_factory=lambda: {"1": "READY"})
    reasons: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    error: Failure | None = None
    drop: bool = False
    """Reset the connection that an inference request came on, after the delay."""
    reply: Callable[[Any], Any] | None = None
    """Makes the ModelInferResponse from the ModelInferRequest, instead of the echo."""
    executions: Counter[str] = field(default_factory=Counter)
    """Requests answered without an error, by version."""
    compute_s: float = 0.0
    """What its statistics say each of them took."""
    gate: asyncio.Event | None = None

    def hang(self) -> None:
        """Keep inference requests waiting until `release`."""
        self.gate = asyncio.Event()

    def release(self) -> None:
        """Let the waiting requests, and all later ones, go on."""
        if self.gate is not None:
            self.gate.set()

    def ready_versions(self) -> list[str]:
        """List the versions at READY, the highest last."""
        return sorted((v for v, state in self.states.items() if state == "READY"), key=int)

    def statistics(self, version: str) -> Any:
        """Return what is counted of a version."""
        count = self.executions[version]
        compute = service_pb2.StatisticDuration(count=count, ns=round(count * self.compute_s * 1e9))
        batch = service_pb2.InferBatchStatistics(batch_size=1, compute_infer=compute)
        return service_pb2.ModelStatistics(
            name=self.config.name,
            version=version,
            inference_count=count,
            execution_count=count,
            batch_stats=[batch] if self.compute_s else [],
        )

    def choose(self, version: str) -> str | Failure:
        """Choose the version that serves a request, or say like Triton why none does."""
        ready = self.ready_versions()
        unknown = f"Request for unknown model: '{self.config.name}'"
        if not version:
            missing = (grpc.StatusCode.NOT_FOUND, f"{unknown} has no available versions")
            return ready[-1] if ready else missing
        if version not in self.states:
            return grpc.StatusCode.NOT_FOUND, f"{unknown} version {version} is not found"
        if version not in ready:
            text = f"{unknown} version {version} is not at ready state"
            return grpc.StatusCode.UNAVAILABLE, text
        return version

    def echo(self, request: Any) -> Any:
        """Answer with the inputs, named and typed like the outputs of the configuration."""
        outputs = [
            service_pb2.ModelInferResponse.InferOutputTensor(
                name=output.name, datatype=wire_type(output.data_type), shape=given.shape
            )
            for given, output in zip(request.inputs, self.config.output, strict=False)
        ]
        raw = request.raw_input_contents[: len(outputs)]
        return service_pb2.ModelInferResponse(outputs=outputs, raw_output_contents=raw)
