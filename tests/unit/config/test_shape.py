import pytest

from config.listeners import Api, ListenerTls
from config.models import Config
from config.policies import ModelPolicy
from config.secrets import Secret
from config.servers import Server, ServerTls
from config.shape import choices_at, section_at, section_of, words


@pytest.mark.parametrize(
    ("loc", "section"),
    [
        ((), Config),
        (("api",), Api),
        (("api", "port"), Api),
        (("api", "tls"), ListenerTls),
        (("servers", 3), Server),
        (("servers", 3, "tls", "ca_file"), ServerTls),
        (("servers", 3, "metadata", "name"), Secret),
        (("models", "api"), ModelPolicy),
        (("nothing",), Config),
    ],
)
def test_the_section_at_a_path(loc, section):
    assert section_at(loc) is section


def test_plain_types_hold_no_section():
    assert section_of(int) is None
    assert section_of(tuple[int, ...]) is None


def test_choices_are_told_as_they_are_written():
    assert choices_at(("models", "m", "idempotent")) == ["auto", "true", "false"]
    assert words([True, "a"]) == ["true", "a"]
