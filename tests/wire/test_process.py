"""The whole process: signals, draining, and refusals before anything has started."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients import Connection, ask, infer, request
from tests.fakes.triton import FakeTriton
from tests.gateways import GatewayProcess, configuration

EXIT_TIMEOUT_S = 15.0


def process(fake: FakeTriton, folder: Path, **sections: Any) -> GatewayProcess:
    return GatewayProcess(configuration({"a": fake.address}, **sections), folder)


async def started(gateway: GatewayProcess) -> GatewayProcess:
    """Start it beside the loop: the scripted Triton it probes runs in this one."""
    await asyncio.to_thread(gateway.start)
    return gateway


async def exit_code(gateway: GatewayProcess, timeout_s: float = EXIT_TIMEOUT_S) -> int:
    return await asyncio.to_thread(gateway.wait, timeout_s)


@pytest.fixture
async def running(fake: FakeTriton, tmp_path: Path) -> Any:
    gateway = process(fake, tmp_path)
    try:
        yield await started(gateway)
    finally:
        await asyncio.to_thread(gateway.stop)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_what_is_under_way_finish(
    running: GatewayProcess, fake: FakeTriton, number: signal.Signals
) -> None:
    fake.models["echo"].hang()
    asking = asyncio.create_task(ask(running.api_port, infer()))
    await fake.until(lambda: fake.infer_started == 1)
    running.signal(number)
    await _refused(running.api_port)
    assert not asking.done()
    fake.models["echo"].release()
    reply = await asking
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await exit_code(running) == 0
    stopped = running.events()[-1]
    assert (stopped["event"], stopped["left_behind"]) == ("stopped", 0)
    assert fake.infer_cancelled == 0


async def test_a_second_signal_ends_it_at_once(running: GatewayProcess, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    connection = await Connection.open(running.api_port)
    connection.send(infer())
    await fake.until(lambda: fake.infer_started == 1)
    running.signal(signal.SIGTERM)
    await _refused(running.api_port)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    running.signal(signal.SIGTERM)
    assert await exit_code(running) == 128 + signal.SIGTERM
    assert loop.time() - began_s < 2
    connection.close()


async def test_idle_connections_do_not_hold_it_up(running: GatewayProcess) -> None:
    idle = await Connection.open(running.api_port)
    used = await Connection.open(running.api_port)
    assert (await used.ask(infer())).status == 200
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    running.signal(signal.SIGTERM)
    assert await exit_code(running) == 0
    assert loop.time() - began_s < 3
    assert await idle.ended()
    assert await used.ended()
    idle.close()
    used.close()


async def test_the_grace_ends_what_does_not(fake: FakeTriton, tmp_path: Path) -> None:
    gateway = process(fake, tmp_path, shutdown={"grace_s": 0.3})
    try:
        connection = await Connection.open((await started(gateway)).api_port)
        fake.models["echo"].hang()
        connection.send(infer())
        await fake.until(lambda: fake.infer_started == 1)
        gateway.signal(signal.SIGTERM)
        assert await exit_code(gateway, 3.0) == 0
        assert gateway.events()[-1]["left_behind"] == 1
        assert (await connection.reply()).status == 503
        assert await connection.ended()
    finally:
        await asyncio.to_thread(gateway.stop)
        connection.close()


async def test_an_old_server_is_left_behind_without_a_cancellation(tmp_path: Path) -> None:
    from tests.serving import fake_triton

    async with fake_triton(version="2.51.0") as fake:
        gateway = process(fake, tmp_path, shutdown={"grace_s": 0.3})
        try:
            await started(gateway)
            fake.models["echo"].hang()
            connection = await Connection.open(gateway.api_port)
            connection.send(infer())
            await fake.until(lambda: fake.infer_started == 1)
            connection.reset()
            gateway.signal(signal.SIGTERM)
            assert await exit_code(gateway) == 0
            assert gateway.events()[-1]["left_behind"] == 1
        finally:
            await asyncio.to_thread(gateway.stop)


async def test_a_signal_while_it_starts_ends_it(fake: FakeTriton, tmp_path: Path) -> None:
    fake.silent.add("ServerMetadata")
    gateway = process(fake, tmp_path, fleet={"statistics_timeout_s": 30.0})
    starting = asyncio.create_task(asyncio.to_thread(gateway.start))
    await fake.until(lambda: fake.calls["ServerMetadata"] > 0)
    gateway.signal(signal.SIGTERM)
    assert await exit_code(gateway) == 0
    with pytest.raises(AssertionError, match="the gateway ended"):
        await starting
    assert gateway.events()[-1]["event"] == "stopped"


async def test_every_line_of_the_log_is_json(running: GatewayProcess) -> None:
    await ask(running.api_port, infer())
    await ask(running.api_port, request("GET", "/nothing"))
    running.signal(signal.SIGTERM)
    await exit_code(running)
    lines = running.log_path.read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "starting"
    assert events.count("request") == 2
    assert events[-1] == "stopped"


async def _refused(port: int) -> None:
    """Wait until new connections are refused."""
    async with asyncio.timeout(5):
        while True:
            try:
                connection = await Connection.open(port)
            except ConnectionRefusedError:
                return
            connection.close()
            await asyncio.sleep(0.01)


# --- refusals


def run(*arguments: str, **environ: str) -> tuple[int, list[str]]:
    """Run the command to its end; return the exit code and the lines on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | environ,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def write(folder: Path, text: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(text)
    return path


GOOD = "servers:\n  - {name: a, grpc: '127.0.0.1:9'}\n"


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "api:\n  prot: 1\n", ["gateway.yaml:4: api.prot: "]),
        (GOOD + "api:\n  port: '1'\n", ["gateway.yaml:4: api.port: "]),
        (
            "servers:\n  - {name: a, grpc: 'http://x:1'}\nops:\n  port: -1\n",
            ["gateway.yaml:2: servers[0].grpc: ", "gateway.yaml:4: ops.port: "],
        ),
        ("servers: [\n", ["gateway.yaml:"]),
    ],
)
def test_a_bad_configuration_is_refused_with_file_line_and_key(
    tmp_path: Path, command: str, text: str, said: list[str]
) -> None:
    code, lines = run(command, "--config", str(write(tmp_path, text)))
    assert code == 2
    assert len(lines) == len(said)
    for line, begins in zip(lines, said, strict=True):
        assert begins in line


