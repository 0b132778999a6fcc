import pytest

from config.limit_checks import check_limits
from config.yaml_lines import parse


def _check(limit: str) -> list[str]:
    root, problems = parse(f"limits: {{a: {{{limit}}}}}\n".encode(), "f")
    assert problems == []
    return [str(problem) for problem in check_limits(root)]


@pytest.mark.parametrize(
    "limit", ["per_s: 1", "per_minute: 1, burst: 2", "concurrent: 3", "per_s: 1, of: rows"]
)
def test_limits_that_make_sense(limit):
    assert _check(limit) == []


def test_nothing_is_said_where_there_are_no_limits():
    root, _ = parse(b"servers: []\n", "f")
    assert list(check_limits(root)) == []


def test_a_limit_says_how_much():
    assert _check("of: rows") == [
        "f:1: limits.a: does not say how much - write `per_s` or `per_minute`, or `concurrent`"
    ]


def test_a_limit_has_one_measure():
    told = "is written too, and a limit has one measure - remove one, or make two limits"
    assert _check("per_s: 1, per_minute: 2") == [f"f:1: limits.a.per_minute: per_s {told}"]
    assert _check("per_minute: 1, concurrent: 2") == [
        f"f:1: limits.a.concurrent: per_minute {told}"
    ]


def test_places_have_neither_burst_nor_kind():
    told = "is for rates, and `concurrent` counts requests at a time - remove it"
    assert _check("concurrent: 1, burst: 2, of: rows") == [
        f"f:1: limits.a.burst: {told}",
        f"f:1: limits.a.of: {told}",
    ]
