import pytest
from pydantic import ValidationError

from config.servers import Server, ServerTls, Upstream

_SERVER = {"name": "a", "grpc": "a:1"}


def test_the_documented_defaults():
    assert Server(**_SERVER).model_dump() == {
        "name": "a",
        "grpc": "a:1",
        "http": None,
        "metrics": None,
        "capacity": 1.0,
        "zone": None,
        "cost_per_hour": None,
        "tls": None,
        "metadata": {},
        "expect": None,
        "cancel_upstream": "auto",
        "serve": ("*",),
        "pool": None,
        "channels": None,
    }
    assert Upstream().model_dump() == {
        "channels": 4,
        "connect_timeout_s": 2.0,
        "reconnect_backoff_min_s": 0.1,
        "reconnect_backoff_max_s": 1.0,
        "keepalive_interval_s": 300.0,
        "max_detached_calls": 256,
        "detached_max_s": 600.0,
        "max_reply_bytes": 2**31 - 1,
    }
    assert ServerTls().model_dump() == dict.fromkeys(
        ("ca_file", "cert_file", "key_file", "server_name")
    )


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        (Server, "capacity", [0, -1, "1", float("inf"), float("nan")], [1, 0.5]),
        (Server, "zone", ["", 7, True], ["7"]),
        (Server, "cost_per_hour", [-0.1, "1"], [0, 1.29]),
        (Server, "expect", ["", 1], ["triton"]),
        (Server, "cancel_upstream", ["Auto", True], ["auto", "always", "never"]),
        (Server, "serve", ["*", [], [5], [""], None], [["*"], ["a", "b-?"]]),
        (Server, "pool", ["", 7], ["large"]),
        (Server, "channels", [0, 65, 1.0, True], [1, 64]),
        (Server, "tls", [True, "yes", []], [{}, {"server_name": "a.example"}]),
        (Upstream, "channels", [0, 65, None], [1, 64]),
        (Upstream, "connect_timeout_s", [0, 2_147_484], [0.1]),
        (Upstream, "keepalive_interval_s", [299.9, 2_147_484], [300, 3600]),
        (Upstream, "max_detached_calls", [0, 1.5], [1]),
        (Upstream, "max_reply_bytes", [0, 2**31], [1, 2**31 - 1]),
    ],
)
def test_what_a_key_takes(section, key, bad, good):
    base = _SERVER if section is Server else {}
    for value in good:
        section.model_validate({**base, key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            section.model_validate({**base, key: value})


@pytest.mark.parametrize("name", ["a", "triton-grpc-protocol-gateway.key_1"])
def test_metadata_names_grpc_can_carry(name):
    assert Server(**_SERVER, metadata={name: {"env": "K"}}).metadata[name].env == "K"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("X-Key", "lower case"),
        ("", "lower case"),
        ("a b", "lower case"),
        ("é", "lower case"),
        ("grpc-timeout", "gRPC itself"),
        ("te", "gRPC itself"),
        ("user-agent", "gRPC itself"),
        ("key-bin", "use another name"),
    ],
)
def test_metadata_names_grpc_cannot_carry(name, advice):
    with pytest.raises(ValidationError, match=advice):
        Server(**_SERVER, metadata={name: {"env": "K"}})


@pytest.mark.parametrize("pattern", ["*", "resnet*", "a?", "v[0-9]", "[]]", "[!]a]x", "[[]x", "a]"])
def test_patterns_a_model_can_fit(pattern):
    assert Server(**_SERVER, serve=[pattern]).serve == (pattern,)


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("a/b", "without a slash"),
        ("a\0", "without a slash"),
        ("!secret", "a pattern cannot exclude"),
        ("a[b", "close the bracket"),
        ("[]", "close the bracket"),
        ("[!]", "close the bracket"),
        ("[a][b", "close the bracket"),
    ],
)
def test_patterns_no_model_can_fit(pattern, advice):
    with pytest.raises(ValidationError, match=advice) as caught:
        Server(**_SERVER, serve=["*", pattern])
    assert [error["loc"] for error in caught.value.errors()] == [("serve", 1)]


def test_a_list_without_a_pattern_is_told_once():
    with pytest.raises(ValidationError, match="the list is empty - write a pattern"):
        Server(**_SERVER, serve=[])
    with pytest.raises(ValidationError) as caught:
        Server(**_SERVER, serve=[5])
    assert len(caught.value.errors()) == 1
