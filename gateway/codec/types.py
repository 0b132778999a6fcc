"""The neutral data plane: what an inference call is between REST and gRPC.

The edge knows REST and upstream knows protobuf; nothing between them knows either. Tensor bytes
are little-endian, row-major, exactly as Triton lays them out (KServe v2 binary tensor data
extension); BYTES elements carry a 4-byte little-endian length each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Scalar = bool | int | float | str
"""A request or response parameter: what Triton's InferParameter can hold."""


@dataclass(slots=True)
class InputTensor:
    """One input. `raw` holds exactly the tensor's bytes, of any bytes-like type."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes | memoryview


@dataclass(slots=True)
class OutputRequest:
    """One output the caller named.

    `classification` is the number of classes wanted, 0 for the plain tensor. `binary` is how the
    caller wants it written; it never travels upstream.
    """

    name: str
    binary: bool = False
    classification: int = 0


@dataclass(slots=True)
class InferCall:
    """One inference request, ready to be sent to any server that holds the model.

    `version` is the version the gateway chose, as decimal text. `outputs` is empty when the caller
    wants all of them. `binary_default` says how outputs that are not listed are written. `metadata`
    is what of the caller's headers goes with the call.
    """

    model: str
    version: str
    inputs: list[InputTensor]
    id: str = ""
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    outputs: list[OutputRequest] = field(default_factory=list)
    binary_default: bool = False
    metadata: tuple[tuple[str, str], ...] = ()

    def wants_binary(self, output: str) -> bool:
        """Whether the output of this name goes into the binary tail."""
        for wanted in self.outputs:
            if wanted.name == output:
                return wanted.binary
        return self.binary_default

    def rows(self) -> int:
        """Return the number of batch rows, for models that batch: the first input's first dim."""
        shape = self.inputs[0].shape if self.inputs else ()
        return max(shape[0], 1) if shape else 1

    def is_sequence(self) -> bool:
        """Whether the request belongs to a sequence, whose state lives in one server."""
        return bool(self.parameters) and bool(self.parameters.get("sequence_id"))  # 0 is none


@dataclass(slots=True)
class OutputTensor:
    """One output as the server sent it, in the order the server sent it."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes


@dataclass(slots=True)
class InferReply:
    """One inference response."""

    model: str
    version: str
    outputs: list[OutputTensor]
    id: str = ""
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
