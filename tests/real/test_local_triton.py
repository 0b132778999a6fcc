"""The launcher of the real tritonserver, and the models it is started with."""

import contextlib
import http.client
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from gateway.cli import local_triton
from gateway.cli.local_triton import Installation, LocalTriton, LocalTritonError, Ports
from tests.conftest import FAST_LOAD, LOADS, SAMPLE_MODELS, Launch
from tests.real import repository

Array = np.ndarray[Any, Any]


def tensor(name: str, array: Array, datatype: str, kind: Any = grpc_client) -> Any:
    value = kind.InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array)
    return value


def ints(name: str, *values: int) -> Any:
    return tensor(name, np.array(values, dtype=np.int32), "INT32")


@pytest.fixture
def grpc_a(triton_a: LocalTriton) -> Iterator[Client]:
    with Client(triton_a.grpc_address) as client:
        yield client


@pytest.fixture
def grpc_b(triton_b: LocalTriton) -> Iterator[Client]:
    with Client(triton_b.grpc_address) as client:
        yield client


def relics(server: LocalTriton, pid: int) -> list[Path | int]:
    """List what a server that is gone should not have left: regions and processes."""
    return [*Path("/dev/shm").glob(f"{server.shm_prefix}*"), *members(pid)]


def members(group: int) -> list[int]:
    """List the living processes of a process group."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if lives_in(folder, group)]


def lives_in(folder: Path, group: int) -> bool:
    try:
        state, _, group_text = (folder / "stat").read_text().rpartition(") ")[2].split()[:3]
    except OSError:
        return False  # it ended just now
    return int(group_text) == group and state != "Z"


# --- the two servers of a run


def test_each_server_has_its_id_and_its_models(grpc_a: Client, grpc_b: Client) -> None:
    for server_id, client in {"a": grpc_a, "b": grpc_b}.items():
        assert client.get_server_metadata().name == server_id
        index = client.get_model_repository_index().models
        assert {row.name for row in index if row.state == "READY"} == set(LOADS[server_id])


@pytest.mark.parametrize("kind", [grpc_client, http_client])
@pytest.mark.parametrize(
    ("model", "source", "shape", "target", "width"),
    [
        ("simple_onnx", "input__0", [2, 10], "output__0", 3),
        ("custom_model", "INPUT", [2, 10], "OUTPUT", 5),
        ("resnet50_onnx", "images", [2, 3, 224, 224], "logits", 1000),
        ("identity_fp32", "INPUT0", [2, 7], "OUTPUT0", 7),
    ],
)
def test_sample_models_answer_over_grpc_and_http(
    triton_a: LocalTriton,
    kind: Any,
    model: str,
    source: str,
    shape: list[int],
    target: str,
    width: int,
) -> None:
    address = triton_a.grpc_address if kind is grpc_client else triton_a.http_address
    with kind.InferenceServerClient(address) as client:
        values = np.full(shape, 0.5, dtype=np.float32)
        result = client.infer(model, [tensor(source, values, "FP32", kind)])
    assert result.as_numpy(target).shape == (2, width)


def test_custom_model_adds_neighbours(grpc_a: Client) -> None:
    values = np.arange(10, dtype=np.float32).reshape(1, 10)
    answer = grpc_a.infer("custom_model", [tensor("INPUT", values, "FP32")]).as_numpy("OUTPUT")
    assert answer.tolist() == [[1, 5, 9, 13, 17]]


def test_versions_of_simple_onnx_differ_and_the_highest_is_the_default(grpc_a: Client) -> None:
    source = [tensor("input__0", np.ones((1, 10), dtype=np.float32), "FP32")]
    first, second, default = (
        grpc_a.infer("simple_onnx", source, model_version=version).as_numpy("output__0")
        for version in ("1", "2", "")
    )
    assert first.tolist() != second.tolist() == default.tolist()


def test_priority_counts_its_executions(grpc_b: Client) -> None:
    source = [tensor("WORK_MS", np.zeros((1, 1), dtype=np.int32), "INT32")]
    orders = [grpc_b.infer("priority", source).as_numpy("ORDER").item() for _ in range(3)]
    assert orders == list(range(orders[0], orders[0] + 3))


def test_accumulator_adds_up_each_sequence_by_itself(grpc_b: Client) -> None:
    def add(sequence: int, value: int, *, start: bool = False, end: bool = False) -> int:
        source = [tensor("INPUT", np.array([[value]], dtype=np.int32), "INT32")]
        result = grpc_b.infer(
            "accumulator",
            source,
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )
        return int(result.as_numpy("OUTPUT").item())

    assert add(7, 1, start=True) == 1
    assert add(8, 100, start=True) == 100
    assert add(7, 2) == 3
    assert add(8, 10, end=True) == 110
    assert add(7, 3, end=True) == 6


@pytest.mark.parametrize(
    ("inputs", "indexes", "error"),
    [
        ([("COUNT", 3), ("DELAY_MS", 1)], [0, 1, 2], None),
        ([("COUNT", 0)], [], None),
        ([("COUNT", 3), ("ERROR_AT", 1)], [0], "asked to fail at response 1"),
    ],
)
def test_repeat_answers_any_number_of_times(
    grpc_a: Client, inputs: list[tuple[str, int]], indexes: list[int], error: str | None
) -> None:
    results: list[tuple[Any, Any]] = []
    grpc_a.start_stream(lambda result, error: results.append((result, error)))
    grpc_a.async_stream_infer("repeat", [ints(*pair) for pair in inputs])
    grpc_a.stop_stream()
    seen = [int(result.as_numpy("INDEX").item()) for result, failure in results if not failure]
    errors = [str(failure) for _, failure in results if failure]
    assert seen == indexes
    assert errors == ([error] if error else [])


@pytest.mark.parametrize("datatype", sorted(repository.DATATYPES))
def test_echo_returns_its_input_bit_for_bit(grpc_a: Client, datatype: str) -> None:
    values: Array
    if datatype == "BYTES":
        values = np.array([b"", b"\xff\x00", "ä".encode()], dtype=np.object_)
    else:
        kind = ml_dtypes.bfloat16 if datatype == "BF16" else triton_to_np_dtype(datatype)
        values = np.array([1, 0, 1]).astype(kind)
    result = grpc_a.infer(f"echo_{datatype}", [tensor("IN", values, datatype)])
    assert result.get_output("OUT").datatype == datatype
    assert result.as_numpy("OUT").tolist() == values.tolist()


@pytest.mark.parametrize(("asked", "ran"), [("1", b"1"), ("2", b"2"), ("10", b"10"), ("", b"10")])
def test_whoami_names_server_and_version(grpc_b: Client, asked: str, ran: bytes) -> None:
    who = grpc_b.infer("whoami", [ints("IN", 1)], model_version=asked).as_numpy("OUT")
    assert who[:2].tolist() == [b"b", ran]


def test_sleep_is_counted_and_ignores_its_payload(grpc_b: Client, fixture_models: Path) -> None:
    before = repository.executions(fixture_models, "b")
    payload = tensor("PAYLOAD", np.zeros(150_528, dtype=np.float32), "FP32")
    grpc_b.infer("sleep", [ints("MS", 1), payload])
    grpc_b.infer("sleep", [ints("MS", 0)])
    after = repository.executions(fixture_models, "b")
    assert after - before == {"started": 2, "finished": 2}


def test_boom_raises_its_awkward_text(grpc_a: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        grpc_a.infer("boom", [ints("IN", 1)])
    assert caught.value.status() == "StatusCode.INTERNAL"
    assert repository.BOOM_TEXT in caught.value.message()


@pytest.mark.parametrize("code", repository.CODES)
def test_boom_raises_every_code_of_triton(grpc_a: Client, code: str) -> None:
    renamed = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}
    index = repository.CODES.index(code)
    with pytest.raises(InferenceServerException) as caught:
        grpc_a.infer("boom", [ints("IN", 1), ints("CODE", index)])
    assert caught.value.status() == f"StatusCode.{renamed.get(code, code)}"
    assert caught.value.message() == repository.BOOM_TEXT


def test_empty_out_returns_tensors_without_elements(grpc_a: Client) -> None:
    outputs = grpc_a.infer("empty_out", [ints("IN", 1)]).get_response().outputs
    shapes = {output.name: list(output.shape) for output in outputs}
    assert shapes == {"EMPTY": [0], "EMPTY_ROWS": [2, 0], "EMPTY_TEXT": [0], "FULL": [3]}


def test_two_in_adds_and_subtracts(grpc_b: Client) -> None:
    values = np.full((1, 16), 3, dtype=np.int32)
    source = [tensor("INPUT0", values, "INT32"), tensor("INPUT1", values, "INT32")]
    result = grpc_b.infer("two_in", source)
    assert result.as_numpy("OUTPUT0").tolist() == [[6] * 16]
    assert result.as_numpy("OUTPUT1").tolist() == [[0] * 16]


def test_params_shows_parameters_and_on_b_headers(grpc_a: Client, grpc_b: Client) -> None:
    call: dict[str, Any] = {
        "inputs": [ints("IN", 1)],
        "request_id": "r1",
        "parameters": {"k": "v"},
        "headers": {"x-note": "n"},
    }
    plain = grpc_a.infer("params", **call)
    forwarded = grpc_b.infer("params", **call)
    assert plain.as_numpy("OUT").item() == b'{"k":"v"}'
    assert b'"x-note":"n"' in forwarded.as_numpy("OUT").item()
    assert b'"id": "r1"' in plain.as_numpy("REQUEST").item()


def test_classify_has_labels(grpc_a: Client) -> None:
    source = [tensor("IN", np.array([[1, 5, 3]], dtype=np.float32), "FP32")]
    wanted = [grpc_client.InferRequestedOutput("OUT", class_count=2)]
    result = grpc_a.infer("classify", source, outputs=wanted).as_numpy("OUT")
    assert result.tolist() == [[b"5.000000:1:bee", b"3.000000:2:cat"]]


# --- the sample repository on disk


def test_the_committed_onnx_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    generator = SAMPLE_MODELS / "build_onnx.py"
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True)
    committed = {p.relative_to(SAMPLE_MODELS): p for p in SAMPLE_MODELS.glob("*/*/model.onnx")}
    built = {p.relative_to(tmp_path): p for p in tmp_path.glob("*/*/model.onnx")}
    assert committed.keys() == built.keys()
    assert len(built) == 3
    for name, path in built.items():
        assert committed[name].read_bytes() == path.read_bytes()
        onnx.checker.check_model(str(path))


def test_every_onnx_model_has_the_same_model_py() -> None:
    texts = {p.with_name("model.py").read_text() for p in SAMPLE_MODELS.glob("*/*/model.onnx")}
    assert len(texts) == 1


def test_the_native_configurations_differ_in_the_back_end_only() -> None:
    for path in SAMPLE_MODELS.glob("*/configs/onnx.pbtxt"):
        native = signature_lines(path)
        assert native == signature_lines(path.parents[1] / "config.pbtxt")
        assert native


def signature_lines(path: Path) -> list[str]:
    own = ("#", "backend", "default_model_filename", "parameters")
    return [line for line in path.read_text().splitlines() if not line.startswith(own)]


# --- the life of one server


def test_a_killed_server_comes_back_on_its_ports(launch_triton: Launch) -> None:
    server = launch_triton("c", ["identity_fp32"])
    addresses = server.http_address, server.grpc_address, server.metrics_url
    first_pid = server.pid
    with socket.create_connection(address_of(server)):  # one that the dead server leaves behind
        server.restart()
        server.wait_ready()
    assert server.pid != first_pid
    assert (server.http_address, server.grpc_address, server.metrics_url) == addresses
    assert members(first_pid) == []
    with Client(server.grpc_address) as client:
        assert client.is_model_ready("identity_fp32")


def address_of(server: LocalTriton) -> tuple[str, int]:
    host, _, port = server.http_address.partition(":")
    return host, int(port)


@pytest.mark.parametrize("stop", [LocalTriton.kill, LocalTriton.terminate])
def test_a_stopped_server_leaves_nothing(launch_triton: Launch, stop: Any) -> None:
    server = launch_triton("c", ["identity_fp32", "repeat"])
    pid, folder = server.pid, server.work_folder
    assert len(relics(server, pid)) == 2 + 3  # regions, then the server and its stubs
    stop(server)
    assert not server.alive
    assert relics(server, pid) == []
    assert not folder.exists()


def test_a_paused_server_answers_only_when_resumed(launch_triton: Launch) -> None:
    server = launch_triton("c", ["identity_fp32"])
    server.pause()
    connection = http.client.HTTPConnection(server.http_address, timeout=0.3)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/live")
        with pytest.raises(TimeoutError):
            connection.getresponse()
    server.resume()
    server.wait_ready()


def test_a_paused_server_can_be_terminated(launch_triton: Launch) -> None:
    server = launch_triton("c", ["identity_fp32"])
    pid = server.pid
    server.pause()
    server.terminate()
    assert relics(server, pid) == []


def test_a_server_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from gateway.cli.local_triton import LocalTriton
        server = LocalTriton(
            Path({str(SAMPLE_MODELS)!r}),
            server_id="orphan",
            load=["identity_fp32"],
            extra_args=["{FAST_LOAD}"],
        )
        server.start()
        server.wait_ready()
        print(server.pid, server.shm_prefix, server.log_path.parent, flush=True)
        input()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, prefix, folder = parent.stdout.readline().split()
        paths = [*Path("/dev/shm").glob(f"{prefix}*"), Path(folder)]
        assert len(paths) == len(members(int(pid))) == 2
        parent.kill()
    wait_until_gone(int(pid), paths)


def wait_until_gone(group: int, paths: list[Path]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not members(group) and not any(path.exists() for path in paths):
            return
        time.sleep(0.05)
    pytest.fail("the guard did not clean up")


def test_a_new_server_moves_on_when_its_ports_were_taken(
    monkeypatch: pytest.MonkeyPatch, launch_triton: Launch
) -> None:
    free = Ports.pick()
    with socket.socket() as thief:
        thief.bind((local_triton.HOST, free.grpc))
        thief.listen()
        picks = iter([free, Ports.pick()])
        monkeypatch.setattr(Ports, "pick", lambda: next(picks))
        server = launch_triton("c", ["identity_fp32"])
        assert server.grpc_address != f"{local_triton.HOST}:{free.grpc}"


def test_death_at_start_is_reported_with_the_log(launch_triton: Launch) -> None:
    with pytest.raises(LocalTritonError, match=r"(?s)c died while starting.*no_such_model"):
        launch_triton("c", ["no_such_model"])


def test_a_model_that_loads_too_slowly_is_reported(fixture_models: Path) -> None:
    server = LocalTriton(fixture_models, server_id="c", load=["slow_load"], extra_args=[FAST_LOAD])
    server.start()
    pid = server.pid
    with pytest.raises(LocalTritonError, match=r"was not ready within 0\.5 s"):
        server.wait_ready(timeout_s=0.5)
    assert relics(server, pid) == []


def test_a_running_server_is_not_started_twice(triton_a: LocalTriton) -> None:
    with pytest.raises(LocalTritonError, match="already running"):
        triton_a.start()


def test_a_missing_wheel_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LocalTritonError, match=r"pip install 'triton-gateway\[demo\]'"):
        Installation.find()


def test_a_python_without_a_stub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Future:
        major, minor = 3, 99

    monkeypatch.setattr(sys, "version_info", Future)
    with pytest.raises(LocalTritonError, match=r"Python 3\.99"):
        Installation.find()


def test_without_a_load_list_every_model_is_loaded(tmp_path: Path) -> None:
    repository.build(tmp_path / "models", ["echo_INT32", "two_in"])
    with (
        LocalTriton(tmp_path / "models", server_id="c", extra_args=[FAST_LOAD]) as server,
        Client(server.grpc_address) as client,
    ):
        index = client.get_model_repository_index().models
    assert {row.name for row in index if row.state == "READY"} == {"echo_INT32", "two_in"}
