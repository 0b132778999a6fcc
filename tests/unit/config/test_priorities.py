import pytest
from pydantic import ValidationError

from config.loader import load_text
from config.policies import ModelPolicy
from config.priorities import Priority, PriorityClass
from config.tenants import Tier
from config.tree import ConfigError

SERVERS = "servers: [{name: a, grpc: 'a:8001'}]\n"


def test_the_documented_defaults():
    assert Priority().model_dump() == {"mode": "enforce", "classes": (), "default": "standard"}
    assert PriorityClass(name="a").model_dump() == {
        "name": "a",
        "ceiling": None,
        "queue_timeout_s": None,
    }
    assert Tier().model_dump() == {"priority_class": None, "max_priority_class": None}


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "A"},
        {"name": ""},
        {"name": "a" * 64},
        {"name": "a", "ceiling": 0},
        {"name": "a", "ceiling": 1.1},
        {"name": "a", "queue_timeout_s": 0},
        {"name": "a", "level": 1},
        {},
    ],
)
def test_classes_that_are_none(fields):
    with pytest.raises(ValidationError):
        PriorityClass.model_validate(fields)


@pytest.mark.parametrize("level", [0, -1, 1.5, "1", 2**32, True])
def test_levels_are_positive_whole_numbers(level):
    with pytest.raises(ValidationError):
        ModelPolicy.model_validate({"priority_levels": {"critical": level}})


def test_mistakes_are_told_with_their_lines():
    text = SERVERS + (
        "priority:\n"
        "  mode: off\n"
        "tenants:\n"
        "  acme:\n"
        "    priority_class: critcal\n"
        "models:\n"
        "  m:\n"
        "    priority_levels: {critical: 1, standard: 2}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load_text(text, "g.yaml")
    told = [str(problem) for problem in refused.value.problems]
    assert [line.partition(" ")[0] for line in told] == ["g.yaml:3:", "g.yaml:6:", "g.yaml:9:"]
    assert told[1].endswith("there is no priority class 'critcal' - did you mean 'critical'?")


def test_a_whole_section():
    text = SERVERS + (
        "priority:\n"
        "  mode: observe\n"
        "  default: low\n"
        "  classes: [{name: high}, {name: low, ceiling: 0.5, queue_timeout_s: 2}]\n"
        "tiers: {gold: {priority_class: low, max_priority_class: high}}\n"
    )
    config = load_text(text, "g.yaml")
    assert config.priority is not None
    assert [cls.name for cls in config.priority.classes] == ["high", "low"]
    assert config.tiers["gold"].max_priority_class == "high"
