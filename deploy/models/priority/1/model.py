"""Works for WORK_MS milliseconds and says the how-manieth execution of this server it was (from 1)."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        work_ms = pb_utils.get_input_tensor_by_name(request, "WORK_MS").as_numpy()
        time.sleep(int(work_ms.item()) / 1000)
        self.executions += 1
        order = np.array([[self.executions]], dtype=np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ORDER", order)])
