"""Takes the measurements: loads in turn, and the gateway's start and idle memory.

Decides the order (A B C D A B C D ..., so that a busy moment of the machine hits all alike) and
what belongs to a run. Knows nothing of how figures are shown. Called by the command.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.demo import SAMPLE_MODELS, SERVERS
from gateway.cli.local_triton import LocalTriton
from tests.bench import targets
from tests.bench.accounting import cpu_s, resident_bytes
from tests.bench.load import Generator, Load
from tests.bench.payloads import Payload
from tests.bench.targets import Target
from tests.gateways import GatewayProcess, configuration

IDLE_S = 5
ATTEMPTS = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pace:
    """How often, how long and with what."""

    runs: int
    run_s: int
    warm_up_s: int


@dataclass(frozen=True)
class Run:
    """One run of one target. The CPU times are microseconds a request; `own` is None for Triton."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    own_cpu_us: float | None
    triton_cpu_us: float
    errors: int


@dataclass(frozen=True)
class Startup:
    """Of each start of the gateway: until it was ready, and its memory some seconds later."""

    ready_s: list[float]
    idle_bytes: list[int]


class Bench:
    """Loads targets before one tritonserver, and starts the server anew when a load has killed it.

    A load generator that hangs up makes Envoy's transcoder cancel calls on the server, and Triton
    releases before 2.57 can crash of that.
    """

    def __init__(self, triton: LocalTriton, generator: Generator, pace: Pace, folder: Path) -> None:
        self._triton = triton
        self._generator = generator
        self._pace = pace
        self._folder = folder
        self.crashes: list[str] = []

    def measure(self, every: Sequence[Target], payload: Payload, say: Say) -> dict[str, list[Run]]:
        """Run `payload` against every target in turn, as often as the pace says."""
        every = [target for target in every if target.takes(payload)]
        for target in every:
            targets.wait_answering(target, payload)
        runs: dict[str, list[Run]] = {target.name: [] for target in every}
        for number in range(self._pace.runs):
            for target in every:
                run = self._run(target, payload)
                runs[target.name].append(run)
                say(
                    f"{payload.name:12} {target.name:10} {number + 1}/{self._pace.runs} {line(run)}"
                )
        return runs

    def _run(self, target: Target, payload: Payload) -> Run:
        for _ in range(ATTEMPTS):
            run = self._attempt(target, payload)
            if run is not None:
                return run
            self.crashes.append(target.name)
            self._triton.restart()
            self._triton.wait_ready()
            targets.wait_answering(target, payload)
        raise AssertionError(f"Triton died {ATTEMPTS} times running behind {target.name}")

    def _attempt(self, target: Target, payload: Payload) -> Run | None:
        """Warm up and run; None when Triton has died of it."""
        self._load(target, payload, self._pace.warm_up_s)
        if not self._triton.alive:
            return None
        pids = (self._triton.pid, *([] if target.pid is None else [target.pid]))
        before = [cpu_s(pid) for pid in pids]
        load = self._load(target, payload, self._pace.run_s)
        if not self._triton.alive:
            return None
        used_s = [cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
        return _run_of(load, used_s)

    def _load(self, target: Target, payload: Payload, seconds: int) -> Load:
        request = target.request(payload)
        body = self._folder / "body"
        body.write_bytes(request.body)
        return self._generator.run(
            target.address, request, body, connections=payload.connections, seconds=seconds
        )


def line(run: Run) -> str:
    """Show a run on a part of a line."""
    own = "" if run.own_cpu_us is None else f" {run.own_cpu_us:6.0f} us"
    errors = f" {run.errors} ERRORS" if run.errors else ""
    return (
        f"{run.requests_per_s:8,.0f}/s p50 {run.p50_ms:6.2f} p99 {run.p99_ms:6.2f} ms{own}{errors}"
    )


def measure_startup(runs: int, folder: Path, say: Say) -> Startup:
    """Start the gateway before the two servers of the demo, `runs` times.

    Ready means that `/readyz` said so; from the creation of the process to the answer.
    """
    found = Startup([], [])
    with _demo_servers() as servers:
        config = configuration({name: each.grpc_address for name, each in servers.items()})
        for number in range(runs):
            started = time.perf_counter()
            with GatewayProcess(config, folder / f"start-{number}") as gateway:
                found.ready_s.append(time.perf_counter() - started)
                time.sleep(max(0.0, started + IDLE_S - time.perf_counter()))
                found.idle_bytes.append(resident_bytes(gateway.pid))
            megabytes = found.idle_bytes[-1] / 1e6
            say(
                f"start {number + 1}/{runs}: ready in {found.ready_s[-1]:.2f} s, {megabytes:.0f} MB"
            )
    return found


@contextmanager
def _demo_servers() -> Iterator[dict[str, LocalTriton]]:
    with ExitStack() as stack:
        servers = {
            name: LocalTriton(SAMPLE_MODELS, server_id=name, load=load)
            for name, load in SERVERS.items()
        }
        for server in servers.values():
            stack.callback(server.kill)
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield servers


def _run_of(load: Load, used_s: Sequence[float]) -> Run:
    if load.requests == 0:
        raise AssertionError(f"not one answer: {load}")
    each_us = [used * 1e6 / load.requests for used in used_s]
    return Run(
        requests_per_s=load.requests * 1e6 / load.duration_us,
        p50_ms=load.p50_us / 1000,
        p99_ms=load.p99_us / 1000,
        own_cpu_us=each_us[1] if len(each_us) > 1 else None,
        triton_cpu_us=each_us[0],
        errors=load.errors,
    )
