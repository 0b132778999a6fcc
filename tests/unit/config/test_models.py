import pickle
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from config.fields import Section
from config.models import Config
from config.shape import section_of

_SERVER = {"name": "a", "grpc": "a:1"}


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        inner = section_of(field.annotation)
        if inner:
            yield from _sections(inner)


_ALL = list(dict.fromkeys(_sections(Config)))


@pytest.mark.parametrize("section", _ALL, ids=lambda section: section.__name__)
def test_every_key_says_what_it_means(section):
    assert section.__doc__
    for name, field in section.model_fields.items():
        assert field.description, name
        assert field.description.strip().endswith("."), name


@pytest.mark.parametrize("section", _ALL, ids=lambda section: section.__name__)
def test_every_section_is_strict_and_frozen(section):
    assert section.model_config["strict"]
    assert section.model_config["frozen"]
    assert section.model_config["extra"] == "forbid"
    assert section.model_config["hide_input_in_errors"]


def test_a_configuration_cannot_be_changed():
    config = Config.model_validate({"servers": [_SERVER]})
    with pytest.raises(ValidationError):
        config.api.port = 1  # type: ignore[misc]
    assert isinstance(config.servers, tuple)


def test_a_configuration_survives_a_process_border():
    config = Config.model_validate({"servers": [_SERVER], "models": {"m": {}}})
    assert pickle.loads(pickle.dumps(config)) == config
