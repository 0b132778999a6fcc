"""Answers COUNT times (0 is allowed), DELAY_MS apart, with the index of each answer from 0.

The answer with index ERROR_AT is an error instead, and ends the request.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def number(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else int(tensor.as_numpy().item())


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            plan = (
                number(request, "COUNT", 0),
                number(request, "DELAY_MS", 0) / 1000,
                number(request, "ERROR_AT", -1),
            )
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(sender, *plan), daemon=True).start()

    def answer(self, sender, count, delay_s, error_at):
        for index in range(count):
            if index:
                time.sleep(delay_s)
            if sender.is_cancelled():
                break
            if index == error_at:
                error = pb_utils.TritonError(f"asked to fail at response {index}")
                sender.send(pb_utils.InferenceResponse(error=error))
                break
            tensor = pb_utils.Tensor("INDEX", np.array([index], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=FINAL)
