"""Server files in our own form and in that of Prometheus, and what is said of bad ones."""

from pathlib import Path

import pytest

from config.discovery import Discovery
from config.loader import ConfigError, load_text
from config.server_files import servers_in
from config.servers import Server

_PATH = Path("/data/servers.yaml")


def _source(more: str = "", servers: str = "") -> Discovery:
    text = f"discovery: [{{name: f, file: {{path: x{more}}}, servers: {{{servers}}}}}]"
    return load_text(text, "/conf/f").discovery[0]


def _read(text: str, source: Discovery | None = None) -> tuple[Server, ...]:
    return servers_in(text.encode(), _PATH, source or _source())


def _problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _read(text)
    return [str(problem).removeprefix(f"{_PATH}:") for problem in caught.value.problems]


@pytest.mark.parametrize("form", ["%s", "servers:\n%s"])
def test_our_own_form(form):
    rows = "- {name: own, grpc: '10.0.0.1:9', zone: z, capacity: 2}\n- {grpc: '[fd00::1]:8001'}\n"
    one, other = _read(form % rows)
    assert (one.name, one.grpc, one.zone, one.capacity) == ("own", "10.0.0.1:9", "z", 2.0)
    assert (other.name, other.grpc) == ("f-fd00__1-8001", "[fd00::1]:8001")


def test_json_with_tabs():
    [server] = _read('[\n\t{"grpc": "10.0.0.1:8001"}\n]\n')
    assert server.name == "f-10.0.0.1-8001"
    assert "tab" in _problems("-\t- a\n\t- b")[0]


def test_the_format_of_prometheus():
    group = '{"targets": ["10.0.0.1:9001", "h"], "labels": %s}'
    labels = '{"zone": "z", "pool": "", "capacity": "2.5", "__meta_x": "y", "job": "triton"}'
    one, other = _read(f"[{group % labels}]")
    assert (one.name, one.grpc) == ("f-10.0.0.1-9001", "10.0.0.1:9001")
    assert (one.zone, one.pool, one.capacity, one.metrics) == ("z", None, 2.5, None)
    assert other.grpc == "h:8001"
    [heavy] = _read("- {targets: [h], labels: {capacity: 3}}")
    assert heavy.capacity == 3.0
    [bare] = _read('[{"targets": ["[fd00::1]"]}]')
    assert bare.grpc == "[fd00::1]:8001"


def test_targets_that_name_the_metrics_port():
    source = _source(", targets: metrics", "grpc_port: 9001")
    one, bare = _read("- targets: ['10.0.0.1:8002', '10.0.0.2']", source)
    assert (one.grpc, one.metrics) == ("10.0.0.1:9001", "10.0.0.1:8002")
    assert (bare.grpc, bare.metrics) == ("10.0.0.2:9001", None)


def test_an_entry_says_what_is_special_and_the_source_what_is_common(tmp_path: Path):
    (tmp_path / "ca.pem").touch()
    text = (
        "discovery: [{name: f, file: {path: x}, servers: {zone: z, http_port: 8000, serve: ['a*'],"
        " metadata: {key: {env: KEY}}, tls: {ca_file: ca.pem}}}]"
    )
    source = load_text(text, str(tmp_path / "f")).discovery[0]
    one, other = _read("- {grpc: 'a:1', zone: other, http: 'a:7'}\n- {grpc: 'b:1'}", source)
    assert (one.zone, one.http) == ("other", "a:7")
    assert (other.zone, other.http, other.serve) == ("z", "b:8000", ("a*",))
    assert other.metadata["key"].env == "KEY"
    assert other.tls is not None
    assert other.tls.ca_file == tmp_path / "ca.pem"


@pytest.mark.parametrize("text", ["[]", "servers: []", "- {targets: []}"])
def test_no_servers(text):
    assert _read(text) == ()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["1: the file is empty"]),
        ("- [", ["1: not valid YAML"]),
        ("5", ["1: not a mapping"]),
        ("a: 1", ["1: neither a list of servers nor a mapping with `servers`"]),
        ("servers: 5", ["1: neither a list of servers nor a mapping with `servers`"]),
        ("- {grpc: 'a:1', grpc: 'b:1'}", ["1: [0].grpc: written twice"]),
        ("- 7", ["1: [0]: 7 (a number) where a mapping is due"]),
        ("- {grpcc: 'a:1'}", ["1: [0].grpc: missing", "1: [0].grpcc: unknown key"]),
        ("- {grpc: 'a:1:2'}", ["1: [0].grpc: 'a:1:2' - put an IPv6 address in brackets"]),
        ("- {name: A, grpc: 'a:1'}", ["1: [0].name: 'A' - use at most 63"]),
        (
            "- {grpc: 'a:1'}\n- {name: b, grpc: 'A:1'}",
            ["2: [1].grpc: 'A:1' is also the grpc of the server in"],
        ),
        ("- {grpc: 'a:1', tls: {ca_file: x}}", ["1: [0].tls.ca_file: '/data/x' is not a file"]),
        ("- {targets: a}", ["1: [0].targets: not a list"]),
        ("- {targets: [7, '']}", ["1: [0].targets[0]: not text", "1: [0].targets[1]: not text"]),
        ("- {targets: ['a:x']}", ["1: [0].targets[0]: 'a:x' - write a port"]),
        ("- {targets: [a], labels: 7}", ["1: [0].labels: not a mapping"]),
        ("- {targets: [a], labels: {capacity: x}}", ["1: [0].labels.capacity: 'x' is not"]),
    ],
)
def test_what_is_wrong_in_a_file(text, problems):
    found = _problems(text)
    for problem in problems:
        assert any(said.startswith(problem) for said in found), found
