"""Gateways for tests: as a process of its own, and inside the loop of the test."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from config.loader import load, load_text
from gateway.observe.logs import LogStream
from gateway.wiring import ConfigSource, Shell, build

START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20


def configuration(servers: Mapping[str, str], **sections: Any) -> dict[str, Any]:
    """Return a configuration of `servers` (name to gRPC address) on free ports of this machine."""
    config: dict[str, Any] = {
        "servers": [{"name": name, "grpc": address} for name, address in servers.items()],
        "api": {"host": "127.0.0.1", "port": 0},
        "ops": {"port": 0},
        "shutdown": {"drain_delay_s": 0, "grace_s": 10},
    }
    for name, section in sections.items():
        config[name] = section if isinstance(section, list) else {**config.get(name, {}), **section}
    return config


class GatewayProcess:
    """`triton-gateway serve` as a process of its own, on the ports it was given by the kernel."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path = folder / "gateway.yaml"
        self.log_path = folder / "gateway.log"
        self.config_path.write_text(yaml.safe_dump(dict(config)))
        self._process: subprocess.Popen[bytes] | None = None
        self.api_port = 0
        self.ops_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """`host:port` of the API."""
        return f"127.0.0.1:{self.api_port}"

    @property
    def url(self) -> str:
        """The API's address with its scheme."""
        return f"http://{self.address}"

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        self._find_ports()
        self._wait_ready()

    def events(self) -> list[dict[str, Any]]:
        """Return what the process has logged so far."""
        lines = (
            self.log_path.read_text().rpartition("\n")[0].splitlines()
        )  # the last is half written
        return [json.loads(line) for line in lines if line.startswith("{")]

    def fleet(self) -> dict[str, Any]:
        """Return the ops listener's view of the fleet."""
        found: dict[str, Any] = json.loads(self.ops("/fleet"))
        return found

    def ops(self, path: str) -> bytes:
        """GET a path of the ops listener; raises HTTPError for anything but a success."""
        url = f"http://127.0.0.1:{self.ops_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the process to end; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """Stop the process, by force if it does not end by itself; return its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self.wait()

    def _find_ports(self) -> None:
        started = self._await(lambda: next((e for e in self.events() if "api" in e), None))
        self.api_port = int(started["api"].rpartition(":")[2])
        self.ops_port = int(started["ops"].rpartition(":")[2])

    def _wait_ready(self) -> None:
        def ready() -> bool | None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                return bool(self.ops("/readyz"))
            return None

        self._await(ready)

    def _await(self, probe: Any) -> Any:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the gateway ended:\n{self.log_path.read_text()}")
            if found := probe():
                return found
            time.sleep(0.01)
        raise AssertionError(f"the gateway did not come up:\n{self.log_path.read_text()}")


class InnerGateway:
    """A gateway built by wiring in the loop of a test, with its parts at hand."""

    def __init__(self, shell: Shell, api: socket.socket, ops: socket.socket) -> None:
        self.gateway = shell.gateway
        self.cores = shell.cores
        self.url = f"http://127.0.0.1:{api.getsockname()[1]}"
        self.ops_url = f"http://127.0.0.1:{ops.getsockname()[1]}"
        self.port = int(api.getsockname()[1])


@contextlib.asynccontextmanager
async def inner_gateway(
    config: Mapping[str, Any] | Path, log: LogStream = sys.stderr.buffer
) -> AsyncIterator[InnerGateway]:
    """Run a gateway in this loop until the block ends; it is ready inside the block.

    From a path its configuration can be reloaded.
    """
    source = ConfigSource(config, os.environ) if isinstance(config, Path) else None
    if isinstance(config, Path):
        loaded = load(config)
    else:
        loaded = load_text(yaml.safe_dump(dict(config)), "test.yaml")
    api, ops = _listening(), _listening()
    shell = build(loaded, os.environ, api_socket=api, ops_socket=ops, log=log, source=source)
    gateway = shell.gateway
    stopping = asyncio.Event()
    running = asyncio.get_running_loop().create_task(gateway.run(stopping))
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await gateway.readiness.ready.wait()
        yield InnerGateway(shell, api, ops)
    finally:
        stopping.set()
        await running


def _listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    return sock
