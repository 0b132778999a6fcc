"""Steering under way: what operators take out gets nothing new, at once and after a restart."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from tests.clients import ask, infer, request, tensor
from tests.fakes.triton import FakeTriton
from tests.gateways import GatewayProcess, configuration
from tests.operators import Done, operate
from tests.serving import Serving, fake_triton, serving, until


class Pair:
    """Two scripted Tritons, a gateway before them, and its operator."""

    def __init__(self, a: FakeTriton, b: FakeTriton, gateway: Serving) -> None:
        self.a = a
        self.b = b
        self.gateway = gateway

    async def run(self, *arguments: str) -> Done:
        return await operate(*arguments, ops_port=self.gateway.ops_port)

    async def done(self, *arguments: str) -> str:
        """Run a command that must succeed; return what it says."""
        done = await self.run(*arguments)
        assert done.code == 0, done.err
        return done.out

    async def served_by(self, count: int = 8, version: str = "") -> set[str]:
        """Send requests one after the other; return the servers that ran them."""
        before = (self.a.infer_started, self.b.infer_started)
        for _ in range(count):
            assert (await self.gateway.ask(infer(version=version))).status == 200
        after = (self.a.infer_started, self.b.infer_started)
        return {name for name, one, two in zip("ab", before, after, strict=True) if two > one}

    async def refused(self, version: str = "") -> tuple[int, str, str | None]:
        reply = await self.gateway.ask(infer(version=version))
        return reply.status, reply.error, reply.headers.get("retry-after")


@asynccontextmanager
async def pair_with(**sections: Any) -> AsyncIterator[Pair]:
    async with fake_triton(server_id="a") as a, fake_triton(server_id="b") as b:
        for fake in (a, b):
            fake.models["echo"].states = {"1": "READY", "2": "READY"}
        # Everybody has the full share from the start, so that few requests meet both servers.
        balancing = {"policy": "round_robin", "slow_start_s": 0}
        async with serving({"a": a, "b": b}, balancing=balancing, **sections) as gateway:
            yield Pair(a, b, gateway)
            # What the scripted servers, in this same process, do not offer is logged as well.
            told = [event["event"] for event in gateway.tracebacks]
            assert [event for event in told if "servicer method" not in event] == []


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with pair_with() as found:
        yield found


def raising(error: type[BaseException]) -> Any:
    return mock.Mock(side_effect=error)


NO_SERVER = (503, "no server is ready to take the request", "1")


async def test_a_cordoned_server_gets_nothing_new_and_ends_what_it_has(pair: Pair) -> None:
    assert await pair.served_by() == {"a", "b"}
    pair.a.models["echo"].hang()
    asking = asyncio.gather(*(pair.gateway.infer() for _ in range(4)))
    await pair.a.until(lambda: pair.a.infer_started - pair.a.infer_finished == 2)
    assert await pair.done("servers", "cordon", "a") == "a: cordoned\n"
    assert await pair.served_by() == {"b"}
    pair.a.models["echo"].release()
    assert [reply.status for reply in await asking] == [200] * 4
    assert pair.a.infer_cancelled == 0
    assert await pair.done("servers", "uncordon", "a") == "a: in use again\n"
    assert await pair.served_by() == {"a", "b"}


async def test_no_attempt_goes_to_a_server_cordoned_meanwhile(pair: Pair) -> None:
    """A request whose server vanishes is not sent on to one that was cordoned after it began."""
    pair.b.models["echo"].hang()
    asking = asyncio.gather(*(pair.gateway.infer() for _ in range(2)))
    await pair.b.until(lambda: pair.b.infer_started == 1)
    await pair.done("servers", "cordon", "a")
    before = pair.a.infer_started
    await pair.b.kill()
    assert sorted(reply.status // 100 for reply in await asking) == [2, 5]
    assert pair.a.infer_started == before


async def test_draining_waits_until_nothing_is_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    def nap(_: float) -> None:
        loop.call_soon_threadsafe(pair.a.models["echo"].release)
        time.sleep(0.05)

    monkeypatch.setattr("gateway.cli.steering.time", mock.Mock(sleep=nap))
    pair.a.models["echo"].hang()
    asking = asyncio.gather(*(pair.gateway.infer() for _ in range(4)))
    await pair.a.until(lambda: pair.a.infer_started == 2)
    done = await pair.run("servers", "drain", "a")
    assert done.code == 0
    first, second, *_, last = done.out.splitlines()
    assert (first, second, last) == ("a: cordoned", "a: 2 calls in flight", "a: drained")
    assert [reply.status for reply in await asking] == [200] * 4
    assert pair.gateway.pool.loads["a"].calls == 0


async def test_draining_waits_for_open_sequences(pair: Pair) -> None:
    for own_id in range(1, 9):
        body = json.loads(tensor(1.5)) | {"parameters": {"sequence_id": own_id}}
        assert (await pair.gateway.ask(infer(body=json.dumps(body).encode()))).status == 200
    left = (await pair.gateway.fleet())["open_sequences"]
    assert 0 < left < 8
    done = await pair.run("servers", "drain", "a", "--timeout", "0")
    assert f"a: 0 calls in flight, {left} open sequences after 0 s; it stays cordoned" in done.err


async def test_a_drain_that_takes_too_long_fails_and_stays_cordoned(pair: Pair) -> None:
    pair.a.models["echo"].hang()
    asking = asyncio.gather(*(pair.gateway.infer() for _ in range(2)))
    await pair.a.until(lambda: pair.a.infer_started == 1)
    done = await pair.run("servers", "drain", "a", "--timeout", "0.2")
    assert done.code == 1
    assert done.err.splitlines()[-1] == (
        "a: 1 call in flight after 0.2 s; it stays cordoned - drain it again to wait on, or"
        " `triton-gateway servers uncordon a`"
    )
    assert await pair.served_by() == {"b"}
    pair.a.models["echo"].release()
    await asking


async def test_a_drain_that_is_interrupted_stays_cordoned(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.steering.time", mock.Mock(sleep=raising(KeyboardInterrupt)))
    pair.a.models["echo"].hang()
    asking = asyncio.gather(*(pair.gateway.infer() for _ in range(2)))
    await pair.a.until(lambda: pair.a.infer_started == 1)
    done = await pair.run("servers", "drain", "a")
    assert done.code == 1
    assert "a: interrupted; it stays cordoned" in done.err
    pair.a.models["echo"].release()
    await asking


async def test_a_version_blocked_on_one_server_is_served_by_the_others(pair: Pair) -> None:
    block = ("model", "block", "echo", "--version", "1", "--server", "a")
    assert await pair.done(*block) == "echo version 1 on a: blocked\n"
    assert await pair.served_by(version="1") == {"b"}
    assert await pair.served_by(version="2") == {"a", "b"}
    await pair.done("model", "unblock", *block[2:])
    assert await pair.served_by(version="1") == {"a", "b"}


async def test_a_version_blocked_everywhere_is_not_ready(pair: Pair) -> None:
    """It is 503 and not 404: the servers have it, and the block may be taken back at any time."""
    done = await pair.run("model", "block", "echo", "--version", "1")
    assert "no server is left for echo 1: requests are refused with 503" in done.err
    assert await pair.refused("1") == NO_SERVER
    assert await pair.served_by() == {"a", "b"}  # the default version is 2


async def test_blocking_the_default_version_moves_nobody_to_another(pair: Pair) -> None:
    done = await pair.run("model", "block", "echo", "--version", "2")
    assert "no server is left for echo 2 (the default version)" in done.err
    assert await pair.refused() == NO_SERVER
    assert await pair.served_by(version="1") == {"a", "b"}


async def test_a_blocked_model_is_not_ready_in_any_version(pair: Pair) -> None:
    await pair.done("model", "block", "echo")
    for version in ("", "1", "2"):
        assert await pair.refused(version) == NO_SERVER
    await pair.done("model", "unblock", "echo")
    assert await pair.served_by() == {"a", "b"}


async def test_the_last_server_can_be_cordoned(pair: Pair) -> None:
    await pair.done("servers", "cordon", "a")
    done = await pair.run("servers", "cordon", "b")
    assert done.code == 0
    assert "no server is left for echo 1, echo 2 (the default version)" in done.err
    assert await pair.refused() == NO_SERVER


async def test_an_open_breaker_is_reset() -> None:
    breaker = {"consecutive_failures": 1, "open_min_s": 100, "open_max_s": 100}
    async with pair_with(breaker=breaker) as found:
        await found.served_by(2)
        found.a.models["echo"].drop = True
        assert [(await found.gateway.infer()).status for _ in range(4)] == [200] * 4
        found.a.models["echo"].drop = False
        assert await found.served_by() == {"b"}
        out = await found.done("breaker", "reset", "--server", "a")
        assert out in ("connection to a: closed\n", "echo/2 on a: closed\n")
        await until(found.gateway.up)
        assert await found.served_by() == {"a", "b"}
        assert await found.done("breaker", "reset", "--all") == "none of them was open\n"


async def test_the_explanation_names_the_reason(pair: Pair) -> None:
    await pair.done("servers", "cordon", "a")
    text = await pair.done("explain", "--model", "echo")
    assert text.startswith("echo version 2, chosen by: the default version\n")
    assert text.endswith("NOT CANDIDATES\n  a: cordoned by an operator\n")
    view = json.loads(await pair.done("explain", "--model", "echo", "--version", "1", "--json"))
    assert [row["server"] for row in view["candidates"]] == ["b"]
    assert view["excluded"] == {"a": "cordoned by an operator"}


async def test_a_past_request_is_explained(pair: Pair) -> None:
    await pair.done("servers", "cordon", "a")
    await pair.gateway.infer(X_Request_Id="r-1")
    await pair.gateway.infer("nobody-has-it", X_Request_Id="r-2")
    pair.gateway.gateway.flush()  # settled requests are told together, a tenth of a second later
    await pair.done("servers", "uncordon", "a")
    text = await pair.done("explain", "--request-id", "r-1")
    assert text.startswith("r-1: echo 2, ok, HTTP 200, ")
    assert text.splitlines()[2:] == [
        "Attempt 1: b - the only candidate",
        "  candidates: b",
        "  not a: cordoned by an operator",
    ]
    text = await pair.done("explain", "--request-id", "r-2")
    assert text.startswith("r-2: no known model, not_found, HTTP 404, ")
    assert text.endswith("No server was chosen for it.\n")


async def test_the_fleet_shows_what_was_done_and_by_whom(pair: Pair) -> None:
    await pair.done("servers", "cordon", "a")
    await pair.done("model", "block", "echo", "--version", "1", "--server", "b")
    view = json.loads(await pair.done("fleet", "--json"))
    assert [row["cordoned"] for row in view["servers"]] == [True, False]
    assert view["steering"]["blocks"] == [{"model": "echo", "version": 1, "server": "b"}]
    cordon, block = view["steering"]["audit"]
    assert (cordon["command"], cordon["server"]) == ("cordon", "a")
    assert "@" in block["by"]
    assert block["by"].endswith(" from 127.0.0.1")
    events = pair.gateway.events("steering")
    assert [event["by"] for event in events] == [cordon["by"], block["by"]]
    lines = (await pair.done("fleet")).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("a       cordoned  2.58.0          0         0  ") for line in lines)
    assert "  echo, version 1, on b" in lines


def gateway_before(fake: FakeTriton, folder: Path) -> GatewayProcess:
    state = {"state_file": str(folder / "state.json")}
    return GatewayProcess(configuration({"a": fake.address}, steering=state), folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_steering_survives_a_restart(
    fake: FakeTriton, tmp_path: Path, number: signal.Signals
) -> None:
    gateway = gateway_before(fake, tmp_path)
    try:
        await asyncio.to_thread(gateway.start)
        commands = (
            ("servers", "cordon", "a"),
            ("model", "block", "echo"),
            ("disable", "limits", "--for", "30m", "--reason", "why not"),
        )
        for command in commands:
            done = await operate(*command, ops_port=gateway.ops_port)
            assert done.code == 0
            assert "forgotten" not in done.err
        gateway.signal(number)
        await asyncio.to_thread(gateway.wait)
        gateway.log_path.unlink()
        await asyncio.to_thread(gateway.start)
        steering = (await asyncio.to_thread(gateway.fleet))["steering"]
        assert steering["cordoned"] == ["a"]
        assert steering["blocks"] == [{"model": "echo", "version": None, "server": None}]
        told = [entry["command"] for entry in steering["audit"]]
        assert told == ["cordon", "block", "disable"]
        (off,) = steering["disabled"]
        assert (off["feature"], off["reason"]) == ("limits", "why not")
        assert steering["survives_restart"] is True
        assert (await ask(gateway.api_port, infer())).status == 503
        assert (await ask(gateway.api_port, request("GET", "/v2/health/live"))).status == 200
    finally:
        await asyncio.to_thread(gateway.stop)
    assert [event["cordoned"] for event in gateway.events() if "cordoned" in event] == [["a"]]


async def test_a_damaged_state_file_is_refused_at_the_start(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text('{"schema_version": 1, "cordoned": "a", "blocks": [], "audit": []}')
    sections = {"steering": {"state_file": str(state)}}
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(configuration({"a": "127.0.0.1:1"}, **sections)))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"steering.state_file: {state}: cordoned: not a list - repair it, or remove it to start"
        " with every server and every model in use\n"
    )
    assert state.read_text().startswith('{"schema_version"')