def test_a_missing_secret_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "ops:\n  key: {env: NO_SUCH_KEY}\n")
    code, lines = run("serve", "--config", str(path))
    assert code == 2
    (line,) = lines
    assert "NO_SUCH_KEY" in line
    assert "ops.key" in line


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    code, lines = run("serve", "--config", str(tmp_path / "none.yaml"))
    assert code == 2
    assert len(lines) == 1


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("section", ["api", "ops"])
def test_a_taken_port_is_refused_in_one_line(
    tmp_path: Path, taken_port: int, section: str, workers: int
) -> None:
    config = {**configuration({"a": "127.0.0.1:9"}), "workers": workers}
    config[section] |= {"host": "127.0.0.1", "port": taken_port}
    code, lines = run("serve", "--config", str(write(tmp_path, yaml.safe_dump(config))))
    assert code == 2
    address = f"127.0.0.1:{taken_port}"
    assert lines == [f"{section}.port: cannot listen on {address}: Address already in use"]


@pytest.mark.parametrize("broken", ["missing", "nonsense"])
def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path, broken: str) -> None:
    if broken == "nonsense":
        for name in ("c.pem", "k.pem"):
            (tmp_path / name).write_text("no certificate")
    text = GOOD + "api:\n  port: 0\n  tls: {cert_file: c.pem, key_file: k.pem}\nops: {port: 0}\n"
    code, lines = run("serve", "--config", str(write(tmp_path, text)))
    assert code == 2
    assert all("gateway.yaml:5: api.tls" in line for line in lines), lines
