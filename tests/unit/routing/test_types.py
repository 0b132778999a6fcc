"""The nouns are immutable: snapshots are shared between requests."""

import dataclasses

import pytest

from routing.types import ModelSpec, Server, TensorSpec


@pytest.mark.parametrize(
    "noun",
    [
        Server("a"),
        TensorSpec("IN", "FP32", (-1,)),
        ModelSpec("m", 1, inputs=(), outputs=()),
    ],
    ids=lambda noun: type(noun).__name__,
)
def test_nouns_cannot_be_changed(noun: object) -> None:
    field = dataclasses.fields(noun)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(noun, field, "other")
