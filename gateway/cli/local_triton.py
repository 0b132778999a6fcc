"""A real tritonserver on this machine, without Docker: found, started, watched and swept up.

Decides how the server of the nvidia-pytriton wheel is laid out and started (back ends, libraries,
ports, shared memory) and what must be gone afterwards: the server, its Python stubs, its regions in
/dev/shm and its work folder, even if this process is killed. Refuses to know models and the
gateway. Called by the demo and by tests, with plain blocking calls; `start` returns at once, so
several servers can come up side by side.
"""

import contextlib
import http.client
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
POLL_INTERVAL_S = 0.05
PROBE_TIMEOUT_S = 1.0
START_ATTEMPTS = 5
TAIL_LINES = 20
SHARED_MEMORY = Path("/dev/shm")

# Outgoing connections take their local ports from 32768 up (Linux's default range). A port below it
# stays free for this server while it is down, whoever keeps trying to connect to it meanwhile.
PORT_RANGE = range(20000, 32000)

# Waits for one line on its standard input. End of file instead means that the parent has died
# without stopping its server, so the guard does it: process group, work folder, shared memory.
GUARD_SCRIPT = """
read -r _ && exit
kill -s KILL -- "-$1"
sleep 0.2
rm -rf -- "$2" "$3"*
"""


class LocalTritonError(RuntimeError):
    """The local server cannot be started, or died while starting; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the wheel keeps the server's parts."""

    server: Path
    backends: Path
    stub: Path
    libraries: Path

    @classmethod
    def find(cls) -> Self:
        """Locate the wheel without importing it (its import costs seconds).

        Raises `LocalTritonError` when it is not installed, or holds no Python stub for the running
        Python version.
        """
        spec = importlib.util.find_spec("pytriton")
        if spec is None or not spec.submodule_search_locations:
            raise LocalTritonError(
                "no tritonserver on this machine: pip install 'triton-gateway[demo]' "
                "(Linux on x86-64, glibc 2.35 or newer)"
            )
        package = Path(spec.submodule_search_locations[0])
        root = package / "tritonserver"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = root / "python_backend_stubs" / python / "triton_python_backend_stub"
        if not stub.is_file():
            raise LocalTritonError(f"nvidia-pytriton has no Python stub for Python {python}")
        libraries = package.parent / "nvidia_pytriton.libs"
        return cls(root / "bin" / "tritonserver", root / "backends", stub, libraries)

    def lay_out_backends(self, target: Path) -> None:
        """Copy the back ends to `target`, with the stub that fits the running Python."""
        shutil.copytree(self.backends, target, ignore=shutil.ignore_patterns("__pycache__"))
        stub = target / "python" / self.stub.name
        shutil.copyfile(self.stub, stub)
        stub.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """Build the server's environment variables on top of this process's own.

        The stub takes its prefix, and so numpy, from the first `python3` on PATH; it ignores
        Python's own variables.
        """
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.libraries),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }


@dataclass(frozen=True, slots=True)
class Ports:
    """The three listeners of one server."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def pick(cls) -> Self:
        """Choose three ports nothing listens on now. Another process may still be faster."""
        candidates = random.SystemRandom().sample(PORT_RANGE, len(PORT_RANGE))
        free = filter(_is_free, candidates)
        return cls(next(free), next(free), next(free))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class LocalTriton:
    """One tritonserver process with its own ports, back ends and shared memory.

    `load` names the models to load at start and switches model control to explicit, so that more
    can be loaded and unloaded later; None loads every model of `repository`, for good. Models find
    the server's id in the environment variable TRITON_SERVER_ID. Without a `log_file` the log is
    kept in the work folder, and goes with it. `extra_args` come last and win over the launcher's
    own arguments; metrics and the log's information lines have to stay on.
    """

    def __init__(
        self,
        repository: Path,
        *,
        server_id: str,
        load: Sequence[str] | None = None,
        extra_args: Sequence[str] = (),
        log_file: Path | None = None,
    ) -> None:
        self.server_id = server_id
        self._repository = repository
        self._load = load
        self._extra_args = tuple(extra_args)
        self._log_file = log_file
        self._log_start = 0
        self._shm_prefix = f"triton-gateway-{uuid.uuid4().hex[:12]}-"
        self._work: Path | None = None
        self._ports: Ports | None = None
        self._keep_ports = False
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it is ready."""
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the server: nothing needs to be saved."""
        self.kill()

    @property
    def http_address(self) -> str:
        """`host:port` of the HTTP front end."""
        return f"{HOST}:{self._known_ports().http}"

    @property
    def grpc_address(self) -> str:
        """`host:port` of the gRPC front end."""
        return f"{HOST}:{self._known_ports().grpc}"

    @property
    def metrics_url(self) -> str:
        """Address of the Prometheus page."""
        return f"http://{HOST}:{self._known_ports().metrics}/metrics"

    @property
    def pid(self) -> int:
        """Process id of the server, which is also the id of its process group."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the server's process exists (it may still be loading, or be paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def shm_prefix(self) -> str:
        """What the names of the server's regions in /dev/shm begin with."""
        return self._shm_prefix

    @property
    def work_folder(self) -> Path:
        """The server's own temporary folder, removed when it is stopped."""
        if self._work is None:
            raise LocalTritonError(f"server {self.server_id} is not running")
        return self._work

    @property
    def log_path(self) -> Path:
        """The file that the server's output goes to."""
        return self._log_file or self.work_folder / "server.log"

    def start(self) -> None:
        """Start the server's process and return at once.

        The ports stay the same over the life of this object once the server was ready on them.
        """
        if self.alive:
            raise LocalTritonError(f"server {self.server_id} is already running")
        installation = Installation.find()
        if self._work is None:
            self._work = Path(tempfile.mkdtemp(prefix="triton-gateway-"))
            installation.lay_out_backends(self._work / "backends")
        self._ports = self._ports or Ports.pick()
        self._spawn(installation)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Block until the server and every model it was told to load are ready.

        Raises `LocalTritonError` with the end of the log when the server dies, or is not ready
        after about `timeout_s`. A new server whose ports somebody else took is started on others.
        """
        attempts = START_ATTEMPTS
        for _ in range(round(timeout_s / POLL_INTERVAL_S)):
            if self._answers_ready() and self._owns_its_ports():
                self._keep_ports = True
                return
            if self._ended_within(POLL_INTERVAL_S):
                attempts -= 1
                if attempts == 0 or not self._lost_its_ports():
                    raise self._failure("died while starting")
                self._start_again()
        raise self._failure(f"was not ready within {timeout_s:g} s")

    def terminate(self, timeout_s: float = 40.0) -> None:
        """Stop the server the polite way (SIGTERM, some seconds), by force after `timeout_s`."""
        if self.alive:
            self.resume()
            self._running().terminate()
            self._ended_within(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Stop the server and its stubs at once and remove all it left. May be called twice."""
        self._sweep_process()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    def restart(self) -> None:
        """Kill the server, if it still runs, and start it again on the same ports."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing answers from now on."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # Its threads stop one by one, and one of them may still answer; the last one is reported.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise LocalTritonError(f"server {self.server_id} has not been started")
        return self._ports

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise LocalTritonError(f"server {self.server_id} is not running")
        return self._process

    def _arguments(self) -> list[str]:
        ports = self._known_ports()
        control = (
            []
            if self._load is None
            else ["--model-control-mode=explicit", *(f"--load-model={m}" for m in self._load)]
        )
        return [
            f"--id={self.server_id}",
            f"--model-repository={self._repository}",
            f"--backend-directory={self.work_folder / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            *(f"--{name}-address={HOST}" for name in ("http", "grpc", "metrics")),
            f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-port={ports.metrics}",
            *control,
            *self._extra_args,
        ]

    def _spawn(self, installation: Installation) -> None:
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [str(installation.server), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=installation.environment() | {"TRITON_SERVER_ID": self.server_id},
                start_new_session=True,
            )
        regions = SHARED_MEMORY / self._shm_prefix
        to_sweep = (str(self._process.pid), str(self.work_folder), str(regions))
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD_SCRIPT, "sh", *to_sweep],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _start_again(self) -> None:
        self._sweep_process()
        if not self._keep_ports:
            self._ports = None
        self.start()

    def _answers_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.http_address, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ended_within(self, timeout_s: float) -> bool:
        try:
            self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _log_of_this_run(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _owns_its_ports(self) -> bool:
        # Two servers that start at once may pick the same port, and then the other one answers.
        return f"Metrics Service at {HOST}:{self._known_ports().metrics}" in self._log_of_this_run()

    def _lost_its_ports(self) -> bool:
        return "already in use" in self._log_of_this_run()

    def _failure(self, what: str) -> LocalTritonError:
        tail = "\n".join(self._log_of_this_run().splitlines()[-TAIL_LINES:])
        self.kill()
        return LocalTritonError(
            f"tritonserver {self.server_id} {what}; its last log lines:\n{tail}"
        )

    def _sweep_process(self) -> None:
        """Kill the whole process group, call the guard off, drop the regions in shared memory."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # where they had all ended by themselves
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        if self._guard is not None:
            self._guard.communicate(b"\n")
            self._guard = None
        for region in SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
            region.unlink(missing_ok=True)
