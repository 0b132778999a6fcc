"""What a process of the gateway is set up with."""

import os
import socket
from pathlib import Path

import pytest
import typer

from gateway.cli import runtime


def cpus(monkeypatch: pytest.MonkeyPatch, folder: Path, limit: str | None) -> int:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    file = folder / "cpu.max"
    if limit is not None:
        file.write_text(limit)
    return runtime.usable_cpus(file)


@pytest.mark.parametrize(
    ("limit", "usable"),
    [
        (None, 8),
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("10000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("nonsense\n", 8),
    ],
)
def test_processors_are_counted_as_the_container_limits_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, usable: int
) -> None:
    assert cpus(monkeypatch, tmp_path, limit) == usable


def test_slots_are_sockets_of_one_port() -> None:
    sockets = runtime.bind_slots("api", "127.0.0.1", 0, 3)
    try:
        assert len({sock.getsockname() for sock in sockets}) == 1
        assert len({sock.fileno() for sock in sockets}) == 3
        assert runtime.address(sockets[0]) == f"127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        for sock in sockets:
            sock.close()


def test_slots_do_not_share_a_port_with_another_gateway(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sockets = runtime.bind_slots("api", "127.0.0.1", 0, 2)
    port = sockets[0].getsockname()[1]
    try:
        with pytest.raises(typer.Exit):
            runtime.bind_slots("api", "127.0.0.1", port, 2)
    finally:
        for sock in sockets:
            sock.close()
    assert capsys.readouterr().err == (
        f"api.port: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )


def test_an_address_of_ipv6_has_brackets() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        assert runtime.address(sock) == f"[::1]:{sock.getsockname()[1]}"
