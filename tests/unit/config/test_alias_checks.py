import pytest

from config.alias_checks import check_aliases
from config.yaml_lines import parse


def _check(alias: str) -> list[str]:
    root, problems = parse(f"aliases: {{a: {{{alias}}}}}\n".encode(), "f")
    assert problems == []
    return [str(problem) for problem in check_aliases(root)]


@pytest.mark.parametrize(
    "alias",
    [
        "",
        "arms: [{model: m, weight: 1}]",
        "arms: [{model: m, version: 1, weight: 1}, {model: m, version: 2, weight: 0}]",
        "arms: [{model: m, weight: 1}, {model: m, version: 2, weight: 1}]",
        "arms: []",
        "arms: [{weight: 1}, {weight: 1}]",
        "arms: [{model: m}]",
        "arms: [{model: m, weight: 1}], sticky: tenant",
        "arms: [{model: m, weight: 1}], sticky: header, header: X-User-Id",
    ],
)
def test_aliases_that_make_sense(alias):
    assert _check(alias) == []


def test_some_arm_takes_requests():
    assert _check("arms: [{model: m, weight: 0}, {model: n, weight: 0.0}]") == [
        "f:1: aliases.a.arms: every weight is 0, so no request could go anywhere"
        " - give one arm a weight above 0"
    ]


def test_an_arm_is_written_once():
    assert _check("arms: [{model: m, weight: 1}, {model: m, weight: 2}]") == [
        "f:1: aliases.a.arms[1]: m is another arm already - write it once"
    ]
    twice = "{model: m, version: 2, weight: 1}"
    assert _check(f"arms: [{twice}, {twice}]") == [
        "f:1: aliases.a.arms[1]: m version 2 is another arm already - write it once"
    ]


def test_header_and_sticky_belong_together():
    arms = "arms: [{model: m, weight: 1}]"
    assert _check(f"{arms}, sticky: header") == [
        "f:1: aliases.a.sticky: no header is named - write the one to stick to as `header`"
    ]
    for sticky, written in (("nothing", ""), ("tenant", ", sticky: tenant")):
        assert _check(f"{arms}{written}, header: X-User-Id") == [
            f"f:1: aliases.a.header: is not looked at with sticky: {sticky}"
            " - write sticky: header, or leave it out"
        ]
