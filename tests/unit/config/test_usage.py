import pytest
from pydantic import ValidationError

from config.usage import Usage


def test_the_documented_defaults():
    assert Usage().model_dump() == {
        "enabled": True,
        "flush_interval_s": 5.0,
        "retention_months": 13,
        "state_file": None,
    }


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("enabled", [0, "false"], [False]),
        ("flush_interval_s", [0, -1, "5"], [0.5, 60]),
        ("retention_months", [0, 121, 1.5], [1, 120]),
        ("state_file", ["", 5], ["usage.json"]),
        ("unknown", [1], []),
    ],
)
def test_what_a_key_takes(key, bad, good):
    for value in good:
        Usage.model_validate({key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            Usage.model_validate({key: value})
