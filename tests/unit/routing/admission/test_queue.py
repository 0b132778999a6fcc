"""Whose turn it is, who may wait, and who has to leave."""

from collections.abc import Iterable, Iterator

import pytest

from routing.admission.queue import EVERY, AdmissionQueue, QueueSettings, Space, Waiting
from routing.classes import CRITICAL, SHEDDABLE, STANDARD, PriorityClass

Queue = AdmissionQueue[str]


def queue(most: int = 100, a_tenant: int = 100, space: int = 1000) -> Queue:
    return AdmissionQueue(QueueSettings(most, a_tenant), Space(space))


def one(
    item: str = "",
    kind: PriorityClass = STANDARD,
    *,
    tenant: str = "t",
    version: int = 1,
    rows: int = 1,
    until_s: float = 100.0,
    size_bytes: int = 0,
) -> Waiting[str]:
    return Waiting(
        item or tenant,
        kind=kind,
        tenant=tenant,
        version=version,
        rows=rows,
        until_s=until_s,
        size_bytes=size_bytes,
    )


def put(into: Queue, *entries: Waiting[str]) -> None:
    for entry in entries:
        assert into.offer(entry).taken


def all_of(waiting: Queue) -> Iterator[str]:
    while (entry := waiting.serve(lambda *_: True)) is not None:
        yield entry.item


def items(entries: Iterable[Waiting[str]]) -> list[str]:
    return [entry.item for entry in entries]


# --- turns


def test_the_most_important_come_first_and_each_class_in_its_order() -> None:
    waiting = queue()
    put(waiting, one("s1", SHEDDABLE), one("n1"), one("c1", CRITICAL), one("n2"))
    assert waiting.by_class() == {"critical": 1, "standard": 2, "sheddable": 1}
    assert list(all_of(waiting)) == ["c1", "n1", "n2", "s1"]
    assert (len(waiting), waiting.by_class()) == (0, {})


def test_tenants_take_turns_by_rows() -> None:
    waiting = queue()
    put(waiting, *(one(f"a{n}", tenant="a", rows=4) for n in range(3)))
    put(waiting, *(one(f"b{n}", tenant="b") for n in range(8)))
    order = list(all_of(waiting))
    assert order.index("a1") > order.index("b3"), "four rows of each"
    assert order.index("a2") > order.index("b7")


def test_a_class_that_waits_gets_one_of_so_many_places() -> None:
    waiting = queue(1000, 1000)
    put(
        waiting, *(one("c", CRITICAL) for _ in range(200)), *(one("s", SHEDDABLE) for _ in range(9))
    )
    order = [item for item, _ in zip(all_of(waiting), range(4 * EVERY + 4), strict=False)]
    assert order.count("s") == 4
    assert order[EVERY] == "s"


def test_its_turn_is_not_taken_away_by_those_it_waits_behind() -> None:
    waiting = queue()
    put(waiting, *(one("c", CRITICAL) for _ in range(EVERY + 1)), one("s", SHEDDABLE))
    served = [next(all_of(waiting)) for _ in range(EVERY)]
    assert served == ["c"] * EVERY
    asked: list[tuple[str, float]] = []

    def no_room(entry: Waiting[str], share: float) -> bool:
        asked.append((entry.item, share))
        return False

    assert waiting.serve(no_room) is None
    assert asked == [("s", 1.0)], "it may fill all of a server, and nobody goes before it"


def test_passing_without_waiting_counts_as_a_place_too() -> None:
    waiting = queue()
    put(waiting, one("s", SHEDDABLE), one("c", CRITICAL))
    for _ in range(EVERY):
        waiting.passed(CRITICAL)
    assert next(all_of(waiting)) == "s"


def test_a_class_whose_requests_give_up_keeps_its_claim() -> None:
    waiting = queue()
    put(waiting, *(one("c", CRITICAL) for _ in range(2 * EVERY)))
    for number in range(EVERY):
        impatient = one("s", SHEDDABLE, until_s=number)
        put(waiting, impatient)
        assert next(all_of(waiting)) == "c"
        assert items(waiting.late(number)) == ["s"]
    put(waiting, one("c", CRITICAL), one("at last", SHEDDABLE))
    assert next(all_of(waiting)) == "at last"


def test_lower_classes_may_fill_less_of_a_server() -> None:
    waiting = queue()
    put(waiting, one("s", SHEDDABLE, version=1), one("n", STANDARD, version=2))
    asked: list[tuple[str, float]] = []

    def take(entry: Waiting[str], share: float) -> bool:
        asked.append((entry.item, share))
        return entry.item == "s"

    served = waiting.serve(take)
    assert served is not None
    assert served.item == "s"
    assert asked == [("n", 0.9), ("s", 0.7)]


def test_a_lower_class_that_may_fill_more_is_asked_all_the_same() -> None:
    waiting = queue()
    put(waiting, one("n", PriorityClass("n", 0, 0.5)), one("s", PriorityClass("s", 1, 0.8)))
    served = waiting.serve(lambda _, share: share > 0.6)
    assert served is not None
    assert served.item == "s"


