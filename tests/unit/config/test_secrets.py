from pathlib import Path

import pytest
from pydantic import ValidationError

from config.fields import Source
from config.models import Config
from config.secrets import Secret, secrets_in


def _refusal(value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Secret.model_validate(value)
    return str(caught.value)


@pytest.mark.parametrize("value", ["hunter2", 5, None, ["hunter2"], True])
def test_a_literal_secret_is_refused_with_both_forms_and_never_shown(value):
    message = _refusal(value)
    assert "{env: NAME}" in message
    assert "{file: PATH}" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("value", [{}, {"env": "A", "file": "b"}, {"value": "hunter2"}])
def test_a_secret_has_exactly_one_source(value):
    message = _refusal(value)
    assert "exactly one source" in message
    assert "hunter2" not in message


def test_a_value_in_place_of_a_variable_name_is_not_shown():
    message = _refusal({"env": "hunter-2"})
    assert "use letters, digits and _" in message
    assert "hunter-2" not in message


def test_a_secret_can_be_passed_as_an_object():
    secret = Secret(env="A")
    assert Secret.model_validate(secret) is secret


def test_the_environment_gives_the_value():
    assert Secret(env="KEY").reveal({"KEY": "hunter2"}) == "hunter2"


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"hunter2", "hunter2"), (b"hunter2\n", "hunter2"), (b"hunter2\r\n", "hunter2")],
)
def test_one_newline_at_the_end_of_a_file_does_not_count(tmp_path, content, value):
    (tmp_path / "key").write_bytes(content)
    secret = Secret.model_validate({"file": "key"}, context=Source(tmp_path))
    assert secret.reveal({}) == value


@pytest.mark.parametrize("content", [b"hunter2\n\n", b"hunt\ner2", b"hunter2\xe9", b"\x00"])
def test_what_a_header_cannot_carry_is_refused_without_showing_it(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not printable ASCII") as caught:
        Secret(file=path).reveal({})
    assert str(path) in str(caught.value)
    assert "hunt" not in str(caught.value)


def test_missing_secrets_are_named(tmp_path):
    with pytest.raises(ValueError, match="'KEY' is not set"):
        Secret(env="KEY").reveal({"key": "x"})
    with pytest.raises(ValueError, match="'KEY' is empty"):
        Secret(env="KEY").reveal({"KEY": ""})
    with pytest.raises(ValueError, match=r"gone' cannot be read: No such file"):
        Secret(file=tmp_path / "gone").reveal({})
    with pytest.raises(ValueError, match="cannot be read: not a possible file name"):
        Secret(file=Path("a\0b")).reveal({})


def test_neither_repr_nor_the_configuration_holds_a_value():
    secret = Secret(env="KEY")
    secret.reveal({"KEY": "hunter2"})
    assert "hunter2" not in repr(secret)
    assert repr(secret) == "Secret(env='KEY', file=None)"


def test_every_secret_of_a_configuration_is_found_with_its_path():
    config = Config.model_validate(
        {
            "servers": [
                {"name": "a", "grpc": "a:1"},
                {"name": "b", "grpc": "b:1", "metadata": {"k": {"env": "K"}}},
            ],
            "ops": {"key": {"file": "ops"}},
            "models": {"m": {"deadline_s": 1}},
        }
    )
    assert list(secrets_in(config)) == [
        (("servers", 1, "metadata", "k"), Secret(env="K")),
        (("ops", "key"), Secret(file=Path("ops"))),
    ]
