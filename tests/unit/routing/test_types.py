"""The nouns are immutable: snapshots are shared between requests."""

import dataclasses
from typing import Any

import pytest

from routing.types import ModelSpec, Server, TensorSpec

SPEC = ModelSpec("m", 1, inputs=(), outputs=())


@pytest.mark.parametrize(
    "noun",
    [Server("a"), TensorSpec("IN", "FP32", (-1,)), SPEC],
    ids=lambda noun: type(noun).__name__,
)
def test_nouns_cannot_be_changed(noun: object) -> None:
    field = dataclasses.fields(noun)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(noun, field, "other")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, []),
        ({"inputs": (TensorSpec("IN", "FP32", (-1,)),)}, ["inputs"]),
        ({"outputs": (TensorSpec("OUT", "FP32", (-1,)),)}, ["outputs"]),
        ({"max_batch_size": 8, "decoupled": True}, ["max_batch_size", "decoupled"]),
        ({"scheduling": "sequence batching", "sequence": True}, ["scheduling"]),
    ],
)
def test_in_what_two_signatures_differ(changes: dict[str, Any], parts: list[str]) -> None:
    assert dataclasses.replace(SPEC, **changes).differs_in(SPEC) == parts
