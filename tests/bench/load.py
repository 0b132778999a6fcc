"""Puts load on an address of this machine: with wrk where it is to be had, else with loader.py.

wrk is taken from PATH, from an earlier download, or from Debian's packages, unpacked without root
below the virtual environment. Called by the runner, blocking, one load at a time.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.payloads import Request
from tests.debian import unpack

HERE = Path(__file__).parent
WRK_FOLDER = Path(sys.prefix) / "share" / "triton-gateway-bench" / "wrk"
WRK_PACKAGES = ("wrk", "libluajit-5.1-2", "libluajit-5.1-common")
ANSWER_TIMEOUT_S = 10
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Load:
    """What the load generator saw."""

    requests: int
    duration_us: float
    p50_us: float
    p99_us: float
    errors: int


class Generator:
    """Sends one request over and over."""

    def __init__(self, wrk: Path | None) -> None:
        self._wrk = wrk

    @property
    def title(self) -> str:
        """What was used, for the record."""
        if self._wrk is None:
            return "tests/bench/loader.py (asyncio; wrk was not to be had)"
        text = _run([str(self._wrk), "--version"], _wrk_environment(self._wrk), check=False)
        return f"wrk {text.split()[1]}, one thread"

    def run(
        self, address: str, request: Request, body: Path, *, connections: int, seconds: int
    ) -> Load:
        """Load `address` for `seconds`. `body` is the file that holds the request's body."""
        headers = [f"{name}: {value}" for name, value in request.headers.items()]
        counts = (f"--connections={connections}", *(f"--header={header}" for header in headers))
        if self._wrk is None:
            script = str(HERE / "loader.py")
            target = (address, request.path, str(body), f"--seconds={seconds}")
            return _load(_run([sys.executable, script, *target, *counts], os.environ))
        options = ("--threads=1", f"--duration={seconds}s", f"--timeout={ANSWER_TIMEOUT_S}s")
        target = (
            f"--script={HERE / 'wrk.lua'}",
            f"http://{address}{request.path}",
            "--",
            str(body),
        )
        command = [str(self._wrk), *options, *counts, *target]
        return _load(_run(command, _wrk_environment(self._wrk), timeout_s=seconds + STOP_TIMEOUT_S))


def find_wrk() -> Path | None:
    """Return a wrk that runs, downloading it if need be; None where there is none."""
    if installed := shutil.which("wrk"):
        return Path(installed)
    found = WRK_FOLDER / "usr" / "bin" / "wrk"
    if not found.exists() and not unpack(WRK_FOLDER, *WRK_PACKAGES):
        return None
    return found


def _wrk_environment(wrk: Path) -> Mapping[str, str]:
    if WRK_FOLDER not in wrk.parents:
        return os.environ
    libraries = (wrk.parents[1] / "lib").glob("*-linux-gnu")
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(str(each) for each in libraries)}


def _run(
    command: list[str],
    environment: Mapping[str, str],
    *,
    check: bool = True,
    timeout_s: float = STOP_TIMEOUT_S,
) -> str:
    """Run to the end and return what was printed; raises CalledProcessError, TimeoutExpired."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=check,
        text=True,
        timeout=timeout_s,
    )
    return done.stdout


def _load(output: str) -> Load:
    counted = json.loads(output.splitlines()[-1])
    return Load(**counted)
