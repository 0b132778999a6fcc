"""Fixture models for the real tritonserver: `build` writes them into a repository folder.

One Python-backend model a name (see `MODELS`). They exist to be asked odd things, which the sample
models under deploy/models are not for. `executions` and `streams` read what the `sleep` and the
`stream` model have counted.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DATATYPES = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FP16": "FP16",
    "BF16": "BF16",
    "FP32": "FP32",
    "FP64": "FP64",
    "BYTES": "STRING",
}
"""Wire names of the datatypes, and what config.pbtxt calls them."""

BOOM_TEXT = 'quote " newline \n percent % letter ä'
"""What the `boom` model raises."""

CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
"""Triton's error codes; the `boom` model's CODE is an index into them."""


@dataclass(frozen=True)
class Model:
    """One model: tensors as `NAME:DATATYPE[dims]`, a trailing `?` for an optional input.

    `more` goes into its config as it is. `body` is the Python of `answer(self, request)` or, where
    it starts with `def`, all methods.
    """

    inputs: str
    outputs: str
    body: str
    max_batch_size: int = 0
    instances: int = 1
    versions: tuple[int, ...] = (1,)
    parameters: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    decoupled: bool = False
    more: str = ""


PRELUDE = f'''\
import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

BOOM_TEXT = {BOOM_TEXT!r}
CODES = {CODES!r}


def array(request, name):
    """Return the named input as an array, or None where an optional one was left out."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def reply(**outputs):
    tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
    return pb_utils.InferenceResponse(tensors)


def texts(*values):
    return np.array([str(value).encode() for value in values], dtype=np.object_)


class TritonPythonModel:
    def initialize(self, args):
        self.version = args["model_version"]
        parameters = json.loads(args["model_config"])["parameters"]
        self.parameters = {{key: value["string_value"] for key, value in parameters.items()}}
        self.prepare()

    def prepare(self):
        pass

    def count(self, what, log):
        """Append one line: appends of this size are atomic, so instances can share the file."""
        name = os.environ["TRITON_SERVER_ID"] + log
        with open(os.path.join(self.parameters["count_dir"], name), "a") as file:
            file.write(what + "\\n")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

