"""What operators take out by hand, and why it is out."""

import pytest

from routing.steering import Block, Steering


def test_by_default_everything_is_served() -> None:
    assert Steering().reason("m", 1, "a") is None


@pytest.mark.parametrize(
    ("block", "covered"),
    [
        (Block("m"), [("m", 1, "a"), ("m", 2, "a"), ("m", 1, "b"), ("m", 2, "b")]),
        (Block("m", version=2), [("m", 2, "a"), ("m", 2, "b")]),
        (Block("m", server="b"), [("m", 1, "b"), ("m", 2, "b")]),
        (Block("m", version=1, server="a"), [("m", 1, "a")]),
        (Block("other"), [("other", 1, "a")]),
    ],
)
def test_a_block_covers_what_it_names(block: Block, covered: list[tuple[str, int, str]]) -> None:
    steering = Steering().block(block)
    everything = [("m", v, s) for v in (1, 2) for s in ("a", "b")] + [("other", 1, "a")]
    found = [what for what in everything if steering.reason(*what) == "blocked by an operator"]
    assert sorted(found) == sorted(covered)
    assert all(block.covers(*what) for what in found)


def test_a_cordoned_server_serves_nothing_until_it_is_uncordoned() -> None:
    steering = Steering().cordon("a")
    assert steering.reason("m", 1, "a") == "cordoned by an operator"
    assert steering.reason("m", 1, "b") is None
    assert steering.uncordon("a") == Steering()


def test_of_two_reasons_the_cordon_is_told() -> None:
    steering = Steering().block(Block("m")).cordon("a")
    assert steering.reason("m", 1, "a") == "cordoned by an operator"
    assert steering.uncordon("a").reason("m", 1, "a") == "blocked by an operator"


def test_steps_that_change_nothing_change_nothing() -> None:
    steering = Steering().cordon("a").block(Block("m", 1))
    assert steering.cordon("a").block(Block("m", 1)) == steering
    assert steering.uncordon("b").unblock(Block("m")) == steering
    assert steering.unblock(Block("m", 1)) == Steering().cordon("a")


def test_a_steering_never_changes() -> None:
    before = Steering()
    before.cordon("a")
    before.block(Block("m"))
    assert before == Steering()
