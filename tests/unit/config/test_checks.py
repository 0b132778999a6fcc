import os
from pathlib import Path

import pytest

from config.checks import check
from config.yaml_lines import parse

_A = "servers: [{name: a, grpc: 'a:1'}]\n"


def _check(text: str, folder: Path = Path("/nowhere")) -> list[str]:
    root, problems = parse(text.encode(), "f")
    assert problems == []
    return [str(problem) for problem in check(root, folder)]


def _servers(*servers: str) -> str:
    return "servers:\n" + "".join(f"  - {{{server}}}\n" for server in servers)


def test_a_small_configuration_breaks_no_rule():
    assert _check(_A) == []
    assert _check("api: {port: 1}") == []


def test_names_and_addresses_are_unique():
    text = _servers("name: a, grpc: 'H:1'", "name: b, grpc: 'h.:1'", "name: a, grpc: 'h:2'")
    assert _check(text) == [
        "f:4: servers[2].name: 'a' is also the name of the server in f:2"
        " - each server needs its own",
        "f:3: servers[1].grpc: 'h.:1' is also the grpc of the server in f:2"
        " - each server needs its own",
    ]


@pytest.mark.parametrize(("key", "port"), [("http", 8000), ("metrics", 8002)])
def test_a_server_has_different_ports(key, port):
    assert _check(_servers(f"name: a, grpc: 'a:1', {key}: 'A:1'")) == [
        f"f:2: servers[0].{key}: 'A:1' is the address of grpc too - write another port"
        f" (Triton's own are {port} for {key} and 8001 for grpc)"
    ]
    assert _check(_servers(f"name: a, grpc: 'a:1', {key}: 'a:2'")) == []
    assert _check(_servers("name: a, grpc: 'a:1', http: 'a:2', metrics: 'a:2'")) == []


def test_certificate_and_key_come_together(tmp_path):
    (tmp_path / "x").touch()
    text = "name: a, grpc: 'a:1', tls: {%s}"
    assert _check(_servers(text % "cert_file: x, key_file: x"), tmp_path) == []
    assert _check(_servers(text % ""), tmp_path) == []
    assert _check(_servers(text % "cert_file: x"), tmp_path) == [
        "f:2: servers[0].tls.cert_file: key_file is missing - write both for mutual TLS, or neither"
    ]
    assert _check(_servers(text % "key_file: x, cert_file: ~"), tmp_path) == [
        "f:2: servers[0].tls.key_file: cert_file is missing - write both for mutual TLS, or neither"
    ]


def test_files_have_to_exist(tmp_path, monkeypatch):
    for name in ("there", "locked"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    readable = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "locked" not in path and readable(path, mode)
    )
    text = _servers("name: a, grpc: 'a:1', tls: {ca_file: gone}") + (
        "api: {tls: {cert_file: there, key_file: folder, client_ca_file: locked}}\n"
        f'ops: {{tls: {{cert_file: {tmp_path}/there, key_file: "a\\0b"}}}}\n'
    )
    problems = _check(text, tmp_path)
    assert [problem.split(" is not a file")[0] for problem in problems] == [
        f"f:2: servers[0].tls.ca_file: '{tmp_path}/gone'",
        f"f:3: api.tls.key_file: '{tmp_path}/folder'",
        f"f:3: api.tls.client_ca_file: '{tmp_path}/locked'",
        f"f:4: ops.tls.key_file: '{tmp_path}/a\\x00b'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "deadlines: {default_s: 700}",
            "f:1: deadlines.default_s: deadlines.default_s (700) is above deadlines.max_s (600)"
            " - lower it or raise deadlines.max_s",
        ),
        (
            "deadlines: {max_s: 30}",
            "f:1: deadlines.max_s: deadlines.default_s (60) is above deadlines.max_s (30)"
            " - lower it or raise deadlines.max_s",
        ),
        (
            "deadlines: {stream_max_s: 30}",
            "f:1: deadlines.stream_max_s: deadlines.stream_idle_s (60) is above"
            " deadlines.stream_max_s (30) - lower it or raise deadlines.stream_max_s",
        ),
        (
            "upstream: {reconnect_backoff_min_s: 2, reconnect_backoff_max_s: 1.5}",
            "f:1: upstream.reconnect_backoff_min_s: upstream.reconnect_backoff_min_s (2) is above"
            " upstream.reconnect_backoff_max_s (1.5)"
            " - lower it or raise upstream.reconnect_backoff_max_s",
        ),
        (
            "models: {a.b: {deadline_s: 601}, c: {}}",
            'f:1: models["a.b"].deadline_s: models["a.b"].deadline_s (601) is above'
            " deadlines.max_s (600) - lower it or raise deadlines.max_s",
        ),
        (
            "breaker: {open_min_s: 121}",
            "f:1: breaker.open_min_s: breaker.open_min_s (121) is above breaker.open_max_s (120)"
            " - lower it or raise breaker.open_max_s",
        ),
        ("breaker: {open_min_s: 5, open_max_s: 5}", None),
        ("deadlines: {default_s: 30, max_s: 30}\nmodels: {m: {deadline_s: 30}}", None),
        ("deadlines: {max_s: 900}\nmodels: {m: {deadline_s: 900}}", None),
        ("models: ~", None),
    ],
)
def test_durations_are_in_order(text, problem):
    assert _check(text) == ([problem] if problem else [])


