"""However sequences come and go, no server has more than the bound allows."""

import math

from hypothesis import given
from hypothesis import strategies as st

from routing.rendezvous import BOUND, place

SHARES = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


@given(SHARES, st.lists(st.integers(0, 10**6), min_size=8, max_size=8), st.text())
def test_there_is_always_a_server_below_its_bound(
    shares: list[float], held: list[int], key: str
) -> None:
    held = held[: len(shares)]
    names = [str(at) for at in range(len(shares))]
    at = place(key, names, shares, held)
    assert held[at] < math.ceil(BOUND * (sum(held) + 1) * shares[at] / sum(shares))


@given(SHARES, st.lists(st.tuples(st.text(max_size=4), st.booleans()), max_size=60))
def test_a_beginning_never_takes_a_server_above_its_bound(
    shares: list[float], events: list[tuple[str, bool]]
) -> None:
    held = [0] * len(shares)
    names = [str(at) for at in range(len(shares))]
    begun: list[int] = []
    for key, ends in events:
        if ends and begun:
            held[begun.pop()] -= 1
            continue
        at = place(key, names, shares, held)
        held[at] += 1
        begun.append(at)
        assert held[at] <= math.ceil(BOUND * sum(held) * shares[at] / sum(shares))
