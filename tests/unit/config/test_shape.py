import pytest

from config.listeners import Api, ListenerTls
from config.models import Config
from config.policies import Balancing, Hedging, ModelPolicy
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
        (("servers", 3, "metadata", "tls"), Secret),
        (("servers", 3, "serve", 0), Server),
        (("models", "hedging"), ModelPolicy),
        (("models", "m", "hedging"), Hedging),
        (("models", "hedging", "hedging", "after_s"), Hedging),
        (("models", "m", "capacity", "hedging"), ModelPolicy),
        (("balancing",), Balancing),
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
    policies = ["least_request", "peak_ewma", "round_robin"]
    assert choices_at(("balancing", "policy")) == policies
    assert choices_at(("models", "hedging", "policy")) == policies
    assert words([True, "a"]) == ["true", "a"]


def test_an_item_of_a_list_has_the_choices_of_the_list():
    assert choices_at(("auth", "jwt", "algorithms", 1))[:2] == ["RS256", "RS384"]
    assert choices_at(("tenants", "a", "scopes", 0)) == ["admin"]
