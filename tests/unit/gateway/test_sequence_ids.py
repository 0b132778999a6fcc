"""Ids on the servers: a tenant's own, and never another's."""

import pytest

from gateway.exchange import ANONYMOUS
from gateway.sequence_ids import pin_key, wire_id


@pytest.mark.parametrize("own_id", [1, 2**64 - 1, "a", "x" * 128])
def test_anonymous_callers_keep_their_ids(own_id: int | str) -> None:
    assert wire_id(ANONYMOUS, own_id) == own_id


@pytest.mark.parametrize("own_id", [1, 5, 2**64 - 1])
def test_numbers_stay_numbers_of_64_bits(own_id: int) -> None:
    found = wire_id("acme", own_id)
    assert isinstance(found, int)
    assert 0 < found < 2**64
    assert found != wire_id("other", own_id)
    assert found == wire_id("acme", own_id)


@pytest.mark.parametrize("own_id", ["5", "ä" * 55, "ä" * 56, "ä" * 64])
def test_text_stays_text_that_triton_takes(own_id: str) -> None:
    found = wire_id("acme", own_id)
    assert isinstance(found, str)
    assert len(found.encode()) <= 128
    assert found != wire_id("other", own_id)
    assert found != wire_id("acme", own_id + "x")


def test_pins_of_different_sequences_are_kept_apart() -> None:
    keys = [
        pin_key(tenant, name, version, own_id)
        for tenant in ("a", "a:b")
        for name in ("m", "b:m", "m:1")
        for version in ("", "1")
        for own_id in (5, "5", "n5", "1:n5")
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == "seq:a:m::n5"
