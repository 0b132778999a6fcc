"""What is switched off: for how long, what is written of it, what is read."""

from typing import Any

import pytest

from gateway.switches import MAX_S, Feature, Switch, Switches, check_reason, parse_duration
from tests.pipeline.scripted import Clock

SWITCH = Switch(Feature.AUTH, True, "ann", "the issuer is down", 1.5, 61.5)


def test_a_feature_is_off_until_its_time_is_over() -> None:
    clock = Clock()
    switches = Switches(clock)
    assert not switches.disabled("auth")
    switches.until_s = {"auth": clock() + 10}
    assert (switches.disabled("auth"), switches.disabled(Feature.AUTH)) == (True, True)
    assert not switches.disabled("limits")
    clock.now_s += 10
    assert not switches.disabled("auth")


def test_a_switch_is_read_as_it_was_written_whatever_newer_gateways_add() -> None:
    assert Switch.of_entry(SWITCH.entry()) == SWITCH
    assert Switch.of_entry({**SWITCH.entry(), "tenants": ["a"], "schema": 2}) == SWITCH


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"feature": "everything"}, "feature: nothing that can be switched off"),
        ({"feature": 1}, "feature: not a str"),
        ({"off": "yes"}, "off: not a bool"),
        ({"by": None}, "by: not a str"),
        ({"since_s": True}, "since_s: not a float or int"),
        ({"since_s": 1e300}, "since_s: not seconds of the epoch"),
        ({"until_s": -1}, "until_s: not seconds of the epoch"),
    ],
)
def test_what_is_no_switch_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        Switch.of_entry({**SWITCH.entry(), **changes})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("24h", MAX_S),
        ("1h1m1s", 3661),
        ("1440m", MAX_S),
    ],
)
def test_times_are_written_as_people_do(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0s",
        "0",
        "30",
        "30 m",
        "m",
        "1m1h",
        "-5m",
        "1.5h",
        "24h1s",
        "25h",
        "9999999s",
        "٣m",
        "1d",
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time|must be more than nothing and at most 24h"):
        parse_duration(text)


def test_a_reason_is_one_line() -> None:
    assert check_reason("") == ""
    assert check_reason("ärger mit acme") == "ärger mit acme"
    for text in ("two\nlines", "x" * 201, "\x1b[31m"):
        with pytest.raises(ValueError, match="one line of at most 200 characters"):
            check_reason(text)
