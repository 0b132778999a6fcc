"""The operators' commands: how the gateway is found, the key given, and every way that can fail."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.certificates import Authority
from tests.fakes.ports import closing, listening, silent, ssh
from tests.fakes.triton import FakeTriton
from tests.operators import Done, operate, run
from tests.serving import Serving, environment, serving

HOW = "put it into TRITON_GATEWAY_OPS_KEY, or name its file with --key-file"


def refusal(done: Done, code: int = 1) -> str:
    """The one line a command was refused with."""
    assert (done.code, done.out) == (code, "")
    (line,) = done.err.splitlines()
    return line


async def test_a_key_is_taken_from_the_environment_or_a_file(
    fake: FakeTriton, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("0ps key\n")
    with environment(OPS_KEY="0ps key"):
        async with serving({"a": fake}, ops={"key": {"env": "OPS_KEY"}}) as gateway:
            port = gateway.ops_port
            url = f"http://127.0.0.1:{port}"
            key = {"TRITON_GATEWAY_OPS_KEY": "0ps key"}
            wrong = {"TRITON_GATEWAY_OPS_KEY": "guess"}
            empty = {"TRITON_GATEWAY_OPS_KEY": ""}
            for env in (None, empty):
                done = await operate("fleet", ops_port=port, env=env)
                assert refusal(done) == f"{url} wants its key: {HOW}"
            done = await operate("fleet", ops_port=port, env=wrong)
            assert refusal(done) == f"{url} does not take this key; for another one, {HOW}"
            assert (await operate("fleet", ops_port=port, env=key)).code == 0
            with_file = ("servers", "cordon", "a", "--key-file", str(file))
            assert (await operate(*with_file, ops_port=port, env=wrong)).code == 0
            assert "0ps key" not in str(gateway.events())


async def test_nothing_there(tmp_path: Path) -> None:
    assert refusal(await operate("fleet", ops_port=1)) == (
        "http://127.0.0.1:1: no ops listener there (Connection refused) - is the gateway running?"
        " Its address is given with --ops or in TRITON_GATEWAY_OPS"
    )
    done = await operate("fleet", "--ops", "http://no-such-host.invalid:8081")
    assert refusal(done).startswith("http://no-such-host.invalid:8081: no ops listener there (")


async def test_the_option_wins_over_the_environment(gateway: Serving) -> None:
    url = f"http://127.0.0.1:{gateway.ops_port}/"
    assert (await operate("fleet", "--ops", url, ops_port=1)).code == 0


async def test_the_api_is_not_taken_for_the_ops_listener(gateway: Serving) -> None:
    for command in (("fleet",), ("servers", "cordon", "a")):
        assert refusal(await operate(*command, ops_port=gateway.port)) == (
            f"http://127.0.0.1:{gateway.port}: not the ops listener of a gateway (it answers 404)"
            " - give the address in `ops` of its configuration, not the one of its API"
        )


async def answer(reader: Any, writer: Any, body: bytes, head: bytes = b"200 OK") -> None:
    await reader.readuntil(b"\r\n\r\n")
    lines = b"HTTP/1.1 " + head + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(lines + body)
    await writer.drain()


async def moved(reader: Any, writer: Any) -> None:
    await answer(reader, writer, b"", b"302 Found\r\nLocation: http://127.0.0.1:1/fleet")


async def web_page(reader: Any, writer: Any) -> None:
    await answer(reader, writer, b"<html>")


async def cut(reader: Any, writer: Any) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (ssh, "not the ops listener"),
        (moved, "not the ops listener of a gateway (it answers 302)"),
        (web_page, "not the ops listener"),
        (cut, "not the ops listener"),
        (closing, "is it https:// there?"),
    ],
)
async def test_what_is_no_ops_listener_is_told_from_one(other: Any, why: str) -> None:
    async with listening(other) as address:
        done = await operate("fleet", ops_port=int(address.rpartition(":")[2]))
    assert why in refusal(done)


async def test_a_listener_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.ops_client._TIMEOUT_S", 0.2)
    async with listening(silent) as address:
        done = await operate("fleet", ops_port=int(address.rpartition(":")[2]))
    assert "no answer within 0.2 s - is the gateway still alive?" in refusal(done)


async def test_no_proxy_sees_the_key(gateway: Serving) -> None:
    proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": None, "NO_PROXY": None}
    assert (await operate("fleet", ops_port=gateway.ops_port, env=proxy)).code == 0


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8081",
        "localhost",
        "ftp://x",
        "http://",
        "http://:8081",
        "http://x:99999",
        "http://x:0",
        "http://[::1",
        "http://a b",
        "http://x/?q",
        "http://x/#f",
        "http://x\n",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    done = run("fleet", "--ops", url)
    assert refusal(done, 2).endswith(" is no address - write it like http://127.0.0.1:8081")


def test_a_key_in_the_address_is_refused_and_not_shown() -> None:
    said = refusal(run("fleet", "--ops", "http://user:s3cret@x:8081"), 2)
    assert said == f"--ops: the address holds no key - {HOW}"


def test_a_key_that_cannot_be_used_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    said = refusal(run("fleet", "--key-file", str(file)), 2)
    assert said == f"the ops key: file '{file}' cannot be read: No such file or directory" \
        " - create it"  # fmt: skip
    file.write_text("two\nlines")
    said = refusal(run("fleet", "--key-file", str(file)), 2)
    assert "holds a character that is not printable ASCII" in said
    said = refusal(run("fleet", env={"TRITON_GATEWAY_OPS_KEY": "k\xe9y"}), 2)
    assert "k\xe9y" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fleet", "--watch", "--json"), "--watch: not together with --json"),
        (("breaker", "reset"), "say which: --server, --model, both, or --all alone"),
        (("breaker", "reset", "--all", "--model", "m"), "say which: --server, --model, both,"),
        (("breaker", "reset", "--version", "1"), "--version: needs --model"),
        (("explain",), "give either --model or --request-id"),
        (("explain", "--model", "m", "--request-id", "r"), "give either --model or --request-id"),
        (("explain", "--request-id", "r", "--version", "1"), "--version: needs --model"),
        (("model", "block", "m", "--version", "0"), "--version"),
        (("model", "block"), "NAME"),
        (("servers", "drain", "a", "--timeout", "-1"), "--timeout"),
        (("servers", "stop", "a"), "stop"),
    ],
)
def test_bad_arguments_exit_with_2(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("servers", "cordon", "x"), "there is no server 'x'; there is a"),
        (("servers", "drain", "../fleet"), "there is no server '../fleet'; there is a"),
        (("model", "block", "x"), "there is no model 'x'; there is echo"),
        (("model", "unblock", "echo"), "there is no block 'echo', nor any other"),
        (("breaker", "reset", "--server", "x"), "there is no server 'x'; there is a"),
        (("explain", "--model", "x"), "there is no model 'x'; there is echo"),
        (
            ("explain", "--model", "echo", "--version", "9"),
            "the model 'echo' has no version 9; it has 1",
        ),
        (
            ("explain", "--request-id", "x"),
            "request 'x' is not among the last 1000 inference requests that this gateway has"
            " answered",
        ),
    ],
)
async def test_an_unknown_name_is_refused_with_the_known_ones(
    gateway: Serving, arguments: tuple[str, ...], said: str
) -> None:
    assert refusal(await operate(*arguments, ops_port=gateway.ops_port)) == said


async def test_what_changes_nothing_says_so(gateway: Serving) -> None:
    async def out(*arguments: str) -> str:
        return (await operate(*arguments, ops_port=gateway.ops_port)).out

    assert await out("servers", "uncordon", "a") == "a: was not cordoned\n"
    await out("servers", "cordon", "a")
    assert await out("servers", "cordon", "a") == "a: already cordoned\n"
    await out("model", "block", "echo")
    assert await out("model", "block", "echo") == "echo: already blocked\n"


async def test_what_a_restart_forgets_is_warned_of(gateway: Serving) -> None:
    done = await operate("servers", "cordon", "a", ops_port=gateway.ops_port)
    assert (done.code, done.out) == (0, "a: cordoned\n")
    assert "warning: forgotten at a restart: steering.state_file is not set" in done.err


async def test_an_ops_listener_with_tls_needs_a_known_authority(
    fake: FakeTriton, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", server=True)
    tls = {"cert_file": str(pair.cert), "key_file": str(pair.key)}
    async with serving({"a": fake}, ops={"tls": tls}) as gateway:
        where = f"https://localhost:{gateway.ops_port}"
        said = refusal(await operate("fleet", "--ops", where))
        assert said.startswith(f"{where}: its certificate is not trusted (")
        assert said.endswith(" - name the file of its CA in SSL_CERT_FILE")
        plain = await operate("fleet", "--ops", where.replace("https", "http"))
        assert "is it https:// there?" in refusal(plain)
        done = await operate("fleet", "--ops", where, env={"SSL_CERT_FILE": str(authority.ca)})
        assert (done.code, done.err) == (0, "")


async def test_watching_redraws_until_it_is_interrupted(gateway: Serving) -> None:
    url = f"http://127.0.0.1:{gateway.ops_port}"
    watching = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "fleet", "--watch", "--ops", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Tests that run in the background of a shell ignore interrupts, and so would their child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert watching.stdout is not None
    for _ in range(2):
        while (line := await watching.stdout.readline()) != b"Servers up: 1 of 1; models: 1\n":
            assert line
    watching.send_signal(signal.SIGINT)
    out, err = await watching.communicate()
    assert (watching.returncode, err) == (0, b"")
    assert b"\x1b" not in out  # no terminal, nothing for one


async def test_watching_goes_on_while_the_gateway_is_away(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    naps = iter(range(2))

    def nap(_: float) -> None:
        if next(naps, None) is None:
            raise KeyboardInterrupt

    module = sys.modules["gateway.cli.fleet"]  # its name in the package is that of the command
    monkeypatch.setattr(module, "time", mock.Mock(sleep=nap))
    monkeypatch.setattr(module, "_cleared", lambda text: shown.append(text) or "")
    first = iter([True])

    async def first_only(reader: Any, writer: Any) -> None:
        if next(first, False):
            await answer(reader, writer, view)

    async with serving({"a": fake}) as gateway:
        view = (await gateway.ops("/fleet")).body
    async with listening(first_only) as address:
        done = await operate("fleet", "--watch", ops_port=int(address.rpartition(":")[2]))
    assert done.code == 0
    assert [text.split(":")[0] for text in shown] == ["Servers up", "http", "http"]


async def test_json_is_the_whole_view(gateway: Serving) -> None:
    done = await operate("fleet", "--json", ops_port=gateway.ops_port)
    assert json.loads(done.out).keys() == (await gateway.ops("/fleet")).json.keys()
