"""The default version under any spread of versions over servers."""

from hypothesis import given
from hypothesis import strategies as st

from routing.catalogue import choose_default

COUNTS = st.dictionaries(st.integers(1, 20), st.integers(0, 8), max_size=6)
QUORUMS = st.floats(0.01, 1)
PREVIOUS = st.none() | st.integers(1, 20)


@given(COUNTS, st.integers(0, 8), QUORUMS, PREVIOUS)
def test_it_is_ready_somewhere_or_there_is_none(
    ready_on: dict[int, int], more: int, quorum: float, previous: int | None
) -> None:
    holders = max([more, *ready_on.values()])
    chosen = choose_default(ready_on, holders=holders, quorum=quorum, previous=previous)
    ready = {version for version, count in ready_on.items() if count}
    assert chosen in ready if ready else chosen is None


@given(COUNTS, st.integers(0, 8), QUORUMS, PREVIOUS)
def test_no_version_above_it_has_the_quorum(
    ready_on: dict[int, int], more: int, quorum: float, previous: int | None
) -> None:
    holders = max([more, *ready_on.values()])
    chosen = choose_default(ready_on, holders=holders, quorum=quorum, previous=previous)
    if chosen is not None:
        above = [count for version, count in ready_on.items() if version > chosen]
        assert all(count == 0 or count < quorum * holders for count in above)


@given(COUNTS, st.integers(1, 8), QUORUMS, st.integers(1, 20))
def test_choosing_again_changes_nothing(
    ready_on: dict[int, int], more: int, quorum: float, previous: int
) -> None:
    holders = max([more, *ready_on.values()])
    chosen = choose_default(ready_on, holders=holders, quorum=quorum, previous=previous)
    again = choose_default(ready_on, holders=holders, quorum=quorum, previous=chosen)
    assert again == chosen
