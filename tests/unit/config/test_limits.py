import pytest
from pydantic import ValidationError

from config.limits import Limit
from config.loader import ConfigError, load_text

_SERVERS = "servers: [{name: a, grpc: 'h:1'}]\n"


def _refused(limits: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(f"{_SERVERS}limits:\n{limits}", "f.yaml")
    return str(caught.value)


def test_the_documented_defaults():
    assert Limit(per_s=1.0).model_dump() == {
        "tenants": None,
        "tiers": None,
        "models": None,
        "of": "requests",
        "per_s": 1.0,
        "per_minute": None,
        "burst": None,
        "concurrent": None,
        "per": "tenant",
        "mode": "enforce",
        "on_store_failure": "local",
    }


@pytest.mark.parametrize(
    "key",
    [
        {"per_s": 0.0},
        {"per_s": -1.0},
        {"per_s": float("inf")},
        {"burst": 0},
        {"concurrent": 0},
        {"of": "tokens"},
        {"per": "user"},
        {"mode": "off"},
        {"on_store_failure": "ignore"},
        {"tenants": []},
        {"tenants": [""]},
        {"models": ["a/b"]},
        {"rate": 1},
    ],
)
def test_values_that_make_no_limit(key):
    with pytest.raises(ValidationError):
        Limit(**key)


@pytest.mark.parametrize("name", ["a b", 'a"', "-a", "ä", "x" * 64])
def test_a_name_can_be_written_into_a_header(name):
    assert "f.yaml:3: limits" in _refused(f"  '{name}': {{per_s: 1}}\n")


def test_a_refusal_names_file_line_and_key():
    assert "f.yaml:4: limits.free.per_s" in _refused("  free:\n    per_s: 0\n")
    assert "f.yaml:3: limits.free: does not say how much" in _refused("  free: {of: rows}\n")