def test_a_version_without_room_holds_up_no_other() -> None:
    waiting = queue()
    put(waiting, one("1", version=1), one("1 too", version=1), one("2", version=2))
    served = waiting.serve(lambda entry, _: entry.version == 2)
    assert served is not None
    assert served.item == "2"
    assert list(all_of(waiting)) == ["1", "1 too"]


# --- leaving


def test_what_is_too_late_or_gone_never_has_its_turn() -> None:
    waiting = queue()
    gone = one("gone")
    put(waiting, gone, one("late", until_s=5.0), one("later", until_s=7.0), one("on time"))
    waiting.remove(gone)
    waiting.remove(gone)
    assert gone not in waiting
    assert items(waiting.late(4.9)) == []
    assert items(waiting.late(6.0)) == ["late"]
    assert items(waiting.late(7.0)) == ["later"]
    assert list(all_of(waiting)) == ["on time"]
    assert items(waiting.late(1000.0)) == []


def test_who_has_come_and_gone_leaves_nothing_behind() -> None:
    space = Space(1000)
    waiting: Queue = AdmissionQueue(QueueSettings(100, 100), space)
    for number in range(1000):
        entry = one(tenant=f"t{number}", size_bytes=7)
        put(waiting, entry)
        waiting.remove(entry)
    assert (len(waiting), space.used) == (0, 0)
    assert len(waiting._ends) < 100


# --- who may wait


def fill(waiting: Queue, kind: PriorityClass, count: int, tenant: str = "t") -> None:
    put(waiting, *(one(f"{kind.name}{n}", kind, tenant=tenant) for n in range(count)))


@pytest.mark.parametrize(("kind", "most"), [(CRITICAL, 100), (STANDARD, 90), (SHEDDABLE, 70)])
def test_a_class_stops_at_its_share_of_the_queue(kind: PriorityClass, most: int) -> None:
    waiting = queue(100, 1000)
    fill(waiting, kind, most)
    offered = waiting.offer(one(kind=kind))
    assert (offered.taken, offered.evicted, len(waiting)) == (False, (), most)


def test_a_full_queue_lets_the_newest_of_the_lowest_class_go() -> None:
    waiting = queue(100, 1000)
    fill(waiting, SHEDDABLE, 30)
    fill(waiting, STANDARD, 60)
    fill(waiting, CRITICAL, 10)
    offered = waiting.offer(one("new", CRITICAL))
    assert (offered.taken, items(offered.evicted)) == (True, ["sheddable29"])
    assert len(waiting) == 100


def test_each_class_keeps_a_few_places_in_a_full_queue() -> None:
    waiting = queue(100, 1000)
    fill(waiting, SHEDDABLE, 5)
    fill(waiting, CRITICAL, 95)
    assert not waiting.offer(one(kind=CRITICAL)).taken
    fill(waiting, STANDARD, 5)
    assert not waiting.offer(one(kind=STANDARD)).taken
    assert len(waiting) == 105


def test_the_tenant_with_most_in_the_queue_gives_way() -> None:
    waiting = queue(100, 1000)
    fill(waiting, SHEDDABLE, 70, tenant="greedy")
    offered = waiting.offer(one("new", SHEDDABLE, tenant="modest"))
    assert (offered.taken, items(offered.evicted)) == (True, ["sheddable69"])
    assert not waiting.offer(one("new", SHEDDABLE, tenant="greedy")).taken


def test_a_tenant_has_no_more_than_its_part() -> None:
    waiting = queue(100, 10)
    fill(waiting, SHEDDABLE, 10, tenant="t")
    assert not waiting.offer(one(kind=SHEDDABLE)).taken
    assert waiting.offer(one(tenant="other")).taken
    offered = waiting.offer(one("new", CRITICAL))
    assert (offered.taken, items(offered.evicted)) == (True, ["sheddable9"]), "its own"


def test_bytes_are_bounded_over_all_models() -> None:
    space = Space(100)
    first: Queue = AdmissionQueue(QueueSettings(100, 100), space)
    second: Queue = AdmissionQueue(QueueSettings(100, 100), space)
    put(first, one(size_bytes=60))
    assert not second.offer(one(size_bytes=50)).taken
    put(second, one(size_bytes=40))
    assert space.used == 100
    assert list(all_of(first)) == ["t"]
    assert space.used == 40


def test_room_for_a_large_request_is_made_only_if_it_suffices() -> None:
    waiting = queue(100, 100, space=100)
    put(waiting, *(one(f"s{n}", SHEDDABLE, size_bytes=10) for n in range(9)))
    assert not waiting.offer(one("huge", CRITICAL, size_bytes=101)).taken
    assert list(all_of(waiting)) == [f"s{n}" for n in range(9)], "they stay, in their order"
    put(waiting, *(one(f"s{n}", SHEDDABLE, size_bytes=10) for n in range(9)))
    offered = waiting.offer(one("large", CRITICAL, size_bytes=40))
    assert (offered.taken, items(offered.evicted)) == (True, ["s8", "s7", "s6"])
