"""The table: everybody's column is its own, sums go over all of them, a dead one vanishes."""

import mmap

import pytest

from routing.shared import HostTable, TableSize

SIZE = TableSize(workers=3, pairs=4, servers=2)


@pytest.fixture
def tables() -> list[HostTable]:
    memory = bytearray(SIZE.size_bytes)
    return [HostTable(memory, SIZE, worker=number) for number in range(3)]


def test_the_size_is_what_the_parts_need() -> None:
    assert SIZE.size_bytes == 3 * (2 * 4 * 4 + 2 * 2 * 4 + 2 * 8)


def test_new_memory_is_an_empty_table(tables: list[HostTable]) -> None:
    assert [tables[0].rows.total(slot) for slot in range(4)] == [0] * 4
    assert tables[0].replies.latest(1) == 0.0


def test_a_total_is_over_all_workers(tables: list[HostTable]) -> None:
    for number, table in enumerate(tables):
        table.rows.put(3, 10 + number)
        table.rows.put(0, number)
    assert [table.rows.total(3) for table in tables] == [33] * 3
    assert [tables[0].rows.total(slot) for slot in range(4)] == [3, 0, 0, 33]
    tables[1].rows.put(3, 0)
    assert tables[2].rows.total(3) == 22


def test_the_latest_moment_counts(tables: list[HostTable]) -> None:
    tables[0].replies.put(1, 5.25)
    tables[2].replies.put(1, 7.5)
    assert (tables[1].replies.latest(1), tables[1].replies.latest(0)) == (7.5, 0.0)


def test_the_parts_do_not_overlap(tables: list[HostTable]) -> None:
    parts = ("rows", "probes", "detached", "contacts")
    for table in tables:
        for value, part in enumerate(parts, 1):
            for slot in range(4 if value <= 2 else 2):
                getattr(table, part).put(slot, value)
        for slot in range(2):
            table.replies.put(slot, 9.5)
    found = [{getattr(tables[0], part).total(slot) for slot in range(2)} for part in parts]
    assert found == [{3}, {6}, {9}, {12}]
    assert {tables[0].replies.latest(slot) for slot in range(2)} == {9.5}


def test_a_worker_that_is_gone_is_forgotten_everywhere(tables: list[HostTable]) -> None:
    for table in tables:
        for cells in (table.rows, table.probes, table.detached, table.contacts):
            cells.put(1, 5)
        table.replies.put(1, 1.0 + table.worker)
    tables[0].clear(2)
    left = [tables[1].rows, tables[1].probes, tables[1].detached, tables[1].contacts]
    assert [cells.total(1) for cells in left] == [10] * 4
    assert tables[1].replies.latest(1) == 2.0


def test_a_place_is_claimed_by_one(tables: list[HostTable]) -> None:
    assert [table.probes.claim(0) for table in tables] == [True, False, False]
    assert tables[1].probes.claim(1)
    tables[0].probes.put(0, 0)
    assert tables[2].probes.claim(0)


def test_two_that_claim_at_the_same_moment_never_both_succeed(tables: list[HostTable]) -> None:
    tables[0].probes.put(0, 1)  # about to look at the others
    assert not tables[1].probes.claim(0)
    assert tables[0].probes.total(0) == 1


def test_a_change_is_seen_by_comparing_images(tables: list[HostTable]) -> None:
    before = tables[0].detached.image()
    assert tables[0].detached.image() == before
    tables[1].detached.put(0, 1)
    assert tables[0].detached.image() != before


def test_memory_can_be_unmapped_when_its_tables_are_closed() -> None:
    memory = mmap.mmap(-1, SIZE.size_bytes)
    table = HostTable(memory, SIZE, worker=0)
    table.rows.put(0, 1)
    with pytest.raises(BufferError):
        memory.close()
    table.close()
    memory.close()
