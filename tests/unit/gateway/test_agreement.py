"""What is concluded from what servers say of their models."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gateway.upstream.agreement import different_signatures, missing_defaults
from gateway.upstream.findings import Severity
from routing.types import ModelSpec, TensorSpec

SPEC = ModelSpec(
    model="resnet",
    version=1,
    inputs=(TensorSpec("x", "FP32", (3, -1)),),
    outputs=(TensorSpec("y", "FP32", (10,)),),
    max_batch_size=8,
    scheduling="dynamic_batching",
)


def fleet(**specs: ModelSpec) -> Mapping[tuple[str, str], Mapping[str, ModelSpec]]:
    return {("resnet", "1"): specs}


def test_equal_models_are_no_finding() -> None:
    assert list(different_signatures(fleet(a=SPEC, b=replace(SPEC)))) == []


def test_minority_is_named_with_what_differs() -> None:
    other = replace(SPEC, inputs=(TensorSpec("x", "FP16", (3, -1)),), scheduling="")
    [finding] = different_signatures(fleet(a=SPEC, b=other, c=SPEC))
    assert finding.severity is Severity.ERROR
    assert finding.message == (
        "model 'resnet' version 1 on b differs from a, c: inputs x FP16[3,-1] instead of"
        " x FP32[3,-1]; scheduling none instead of dynamic batching"
    )


def test_difference_in_batching_only_is_a_warning() -> None:
    [finding] = different_signatures(fleet(a=SPEC, b=replace(SPEC, max_batch_size=4)))
    assert finding.severity is Severity.WARNING
    assert finding.message.endswith("max_batch_size 4 instead of 8")


def test_of_a_large_fleet_not_every_server_is_named() -> None:
    usual = {f"s{number:03}": SPEC for number in range(100)}
    [finding] = different_signatures(fleet(**usual, z=replace(SPEC, max_batch_size=4)))
    assert "s019 and 80 more: " in finding.message


@pytest.mark.parametrize(
    ("ready", "said"),
    [
        ({"resnet": {1, 7}}, None),
        ({"resnet": {1, 2}}, "no server has that version ready; ready are 1, 2"),
        ({"resnet": set()}, "no server has that version ready"),
        ({"other": {7}}, "no server has that version ready"),
    ],
)
def test_a_pinned_version_must_be_ready_somewhere(
    ready: Mapping[str, set[int]], said: str | None
) -> None:
    found = list(missing_defaults({"resnet": 7}, ready))
    if said is None:
        assert found == []
    else:
        (finding,) = found
        assert finding.severity is Severity.WARNING
        assert finding.message == f"`default_version` of model 'resnet' is 7, and {said}"
