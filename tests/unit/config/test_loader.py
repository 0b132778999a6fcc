import os
from pathlib import Path

import pytest

from config import loader
from config.loader import ConfigError, Problem, load, load_text, missing_secrets

_A = "servers: [{name: a, grpc: 'a:1'}]\n"


def _problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "f")
    return [str(problem) for problem in caught.value.problems]


def _refused(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [str(problem).replace(str(path), "PATH") for problem in caught.value.problems]


def test_text_becomes_a_configuration():
    config = load_text(_A + "api: {port: 0}", "f")
    assert (config.servers[0].name, config.servers[0].grpc, config.api.port) == ("a", "a:1", 0)


def test_equal_configurations_are_equal_wherever_they_were_written():
    assert load_text(_A, "f") == load_text("\n\n" + _A, "g")
    assert load_text(_A, "f") != load_text(_A + "api: {port: 0}", "f")


def test_all_problems_are_told_at_once_in_line_order():
    text = """\
servers:
  - name: A
    grpc: http://10.0.0.5:8001
    htp: a:1
    metadata: {k: hunter2}
  - name: 5
  - {name: c, grpc: "c:1", http: "c:1"}
api:
  port: "80"
  port: 81
upstream:
ops: {host: 0.0.0.0}
models: {a/b: {idempotent: 1}}
loging: {}
deadlines: {default_s: 700}
"""
    assert _problems(text) == [
        "f:2: servers[0].name: 'A' - use at most 63 of a-z 0-9 . _ -"
        " and begin and end with a letter or digit",
        "f:3: servers[0].grpc: 'http://10.0.0.5:8001' - write host:port without the scheme",
        "f:4: servers[0].htp: unknown key - did you mean 'http'?",
        "f:5: servers[0].metadata.k: a secret is never written here itself - write {env: NAME}"
        " to take it from the environment or {file: PATH} to read it from a file",
        "f:6: servers[1].grpc: missing - add it: `host:port` of Triton's gRPC port"
        " (8001 unless Triton was told otherwise)",
        "f:6: servers[1].name: 5 (a number) where text is due - write it in quotes",
        "f:7: servers[2].http: 'c:1' is the address of grpc too - write another port"
        " (Triton's own are 8000 for http and 8001 for grpc)",
        "f:9: api.port: '80' (text) where a whole number is due"
        " - write it in digits, without quotes",
        "f:10: api.port: written twice, first in line 9 - keep one of them",
        "f:11: upstream: nothing is written here - write a value, or remove the key",
        "f:12: ops.host: '0.0.0.0' can be reached from other machines - add ops.key, listen on"
        " 127.0.0.1, or write `allow_unauthenticated: true` when the network keeps strangers out",
        "f:13: models[\"a/b\"]: 'a/b' - write the model's name as Triton lists it, without a slash",
        'f:13: models["a/b"].idempotent: 1 (a number) is no choice - write auto, true or false',
        "f:14: loging: unknown key - did you mean 'logging'?",
        "f:15: deadlines.default_s: deadlines.default_s (700) is above deadlines.max_s (600)"
        " - lower it or raise deadlines.max_s",
    ]


def test_a_problem_is_a_value():
    with pytest.raises(ConfigError) as caught:
        load_text("servers: []", "f")
    assert caught.value.problems == [
        Problem(
            "f",
            1,
            "servers",
            "the list is empty - write at least one server, or use `discovery`",
        )
    ]
    assert (
        str(caught.value)
        == "f:1: servers: the list is empty - write at least one server, or use `discovery`"
    )


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("api: {}", ["f:1: servers: missing - add it: the Triton servers, or `disc"]),
        ("servers: ~", ["f:1: servers: nothing where a list is due"]),
        ("servers:", ["f:1: servers: nothing is written here"]),
        ("servers: [{name: a, grpc: }]", ["f:1: servers[0].grpc: nothing is written here"]),
        ("servers: [{name: a, 1: 2}]", ["f:1: servers[0]: a key is not text"]),
        (
            _A + "prot:",
            ["f:2: prot: nothing is written here", "f:2: prot: unknown key"],
        ),
        (_A + "models: {m: 5}", ["f:2: models.m: 5 (a number) where a mapping is due"]),
        (
            _A + "models: {a/b: }",
            [
                "f:2: models[\"a/b\"]: 'a/b' - write",
                'f:2: models["a/b"]: nothing is written here',
            ],
        ),
        ("5", ["f:1: not a mapping"]),
        ("", ["f:1: the file is empty"]),
        ("a: \ud800", ["f:1: not UTF-8 text"]),
    ],
)
def test_each_mistake_is_told_once(text, problems):
    found = _problems(text)
    assert len(found) == len(problems), found
    for line, start in zip(found, problems, strict=True):
        assert line.startswith(start)


