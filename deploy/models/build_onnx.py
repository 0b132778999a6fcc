"""Write the sample ONNX files of this repository, byte for byte the same on every run.

    python deploy/models/build_onnx.py [TARGET]

Run by hand after a change here, and by a test that compares the result with the committed files.
The networks are tiny and their weights random: they are there for their signatures.
"""

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # what onnxruntime 1.14 and later read


def simple(seed: int) -> ModelProto:
    """Build a linear layer: `input__0` FP32 [batch, 10] to `output__0` FP32 [batch, 3]."""
    nodes = [helper.make_node("Gemm", ["input__0", "weight", "bias"], ["output__0"])]
    return _model(nodes, ("input__0", [10]), ("output__0", [3]), _linear(seed, 10, 3))


def resnet50_stand_in(seed: int) -> ModelProto:
    """Build ResNet-50's signature: `images` FP32 [batch, 3, 224, 224] to `logits` [batch, 1000].

    The mean of each colour and one linear layer, so that an answer costs well under a millisecond.
    """
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"]),
    ]
    return _model(nodes, ("images", [3, 224, 224]), ("logits", [1000]), _linear(seed, 3, 1000))


def _linear(seed: int, width_in: int, width_out: int) -> list[TensorProto]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((width_in, width_out)).astype(np.float32)
    bias = rng.standard_normal(width_out).astype(np.float32)
    return [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]


def _model(nodes, source, target, weights) -> ModelProto:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
        for name, dims in (source, target)
    ]
    graph = helper.make_graph(nodes, "sample", values[:1], values[1:], initializer=weights)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        graph, producer_name="triton-gateway", ir_version=IR_VERSION, opset_imports=opsets
    )
    checker.check_model(model)
    return model


def main(target: Path) -> None:
    """Write every file below `target`, in the layout of a Triton model repository."""
    models = {
        "simple_onnx/1": simple(seed=1),
        "simple_onnx/2": simple(seed=2),
        "resnet50_onnx/1": resnet50_stand_in(seed=50),
    }
    for folder, model in models.items():
        (target / folder).mkdir(parents=True, exist_ok=True)
        path = target / folder / "model.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