def _state_file(name: str, folder: Path) -> list[str]:
    return _check(f"steering: {{state_file: {name}}}", folder)


def test_a_state_file_may_be_new_or_there(tmp_path):
    (tmp_path / "there.json").touch()
    for name in ("new.json", "there.json", f"{tmp_path}/new.json", "~"):
        assert _state_file(name, tmp_path) == []
    assert _state_file("new.json", Path()) == []


def test_a_state_file_needs_a_folder(tmp_path):
    assert _state_file("gone/a.json", tmp_path) == [
        f"f:1: steering.state_file: '{tmp_path}/gone' is not a folder"
        " - create it or correct the name"
    ]


@pytest.mark.parametrize("name", ["folder", "locked", '"a\\0b"'])
def test_a_state_file_is_a_file_that_can_be_read(tmp_path, monkeypatch, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in path)
    (problem,) = _state_file(name, tmp_path)
    assert problem.endswith("is not a file that can be read - name another one")


def test_each_state_file_is_a_file_of_its_own(tmp_path):
    both = "steering: {state_file: x}\nmodel_control: {state_file: %s}"
    assert _check(both % "y", tmp_path) == []
    assert _check(both % "x", tmp_path) == [
        "f:2: model_control.state_file: 'x' is the file of steering.state_file too"
        " - name another one"
    ]


def test_the_file_of_the_months_is_for_gateways_without_redis(tmp_path):
    usage = "usage: {state_file: x}"
    assert _check(usage, tmp_path) == []
    assert _check("redis: {url: 'redis://r'}", tmp_path) == []
    assert _check(f"{usage}\nredis: {{url: 'redis://r'}}", tmp_path) == [
        "f:1: usage.state_file: is used without `redis` only, which keeps the months otherwise"
        " - remove one of them"
    ]
    assert _check(f"{usage}\nsteering: {{state_file: x}}", tmp_path) == [
        "f:1: usage.state_file: 'x' is the file of steering.state_file too - name another one"
    ]
    (problem,) = _check("usage: {state_file: gone/a.json}", tmp_path)
    assert "is not a folder" in problem


def test_a_part_of_the_api_is_restricted_once():
    text = "api:\n  restricted:\n  - {apis: [trace, health]}\n  - {apis: [logging, health]}"
    assert _check(text) == [
        "f:4: api.restricted[1].apis[1]: 'health' is restricted in line 3 already - name it once"
    ]


