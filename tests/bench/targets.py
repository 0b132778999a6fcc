"""What is measured: a real tritonserver, and what stands before it, each a process of its own.

The server holds two cheap models, so that what stands before it is what costs. Called by the
runner; everything started here ends with the `with` block.
"""

import contextlib
import http.client
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.cli.demo import SAMPLE_MODELS
from gateway.cli.local_triton import LocalTriton
from gateway.identity.keys import hash_key, new_key
from tests.bench import envoy
from tests.bench.payloads import Payload, Request, check
from tests.gateways import GatewayProcess, configuration
from tests.redis_server import RedisServer

TRITON = "triton"
PASS_THROUGH = "envoy"
TRANSCODER = "transcoder"
GATEWAY = "gateway"
TENANTS = "tenants"
TITLES = {
    TRITON: "straight to Triton's REST",
    PASS_THROUGH: "Envoy, pass-through",
    TRANSCODER: "Envoy, gRPC-JSON transcoder",
    GATEWAY: "this gateway",
    TENANTS: "this gateway, with a key, two limits on Redis, and admission with room",
}
"""Every target, in the order in which they take turns."""

SMALL = ("small-16", "small-64")
"""Payloads for which it shows what a request costs besides its tensors."""
BENCH_MODELS = Path(__file__).parent / "models"
ANSWER_TIMEOUT_S = 30


@dataclass(frozen=True)
class Target:
    """An address to load; `pid` is the process there, None for Triton itself."""

    name: str
    address: str
    pid: int | None
    key: str = ""

    def takes(self, payload: Payload) -> bool:
        """Whether anything is to be learnt from this payload here."""
        return self.name != TENANTS or payload.name in SMALL

    def request(self, payload: Payload) -> Request:
        """Return the form of `payload` this target understands."""
        request = payload.transcoded if self.name == TRANSCODER else payload.rest
        if not self.key:
            return request
        return replace(request, headers={**request.headers, "X-API-Key": self.key})


def make_triton() -> LocalTriton:
    """Describe the one server that is behind everything."""
    return LocalTriton(
        SAMPLE_MODELS,
        server_id="bench",
        load=("identity_fp32", "sink"),
        extra_args=(f"--model-repository={BENCH_MODELS}", "--disable-auto-complete-config"),
    )


@contextlib.contextmanager
def standing(names: Sequence[str], triton: LocalTriton, folder: Path) -> Iterator[list[Target]]:
    """Start the named targets before `triton`, which is ready, and stop them at the end."""
    with contextlib.ExitStack() as stack:
        yield [_start(name, triton, folder / name, stack) for name in names]


def wait_answering(target: Target, payload: Payload) -> None:
    """Wait until the target answers `payload` correctly; raises AssertionError after a while."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        status, answer = post(target.address, target.request(payload))
        if status == http.client.OK:
            break
        if time.monotonic() > deadline:
            raise AssertionError(f"{target.name} answers {payload.name} with {status}: {answer!r}")
        time.sleep(0.1)
    if not check(payload, answer):
        raise AssertionError(f"{target.name} answers {payload.name} wrongly: {answer[:200]!r}")


def post(address: str, request: Request) -> tuple[int, bytes]:
    """Send one request; return the status and the body, or 0 and the reason."""
    connection = http.client.HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def _start(name: str, triton: LocalTriton, folder: Path, stack: contextlib.ExitStack) -> Target:
    if name == TRITON:
        return Target(name, triton.http_address, None)
    if name in (GATEWAY, TENANTS):
        key = new_key(os.urandom) if name == TENANTS else ""
        sections = _tenant_sections(key, folder, stack) if key else {}
        config = configuration({"bench": triton.grpc_address}, **sections)
        gateway = GatewayProcess(config, folder)
        stack.callback(gateway.stop)
        gateway.start()
        return Target(name, gateway.address, gateway.pid, key)
    if name == TRANSCODER:
        config = envoy.transcoder(triton.grpc_address)
    else:
        config = envoy.pass_through(triton.http_address)
    peer = stack.enter_context(envoy.EnvoyProcess(config, folder))
    return Target(name, peer.address, peer.pid)


def _tenant_sections(key: str, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Ask everybody for a key, and hold them to limits that are never reached."""
    folder.mkdir(parents=True, exist_ok=True)
    redis = stack.enter_context(RedisServer(folder))
    return {
        "redis": {"url": redis.url},
        "auth": {"mode": "enforce"},
        "tenants": {"acme": {"keys": [{"hash": hash_key(key, os.urandom)}]}},
        "limits": {
            "requests": {"per_s": 100_000, "burst": 100_000},
            "elements": {"of": "elements", "per_s": 10**6, "burst": 10**6, "per": "tenant_model"},
        },
        "admission": {"mode": "enforce"},
        # Room for all: by itself the limit would follow what the other targets do to the server,
        # and this is about the cost of asking, not of waiting.
        "models": {"identity_fp32": {"concurrency": 256}},
    }
