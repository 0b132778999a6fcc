import pytest
from pydantic import ValidationError

from config.policies import (
    Balancing,
    Breaker,
    Deadlines,
    Fleet,
    Hedging,
    Logging,
    ModelPolicy,
    Request,
    Retries,
    Shutdown,
    Steering,
)


def test_the_documented_defaults():
    assert Deadlines().model_dump() == {
        "default_s": 60.0,
        "max_s": 600.0,
        "stream_idle_s": 60.0,
        "stream_max_s": 3600.0,
    }
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
        "policy": None,
        "capacity": {},
        "concurrency": None,
        "pool": None,
        "placement": None,
        "priority_levels": {},
        "compatible": False,
        "hedging": None,
    }
    assert Balancing().model_dump() == {
        "policy": "least_request",
        "zone": None,
        "slow_start_s": 30.0,
    }
    assert Breaker().model_dump() == {
        "consecutive_failures": 5,
        "min_success_rate": 0.8,
        "min_requests": 20,
        "open_min_s": 5.0,
        "open_max_s": 120.0,
        "max_ejected_share": 0.5,
    }
    assert Retries().model_dump() == {"max_attempts": 3, "budget": 0.1, "min_per_s": 1.0}
    assert Hedging(after_s=1).model_dump() == {"after_s": 1.0, "max_share": 0.02}
    assert Steering().model_dump() == {"state_file": None}
    assert Request().model_dump() == {
        "strict_integers": True,
        "max_batch_rows": 65_536,
        "max_tensors": 4096,
    }
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
        (ModelPolicy, "policy", ["random", True], ["round_robin", "peak_ewma", None]),
        (ModelPolicy, "capacity", [{"A": 1}, {"a": 0}, {"a": "1"}, ["a"]], [{}, {"a": 0.5}]),
        (ModelPolicy, "pool", ["", 7], ["large"]),
        (ModelPolicy, "compatible", [1, "yes"], [True]),
        (ModelPolicy, "hedging", [{}, True, {"after_s": 0}], [{"after_s": 0.1}]),
        (ModelPolicy, "hedging", [{"after_s": 1, "max_share": 0.51}], [None]),
        (Balancing, "policy", ["random", None], ["least_request", "peak_ewma"]),
        (Balancing, "zone", ["", 7], ["7"]),
        (Balancing, "slow_start_s", [-1], [0]),
        (Breaker, "consecutive_failures", [0, 1.5], [1]),
        (Breaker, "min_success_rate", [0, 1.1], [0.1, 1]),
        (Breaker, "min_requests", [0], [1]),
        (Breaker, "open_min_s", [0], [0.1]),
        (Breaker, "max_ejected_share", [-0.1, 1.1], [0, 1]),
        (Retries, "max_attempts", [0, 11], [1, 10]),
        (Retries, "budget", [-0.1, 1.1], [0, 1]),
        (Retries, "min_per_s", [-1, float("inf")], [0]),
        (Steering, "state_file", ["", 5], ["steering.json"]),
        (Request, "strict_integers", [0, "no"], [False]),
        (Request, "max_batch_rows", [0, 1.5], [1]),
        (Request, "max_tensors", [0, 4097], [1, 4096]),
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