def test_the_folder_of_a_state_file_can_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert _state_file("a.json", tmp_path) == [
        f"f:1: steering.state_file: no file can be written in '{tmp_path}'"
        " - let the gateway's user write there, or name another folder"
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway", "::ffff:127.0.0.1"])
def test_an_ops_listener_others_can_reach_needs_a_key(host):
    text = f"ops: {{host: '{host}', port: 1"
    assert len(_check(text + "}")) == 1
    assert "add ops.key" in _check(text + "}")[0]
    assert len(_check(text + ", key: ~, allow_unauthenticated: false}")) == 1
    assert _check(text + ", key: {env: K}}") == []
    assert _check(text + ", allow_unauthenticated: true}") == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost."])
def test_an_ops_listener_of_this_machine_needs_no_key(host):
    assert _check(f"ops: {{host: '{host}'}}") == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("api: {port: 8081}", "f:1: api.port"),
        ("ops: {port: 8080}", "f:1: ops.port"),
        ("api: {port: 9, host: 127.0.0.1}\nops: {port: 9}", "f:2: ops.port"),
        ("api: {port: 9, host: '::'}\nops: {port: 9, host: '::1'}", "f:2: ops.port"),
        ("api: {port: 9, host: 10.0.0.1}\nops: {port: 9}", None),
        ("api: {port: 0}\nops: {port: 0}", None),
        ("api: {port: 9}\nops: {port: 10}", None),
    ],
)
def test_the_listeners_have_ports_of_their_own(text, line):
    problems = _check(text)
    assert len(problems) == (line is not None)
    for problem in problems:
        assert problem.startswith(f"{line}: ")
        assert "is the port of both api and ops" in problem


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("servers: 5", ("servers",)),
        ("servers: [{name: a, grpc: 'a:1'}, {name: a, grpc: 'b:1'}]", ("servers", 0, "name")),
        ("servers: [{name: a, grpc: 'a:1', http: 'a:1'}]", ("servers", 0, "grpc")),
        ("servers: [{name: a, grpc: 'a:1', http: 'a:1'}]", ("servers", 0, "http")),
        ("servers: [{name: a, grpc: 'a:1', tls: {cert_file: x}}]", ("servers", 0, "tls")),
        ("api: {tls: {cert_file: x}}", ("api", "tls", "cert_file")),
        ("deadlines: {default_s: 700}", ("deadlines", "default_s")),
        ("deadlines: {default_s: 700}", ("deadlines",)),
        ("models: {m: {deadline_s: 601}}", ("models",)),
        ("breaker: {open_min_s: 121}", ("breaker", "open_min_s")),
        ("steering: {state_file: gone/x}", ("steering", "state_file")),
        ("api: {restricted: [{apis: [trace, trace]}]}", ("api", "restricted", 0, "apis")),
        ("api: {restricted: [{apis: [trace, trace]}]}", ("api", "restricted", 0, "apis", 1)),
        ("api: {restricted: [{apis: [trace, trace]}]}", ("api", "restricted")),
        ("ops: {host: 0.0.0.0}", ("ops", "host")),
        ("ops: {host: 0.0.0.0}", ("ops",)),
        ("ops: {host: 0.0.0.0, key: x}", ("ops", "key")),
        ("ops: {host: 0.0.0.0, allow_unauthenticated: 1}", ("ops", "allow_unauthenticated")),
        ("ops: {port: 8080}", ("ops", "port")),
        ("ops: {port: 8080}\napi: {prot: 9000}", ("api",)),
        ("ops: {port: 8080}\napi: {host: 1.2.3}", ("api", "host")),
    ],
)
def test_nothing_is_concluded_from_what_is_wrong_already(text, bad):
    root, _ = parse(text.encode(), "f")
    root.find(bad)[0][-1].bad = True
    problems = [str(problem) for problem in check(root, Path("/nowhere"))]
    assert [problem for problem in problems if "not a file" not in problem] == []


def test_a_file_that_was_complained_about_is_not_looked_for():
    root, _ = parse(b"api: {tls: {cert_file: x}}", "f")
    root.find(("api", "tls", "cert_file"))[0][-1].bad = True
    assert list(check(root, Path("/nowhere"))) == []


def test_callers_cannot_set_what_a_server_is_sent_for_the_gateway(tmp_path):
    text = """
servers: [{name: a, grpc: "h:1", metadata: {x-key: {env: KEY}}}]
api: {forward_headers: [X-Note, X-Key, 7]}
"""
    root, _ = parse(text.encode(), "f")
    assert [str(problem) for problem in check(root, tmp_path)] == [
        "f:3: api.forward_headers[1]: 'X-Key' is metadata of a server, which callers must not set"
        " - remove it"
    ]


def test_all_bodies_together_have_room_for_one(tmp_path):
    root, _ = parse(b"api: {max_body_bytes: 10, max_inbound_bytes: 9}\n", "f")
    assert [problem.key for problem in check(root, tmp_path)] == ["api.max_body_bytes"]
