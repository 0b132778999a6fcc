"""What the figures were taken on: processor and versions. Names no host, user or path."""

import http.client
import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

from tests.bench import envoy

PACKAGES = ("triton-gateway", "aiohttp", "uvloop", "grpcio", "protobuf", "orjson", "pysimdjson")


def describe(triton_address: str, generator: str) -> dict[str, str]:
    """List the parts by what they are. `triton_address` is a server's HTTP address."""
    return {
        "Processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "Memory": f"{_memory_gb():.0f} GB",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "Packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "Triton": _triton_version(triton_address),
        "Envoy": envoy.version() if envoy.binary() else "not used",
        "Load generator": generator,
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _triton_version(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/v2")
        reported = json.load(connection.getresponse())
    finally:
        connection.close()
    return str(reported["version"])