'''

ECHO = "return reply(OUT=array(request, 'IN'))"

# The Python back end has no NumPy form of BF16; DLPack hands the memory on as it is.
ECHO_BF16 = """\
tensor = pb_utils.get_input_tensor_by_name(request, "IN")
output = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
return pb_utils.InferenceResponse([output])
"""

WHOAMI = "return reply(OUT=texts(os.environ['TRITON_SERVER_ID'], self.version, os.getpid()))"

SLEEP = """\
def prepare(self):
    self.family = pb_utils.MetricFamily(  # has to outlive its metrics
        name="fixture_sleeps", description="Sleeps begun", kind=pb_utils.MetricFamily.COUNTER
    )
    self.metric = self.family.Metric(labels={"model": "sleep"})

def answer(self, request):
    wanted = array(request, "MS")
    self.count("started", "")
    self.metric.increment(1)
    end = time.monotonic() + int(wanted.item()) / 1000
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        if left > 0.02 and request.is_cancelled():
            self.count("cancelled", "")
            error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse(error=error)
    self.count("finished", "")
    return reply(OUT=wanted)
"""

# Computes for MS milliseconds for each row of a batch.
SLEEP_ROWS = """\
wanted = array(request, "MS")
time.sleep(int(wanted.sum()) / 1000)
return reply(OUT=wanted)
"""

BOOM = """\
code = array(request, "CODE")
if code is None:
    raise ValueError(BOOM_TEXT)
code = getattr(pb_utils.TritonError, CODES[int(code.item())])
return pb_utils.InferenceResponse(error=pb_utils.TritonError(BOOM_TEXT, code))
"""

EMPTY_OUT = """\
return reply(
    EMPTY=np.zeros([0], np.float32),
    EMPTY_ROWS=np.zeros([2, 0], np.int32),
    EMPTY_TEXT=np.zeros([0], np.object_),
    FULL=np.array([1, 2, 3], np.float32),
)
"""

TWO_IN = """\
first, second = array(request, "INPUT0"), array(request, "INPUT1")
return reply(OUTPUT0=first + second, OUTPUT1=first - second)
"""

PARAMS = """\
seen = {
    "id": request.request_id(),
    "correlation_id": request.correlation_id(),
    "flags": request.flags(),
    "timeout": request.timeout(),
}
return reply(OUT=texts(request.parameters()), REQUEST=texts(json.dumps(seen)))
"""

# Answers COUNT times, DELAY_MS apart, with its index and SIZE floats; the answer ERROR_AT is an
# error, and the ones behind it come all the same.
STREAM = """\
def execute(self, requests):
    for request in requests:
        names = {"COUNT": 0, "DELAY_MS": 0, "ERROR_AT": -1, "SIZE": 0}
        given = {name: array(request, name) for name in names}
        plan = [names[name] if given[name] is None else int(given[name].item()) for name in names]
        sender = request.get_response_sender()
        threading.Thread(target=self.send, args=(sender, *plan), daemon=True).start()

def send(self, sender, count, delay_ms, error_at, size):
    self.count("started", ".streams")
    outcome = "finished"
    for index in range(count):
        time.sleep(delay_ms / 1000 if index else 0)
        if sender.is_cancelled():
            outcome = "cancelled"
            break
        if index == error_at:
            error = pb_utils.TritonError(f"asked to fail at response {index}")
            sender.send(pb_utils.InferenceResponse(error=error))
        else:
            outputs = {"INDEX": np.array([index], np.int32)}
            if size:
                outputs["PADDING"] = np.zeros([size], np.float32)
            sender.send(reply(**outputs))
    self.count(outcome, ".streams")
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Takes what Triton's own tests of its generate routes send: REPETITION answers with the prompt,
# DELAY seconds apart, empty with OUTPUT_0_DIM, and an error at the end with FAIL_LAST.
MOCK_LLM = """\
def execute(self, requests):
    for request in requests:
        wanted = json.loads(request.parameters())
        sender = request.get_response_sender()
        prompt = np.array([]) if wanted.get("OUTPUT_0_DIM") else array(request, "PROMPT")
        if array(request, "STREAM").item():
            self.send(sender, prompt, wanted)
        else:
            sender.send(reply(TEXT=prompt), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

def send(self, sender, prompt, wanted):
    for _ in range(wanted.get("REPETITION", 1)):
        time.sleep(wanted.get("DELAY", 0))
        if sender.is_cancelled():
            break
        sender.send(reply(TEXT=prompt))
    last = None
    if wanted.get("FAIL_LAST"):
        last = pb_utils.InferenceResponse(error=pb_utils.TritonError("An Error Occurred"))
    sender.send(last, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

# Tells the shape of each input it was given.
SHAPES = """\
shapes = {}
for name in ("ONE", "ANY", "ROWS", "DEEP", "FIXED", "NONE"):
    value = array(request, name)
    if value is not None:
        shapes[name] = list(value.shape)
return reply(OUT=texts(json.dumps(shapes)))
"""

SLOW_LOAD = """\
def prepare(self):
    time.sleep(float(self.parameters["load_s"]))

def answer(self, request):
    return reply(OUT=array(request, "IN"))
"""

MODELS = {
    f"echo_{datatype}": Model(f"IN:{datatype}[-1]", f"OUT:{datatype}[-1]", ECHO)
    for datatype in DATATYPES
} | {
    "echo_BF16": Model("IN:BF16[-1]", "OUT:BF16[-1]", ECHO_BF16),
    "whoami": Model("IN:INT32[-1]", "OUT:BYTES[3]", WHOAMI, versions=(1, 2, 10)),
    "sleep": Model("MS:INT32[1] PAYLOAD:FP32[-1]?", "OUT:INT32[1]", SLEEP, instances=4),
    "sleep_rows": Model("MS:INT32[1]", "OUT:INT32[1]", SLEEP_ROWS, max_batch_size=8, instances=2),
    "levels": Model(
        "MS:INT32[1]",
        "OUT:INT32[1]",
        "time.sleep(array(request, 'MS').item() / 1000)\nreturn reply(OUT=array(request, 'MS'))",
        max_batch_size=1,
        instances=16,
        more="dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    ),
    "boom": Model("IN:INT32[-1] CODE:INT32[1]?", "OUT:INT32[-1]", BOOM),
    "empty_out": Model(
        "IN:INT32[-1]",
        "EMPTY:FP32[-1] EMPTY_ROWS:INT32[-1,-1] EMPTY_TEXT:BYTES[-1] FULL:FP32[3]",
        EMPTY_OUT,
    ),
    "two_in": Model(
        "INPUT0:INT32[16] INPUT1:INT32[16]",
        "OUTPUT0:INT32[16] OUTPUT1:INT32[16]",
        TWO_IN,
        max_batch_size=8,
    ),
    "params": Model("IN:INT32[-1]", "OUT:BYTES[1] REQUEST:BYTES[1]", PARAMS),
    "slow_load": Model("IN:INT32[-1]", "OUT:INT32[-1]", SLOW_LOAD, parameters=(("load_s", "20"),)),
    "stream": Model(
        "COUNT:INT32[1] DELAY_MS:INT32[1]? ERROR_AT:INT32[1]? SIZE:INT32[1]?",
        "INDEX:INT32[1] PADDING:FP32[-1]",
        STREAM,
        decoupled=True,
    ),
    "mock_llm": Model(
        "PROMPT:BYTES[1,1] STREAM:BOOL[1,1]", "TEXT:BYTES[-1,-1]", MOCK_LLM, decoupled=True
    ),
    "shapes": Model(
        "ONE:INT32[1]? ANY:INT32[-1]? ROWS:INT32[-1,2]? DEEP:INT32[-1,-1,2]? FIXED:INT32[2,2]? "
        "NONE:INT32[-1,3,-1]?",
        "OUT:BYTES[1]",
        SHAPES,
    ),
    "batched_shapes": Model(
        "ONE:INT32[1]? ANY:INT32[-1]? ROWS:INT32[-1,2]? FIXED:INT32[2,2]?",
        "OUT:BYTES[1]",
        "return reply(OUT=texts(json.dumps(list(array(request, 'ANY').shape))).reshape(1, 1))",
        max_batch_size=8,
    ),
    "classify": Model(
        "IN:FP32[-1]",
        "OUT:FP32[-1]",
        ECHO,
        max_batch_size=8,
        labels=("ant", "bee", "cat", "dog", "eel"),
    ),
}
"""Every fixture model by name."""


def build(path: Path, names: Iterable[str] = tuple(MODELS)) -> None:
    """Write the named models below `path`, which becomes a Triton model repository."""
    _count_dir(path).mkdir(parents=True, exist_ok=True)
    for name in names:
        model = MODELS[name]
        folder = path / name
        for version in model.versions:
            (folder / str(version)).mkdir(parents=True)
            (folder / str(version) / "model.py").write_text(_code(model.body))
        (folder / "config.pbtxt").write_text(_config(name, model, _count_dir(path)))
        if model.labels:
            (folder / "labels.txt").write_text("\n".join(model.labels) + "\n")


def executions(path: Path, server_id: str) -> Counter[str]:
    """Read how often `sleep` was started, finished and cancelled on a server, restarts included."""
    return _counted(_count_dir(path) / server_id)


def streams(path: Path, server_id: str) -> Counter[str]:
    """Read how often `stream` was started, finished and cancelled on a server."""
    return _counted(_count_dir(path) / f"{server_id}.streams")


def _counted(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


def _count_dir(path: Path) -> Path:
    return path.with_name(path.name + "-counts")  # inside, Triton would take it for a model


def _code(body: str) -> str:
    methods = body if body.startswith("def") else _method(body)
    return PRELUDE + textwrap.indent(methods, "    ")


def _method(body: str) -> str:
    return "def answer(self, request):\n" + textwrap.indent(body, "    ")


def _config(name: str, model: Model, count_dir: Path) -> str:
    parameters = dict(model.parameters) | {"count_dir": str(count_dir)}
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {model.max_batch_size}",
        *(f"input {{ {_tensor(spec)} }}" for spec in model.inputs.split()),
        *(f"output {{ {_tensor(spec)}{_labels(model)} }}" for spec in model.outputs.split()),
        f"instance_group {{ count: {model.instances} kind: KIND_CPU }}",
        "version_policy { all { } }",
        f"model_transaction_policy {{ decoupled: {str(model.decoupled).lower()} }}",
        model.more,
        *(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _tensor(spec: str) -> str:
    name, _, rest = spec.partition(":")
    datatype, _, dims = rest.rstrip("?").partition("[")
    optional = " optional: true" if rest.endswith("?") else ""
    return f'name: "{name}" data_type: TYPE_{DATATYPES[datatype]} dims: [{dims}{optional}'


def _labels(model: Model) -> str:
    return ' label_filename: "labels.txt"' if model.labels else ""
