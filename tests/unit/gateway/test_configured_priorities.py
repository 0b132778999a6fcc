"""What a configuration says of priority classes, as routing is told it."""

from typing import Any

import pytest
import yaml

from config.loader import load_text
from gateway.wiring import priorities_of
from routing.classes import CLASSES, CRITICAL, STANDARD
from routing.priorities import Grant, Priorities


def told(**sections: Any) -> Priorities:
    config = {"servers": [{"name": "a", "grpc": "a:8001"}], **sections}
    return priorities_of(load_text(yaml.safe_dump(config), "test.yaml"))


def test_the_usual_classes_are_there_without_a_word() -> None:
    found = told()
    assert (found.classes, found.usual, found.configured) == (CLASSES, STANDARD, False)
    assert found.tenants == {"anonymous": Grant()}


@pytest.mark.parametrize(
    "sections",
    [
        {"priority": {}},
        {"tiers": {"t": {"priority_class": "critical"}}},
        {"tenants": {"a": {"max_priority_class": "critical"}}},
        {"models": {"m": {"priority_levels": {"critical": 1, "standard": 2, "sheddable": 3}}}},
    ],
)
def test_a_word_anywhere_counts(sections: dict[str, Any]) -> None:
    assert told(**sections).configured


@pytest.mark.parametrize(
    "sections", [{"tiers": {"t": {}}}, {"tenants": {"a": {}}}, {"models": {"m": {}}}]
)
def test_tenants_without_a_word_of_classes_do_not(sections: dict[str, Any]) -> None:
    assert not told(**sections).configured


def test_ceilings_fall_evenly_and_never_rise() -> None:
    names = [{"name": "a"}, {"name": "standard", "queue_timeout_s": 0.0000001}, {"name": "c"}]
    classes = told(priority={"classes": names}).classes
    assert [round(cls.ceiling, 3) for cls in classes] == [1.0, 0.85, 0.7]
    assert [cls.rank for cls in classes] == [0, 1, 2]
    assert [cls.queue_timeout_us for cls in classes] == [0, 1, 0]
    low = [{"name": "standard", "ceiling": 0.4}, {"name": "b"}, {"name": "c", "ceiling": 0.1}]
    classes = told(priority={"classes": low}).classes
    assert [round(cls.ceiling, 3) for cls in classes] == [0.4, 0.4, 0.1]


def test_tenants_tiers_and_modes() -> None:
    found = told(
        priority={"mode": "observe"},
        tiers={"t": {"max_priority_class": "critical"}},
        tenants={"a": {"tier": "t", "priority_class": "standard"}},
    )
    assert not found.enforce
    assert found.tenants["a"] == Grant(STANDARD)
    assert found.tiers["t"] == Grant(most=CRITICAL)
    assert found.entitled("a", "") == (STANDARD, CRITICAL)
