import pytest
from pydantic import ValidationError

from config.control import ModelControl, ServerSettings
from config.listeners import RestrictedApi
from config.policies import ModelPolicy
from gateway.edge.routes import CATEGORIES

_ENTRY = {"apis": ["trace"], "header": "X-Key", "key": {"env": "K"}}


def test_the_documented_defaults():
    assert ModelControl().model_dump() == {
        "enabled": False,
        "concurrency": 2,
        "timeout_s": 1800.0,
        "replay": False,
        "state_file": None,
    }
    assert ServerSettings().model_dump() == {"enabled": False, "timeout_s": 5.0}


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        (ModelControl, "enabled", [1, "true"], [True]),
        (ModelControl, "concurrency", [0, 65, 1.5], [1, 64]),
        (ModelControl, "timeout_s", [0, -1], [0.1, 86_400]),
        (ModelControl, "replay", [0], [True]),
        (ModelControl, "state_file", [""], ["loads.json"]),
        (ServerSettings, "enabled", ["yes"], [True]),
        (ServerSettings, "timeout_s", [0], [1]),
    ],
)
def test_what_a_key_takes(section, key, bad, good):
    for value in good:
        section.model_validate({key: value})
    for value in bad:
        with pytest.raises(ValidationError):
            section.model_validate({key: value})


def test_the_parts_that_can_be_restricted_are_those_there_are():
    entry = RestrictedApi.model_validate({**_ENTRY, "apis": sorted(CATEGORIES)})
    assert set(entry.apis) == CATEGORIES


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"apis": []}, "the list is empty - write at least one part"),
        ({"apis": ["admin"]}, "Input should be 'health', 'metadata'"),
        ({"header": "X Key"}, "should match pattern"),
        ({"header": ""}, "should match pattern"),
        ({"key": "hunter2"}, "never written here itself"),
    ],
)
def test_what_cannot_be_restricted(changed, advice):
    with pytest.raises(ValidationError, match=advice):
        RestrictedApi.model_validate({**_ENTRY, **changed})


@pytest.mark.parametrize("pattern", ["a", "rack-*", "gpu-[0-9]", "?", "[!a]b", "a.b_c-d"])
def test_patterns_a_server_can_fit(pattern):
    assert ModelPolicy(placement=[pattern]).placement == (pattern,)


@pytest.mark.parametrize(
    ("placement", "advice"),
    [
        ([], "the list is empty - write a server's name"),
        (["A"], "fits no server"),
        (["a b"], "fits no server"),
        ([""], "fits no server"),
        (["a["], "close the bracket"),
    ],
)
def test_patterns_no_server_can_fit(placement, advice):
    with pytest.raises(ValidationError, match=advice):
        ModelPolicy(placement=placement)
