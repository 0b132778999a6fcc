import pytest
from pydantic import ValidationError

from config.policies import Deadlines, Fleet, Logging, ModelPolicy, Request, Shutdown


def test_the_documented_defaults():
    assert Deadlines().model_dump() == {"default_s": 60.0, "max_s": 600.0}
    assert Fleet().model_dump() == {
        "statistics_interval_s": 2.0,
        "statistics_timeout_s": 2.0,
        "index_interval_s": 30.0,
        "index_timeout_s": 20.0,
        "silent_probes": 3,
        "default_version_quorum": 0.5,
        "recently_ready_s": 300.0,
    }
    assert ModelPolicy().model_dump() == {
        "deadline_s": None,
        "default_version": None,
        "idempotent": "auto",
    }
    assert Request().model_dump() == {"strict_integers": True}
    assert Logging().model_dump() == {
        "format": "json",
        "level": "info",
        "requests": "all",
        "sample": 1.0,
    }
    assert Shutdown().model_dump() == {"drain_delay_s": 5.0, "grace_s": 30.0}


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        (Deadlines, "default_s", [0], [0.001]),
        (Fleet, "silent_probes", [0, 101], [1]),
        (Fleet, "default_version_quorum", [0, 1.01], [0.01, 1]),
        (ModelPolicy, "default_version", [0, "1", 1.0], [1]),
        (ModelPolicy, "idempotent", [1, "true", None], [True, False, "auto"]),
        (Request, "strict_integers", [0, "no"], [False]),
        (Logging, "level", ["warn", "INFO"], ["warning"]),
        (Logging, "sample", [-0.1, 1.1], [0, 1]),
        (Shutdown, "drain_delay_s", [-1], [0]),
    ],
)
def test_what_a_key_takes(section, key, bad, good):
    for value in good:
        section.model_validate({key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            section.model_validate({key: value})
