import pytest
from pydantic import ValidationError

from config.messages import complaints, explain
from config.models import Config

_SERVER = {"name": "a", "grpc": "a:1"}


def _explain(**keys: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"servers": [_SERVER], **keys})
    return [explain(complaint) for complaint in complaints(caught.value)]


def _server(**keys: object) -> list[str]:
    return _explain(servers=[{**_SERVER, **keys}])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"zone": 7}, "7 (a number) where text is due - write it in quotes"),
        ({"zone": True}, "true (true or false) where text is due - write it in quotes"),
        ({"zone": ["x"]}, "a list where text is due - write it in quotes"),
        ({"zone": ""}, "nothing is written here - write a value"),
        ({"grpc": None}, "nothing where text is due - write it in quotes"),
        (
            {"capacity": "x" * 99},
            f"'{'x' * 56}... (text) where a number is due - write it in digits, without quotes",
        ),
        (
            {"capacity": float("inf")},
            "inf (a number) where a number is due - write one that is not infinite",
        ),
        ({"capacity": 0}, "0 (a number) is too small - write more than 0"),
        ({"cost_per_hour": -1}, "-1 (a number) is too small - write 0 or more"),
        ({"channels": 65}, "65 (a number) is too large - write 64 or less"),
        (
            {"channels": 1.0},
            "1.0 (a number) where a whole number is due - write it in digits, without quotes",
        ),
        ({"tls": {"ca_file": 5}}, "5 (a number) where a file name is due - write it in quotes"),
        (
            {"tls": "on"},
            "'on' (text) where a mapping is due - write its keys below it, indented",
        ),
        (
            {"cancel_upstream": "Auto"},
            "'Auto' (text) is no choice - write one of: auto, always, never",
        ),
        ({"grpc": "http://a:1"}, "'http://a:1' - write host:port without the scheme"),
        ({"gprc": "a:1"}, "unknown key - did you mean 'grpc'?"),
    ],
)
def test_what_is_said_about_a_value(keys, message):
    assert _server(**keys) == [message]


def test_what_is_said_about_sections():
    assert _explain(request={"strict_integers": "yes"}) == [
        "'yes' (text) where true or false is due - write true or false, without quotes"
    ]
    assert _explain(models=5) == [
        "5 (a number) where a mapping is due - write its keys below it, indented"
    ]
    assert _explain(servers={"a": 1}) == [
        "a mapping where a list is due - write its items below it, each behind `- `"
    ]
    assert _explain(fleet={"default_version_quorum": 1.5}) == [
        "1.5 (a number) is too large - write 1 or less"
    ]
    assert _explain(upstream={"keepalive_interval_s": 9.5}) == [
        "9.5 (a number) is too small - write 300 or more"
    ]


def test_what_is_said_about_a_model():
    policies = "least_request, peak_ewma, round_robin"
    assert _explain(models={"hedging": {"policy": "random"}}) == [
        f"'random' (text) is no choice - write one of: {policies}"
    ]
    assert _explain(models={"hedging": {"after_s": 1}})[0].startswith(
        "unknown key - remove it (known here: deadline_s, "
    )
    assert _explain(models={"m": {"hedging": {}}}) == [
        "missing - add it: Time the first server has before a second one is asked, in seconds,"
        " at most the model's deadline"
    ]
    assert _explain(models={"m": {"capacity": {"a": 0}}}) == [
        "0 (a number) is too small - write more than 0"
    ]


def test_what_is_said_about_a_list():
    assert _server(serve="resnet*") == [
        "'resnet*' (text) where a list is due - write its items below it, each behind `- `"
    ]
    assert _server(serve=[5]) == ["5 (a number) where text is due - write it in quotes"]


def test_an_unlike_key_is_answered_with_the_known_ones():
    assert _explain(request={"zzz": 1}) == [
        "unknown key - remove it (known here: strict_integers, max_batch_rows, max_tensors)"
    ]


def test_a_missing_key_is_explained():
    assert _explain(servers=[{"name": "a"}]) == [
        "missing - add it: `host:port` of Triton's gRPC port"
        " (8001 unless Triton was told otherwise)"
    ]


@pytest.mark.parametrize(
    "key", ["hunter2", {"env": 8642}, {"env": ["hunter2"]}, {"file": 8642}, {"env": "hunter-2"}]
)
def test_what_stands_where_a_secret_is_due_is_never_shown(key):
    for message in _explain(ops={"key": key}) + _server(metadata={"k": key}):
        assert "hunter" not in message
        assert "8642" not in message


def test_metadata_that_is_no_mapping_is_not_shown():
    assert _server(metadata="hunter2") == [
        "text where a mapping is due - write its keys below it, indented"
    ]