def test_an_unknown_key_may_be_meant_for_the_one_missing_beside_it():
    """`api.prot: 9000` is one mistake, although the default port would collide with ops."""
    text = _A + "api: {prot: 9000}\nops: {port: 8080}"
    assert _problems(text) == ["f:2: api.prot: unknown key - did you mean 'port'?"]


def test_secrets_are_in_no_message_and_no_traceback():
    with pytest.raises(ConfigError) as caught:
        load_text(_A + "ops: {key: hunter2}", "f")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_file_is_read_and_its_folder_is_where_files_are_looked_for(tmp_path):
    (tmp_path / "ca.pem").touch()
    path = tmp_path / "gw.yaml"
    path.write_text("servers: [{name: a, grpc: 'a:1', tls: {ca_file: ca.pem}}]")
    tls = load(path).servers[0].tls
    assert tls is not None
    assert tls.ca_file == tmp_path / "ca.pem"


@pytest.mark.parametrize("name", ["gone.yaml", "a\0b", "x" * 300])
def test_a_file_that_cannot_be_read(tmp_path, name):
    problems = _refused(tmp_path / name)
    assert len(problems) == 1
    assert problems[0].startswith("PATH:1: cannot be read: ")
    assert "correct the path" in problems[0]


def test_no_more_of_a_file_is_read_than_can_be_used():
    assert "larger than" in _refused(Path("/dev/zero"))[0]


def _folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return tmp_path


def test_a_folder_is_joined_in_name_order(tmp_path):
    folder = _folder(
        tmp_path,
        b_yml="servers: [{name: b, grpc: 'b:1'}]\napi: {host: 10.0.0.1}",
        a_yaml=_A + "api: {port: 1}",
        _hidden_yaml="not: {valid",
        notes_txt="not: {valid",
    )
    config = load(folder)
    assert [server.name for server in config.servers] == ["a", "b"]
    assert (config.api.host, config.api.port) == ("10.0.0.1", 1)


def test_conflicts_between_files_name_both(tmp_path):
    folder = _folder(tmp_path, a_yaml=_A + "api:\n  port: 1", b_yaml="\n" + _A + "api: {port: 1}")
    assert _refused(folder) == [
        "PATH/b.yaml:2: servers[0].grpc: 'a:1' is also the grpc of the server in PATH/a.yaml:1"
        " - each server needs its own",
        "PATH/b.yaml:2: servers[0].name: 'a' is also the name of the server in PATH/a.yaml:1"
        " - each server needs its own",
        "PATH/b.yaml:3: api.port: also written in PATH/a.yaml:3 - keep it in one file only",
    ]


def test_a_broken_file_does_not_make_the_others_look_incomplete(tmp_path):
    folder = _folder(
        tmp_path, a_yaml=_A.replace("servers", "{servers"), b_yaml="api: {port: x}\nops: {host: h}"
    )
    (tmp_path / "c.yaml").mkdir()
    problems = _refused(folder)
    assert [problem.split(" ")[0] for problem in problems] == [
        "PATH/a.yaml:2:",
        "PATH/b.yaml:1:",
        "PATH/c.yaml:1:",
    ]
    assert "Is a directory" in problems[2]


def test_a_broken_file_alone_refuses_the_folder(tmp_path):
    problems = _refused(_folder(tmp_path, a_yaml=_A, b_yaml=""))
    assert problems == ["PATH/b.yaml:1: the file is empty - write at least `servers:`"]


def test_a_folder_without_files(tmp_path):
    assert _refused(tmp_path) == [
        "PATH:1: the folder holds no *.yaml or *.yml file - put one there"
    ]


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    assert _refused(tmp_path) == [
        "PATH:1: cannot be read: Permission denied - correct the path or its permissions"
    ]


def test_missing_secrets_are_told_with_their_place(tmp_path):
    text = (
        "servers:\n  - name: a\n    grpc: a:1\n    metadata:\n      k: {env: K}\n"
        "ops: {key: {file: ops-key}}\n"
    )
    (tmp_path / "gw.yaml").write_text(text)
    config = load(tmp_path / "gw.yaml")
    problems = [str(problem).replace(str(tmp_path), "T") for problem in missing_secrets(config, {})]
    assert problems == [
        "T/gw.yaml:5: servers[0].metadata.k: environment variable 'K' is not set"
        " - set it before the gateway starts",
        "T/gw.yaml:6: ops.key: file 'T/ops-key' cannot be read: No such file or directory"
        " - create it",
    ]
    (tmp_path / "ops-key").write_text("x\n")
    assert missing_secrets(config, {"K": "v"}) == []


def test_secrets_of_a_configuration_that_was_never_written_are_told_too():
    config = loader.Config.model_validate(
        {"servers": [{"name": "a", "grpc": "a:1"}], "ops": {"key": {"env": "K"}}}
    )
    assert [str(problem) for problem in missing_secrets(config, {})] == [
        "configuration:1: ops.key: environment variable 'K' is not set"
        " - set it before the gateway starts"
    ]
