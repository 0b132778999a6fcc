"""Fixture models for the real tritonserver: `build` writes them into a repository folder.

One Python-backend model a name (see `MODELS`). They exist to be asked odd things, which the sample
models under deploy/models are not for. `executions` reads what the `sleep` model has counted.
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

    `body` is the Python of `answer(self, request)` or, where it starts with `def`, all methods.
    """

    inputs: str
    outputs: str
    body: str
    max_batch_size: int = 0
    instances: int = 1
    versions: tuple[int, ...] = (1,)
    parameters: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()


PRELUDE = f'''\
import json
import os
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

SLEEP = '''\
def prepare(self):
    server = os.environ["TRITON_SERVER_ID"]
    self.log = os.path.join(self.parameters["count_dir"], server)
    self.family = pb_utils.MetricFamily(  # has to outlive its metrics
        name="fixture_sleeps", description="Sleeps begun", kind=pb_utils.MetricFamily.COUNTER
    )
    self.metric = self.family.Metric(labels={"model": "sleep"})

def count(self, what):
    """Append one line: appends of this size are atomic, so instances can share the file."""
    with open(self.log, "a") as log:
        log.write(what + "\\n")

def answer(self, request):
    wanted = array(request, "MS")
    self.count("started")
    self.metric.increment(1)
    end = time.monotonic() + int(wanted.item()) / 1000
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        if left > 0.02 and request.is_cancelled():
            self.count("cancelled")
            error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse(error=error)
    self.count("finished")
    return reply(OUT=wanted)
'''

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
    log = _count_dir(path) / server_id
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
