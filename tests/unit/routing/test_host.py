"""Probes are claimed from the other workers, and kept until those know how it went."""

import pytest

from routing.host import Claims
from routing.shared import HostTable, TableSize

SIZE = TableSize(workers=2, pairs=2, servers=1)


@pytest.fixture
def tables() -> list[HostTable]:
    memory = bytearray(SIZE.size_bytes)
    return [HostTable(memory, SIZE, worker=number) for number in range(2)]


def test_one_probe_at_a_time_here_and_elsewhere(tables: list[HostTable]) -> None:
    mine, theirs = Claims(), Claims()
    assert mine.take((tables[0].probes, 0))
    assert not mine.take((tables[0].probes, 0))
    assert not theirs.take((tables[1].probes, 0))
    assert theirs.take((tables[1].probes, 1))


def test_a_place_is_free_for_others_when_they_have_heard_of_the_outcome(
    tables: list[HostTable],
) -> None:
    mine, theirs = Claims(), Claims()
    mine.take((tables[0].probes, 0))
    mine.advance()  # under way: nothing to tell yet
    mine.end((tables[0].probes, 0))
    mine.advance()  # now it is told
    assert not theirs.take((tables[1].probes, 0))
    mine.advance()
    assert theirs.take((tables[1].probes, 0))


def test_who_knows_the_outcome_may_send_the_next_at_once(tables: list[HostTable]) -> None:
    mine = Claims()
    mine.take((tables[0].probes, 0))
    mine.end((tables[0].probes, 0))
    assert mine.take((tables[0].probes, 0))
    for _ in range(5):
        mine.advance()
    assert tables[1].probes.total(0) == 1


def test_what_was_never_taken_is_not_given_back(tables: list[HostTable]) -> None:
    tables[0].probes.put(0, 1)
    Claims().end((tables[0].probes, 0))
    Claims().drop((tables[0].probes, 0))
    assert tables[0].probes.total(0) == 1
