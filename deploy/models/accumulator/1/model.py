"""Keeps a running sum for each sequence and answers with it.

A sequence that ends without END leaves one number behind until its id is used again.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


def number(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().item())


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        sequence = number(request, "CORRID")
        before = 0 if number(request, "START") else self.sums.get(sequence, 0)
        total = before + number(request, "INPUT")
        self.sums[sequence] = total
        if number(request, "END"):
            del self.sums[sequence]
        output = pb_utils.Tensor("OUTPUT", np.array([[total]], dtype=np.int32))
        return pb_utils.InferenceResponse([output])
