"""Runs the model.onnx beside this file with onnxruntime, one request after another.

Stands in for Triton's own ONNX Runtime back end, which the PyPI wheel of the server lacks. Names
and datatypes come from the ONNX file, so every ONNX model here has this same file.
"""

from pathlib import Path

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(Path(__file__).with_name("model.onnx")),
            sess_options=options,
            providers=["CPUExecutionProvider"],
        )
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        feed = {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.inputs
        }
        arrays = self.session.run(self.outputs, feed)
        pairs = zip(self.outputs, arrays, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in pairs])
