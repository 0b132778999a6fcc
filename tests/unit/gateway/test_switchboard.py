"""Features switched off on several hosts: who follows whom, for how long, and what is kept."""

import json
from collections.abc import Sequence

import pytest

from gateway.ports import Entry, StoreDown
from gateway.stores.memory import MemoryStore
from gateway.switches import MAX_S, Feature
from tests.pipeline.scripted import Clock
from tests.unit.gateway.switching import Board

KEY = "disabled:limits"


class Store(MemoryStore):
    """A store that may be down."""

    is_down = False

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, max_entries=100)

    async def look(self, keys: Sequence[str]) -> list[Entry | None]:
        if self.is_down:
            raise StoreDown("gone")
        return await super().look(keys)


class Hosts:
    """Two hosts that share a store."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        self.clock = Clock()
        self.store = Store(self.clock)
        self.one = Board(self.clock, self.store)
        self.two = Board(self.clock, self.store, ahead_s=ahead_s)

    async def follow(self) -> None:
        for board in (self.one, self.two):
            await board.it.follow_once()


async def off(board: Board, feature: str = "limits", for_s: float = 60.0) -> str | None:
    _, alone = await board.it.disable(Feature(feature), for_s, "why", by="ann")
    return alone


async def test_it_is_off_at_once_and_on_again_by_itself() -> None:
    clock = Clock()
    board = Board(clock)
    assert await off(board) is None
    assert board.off == ["limits"]
    assert board.told == [{"limits": clock() + 60.0}]
    clock.now_s += 59.9
    assert board.off == ["limits"]
    clock.now_s += 0.1
    assert board.off == []
    await board.it.follow_once()
    assert board.told[1:] == [{}]
    assert board.it.entries() == []
    assert board.logged == [
        (
            "feature disabled",
            {
                "feature": "limits",
                "by": "ann",
                "reason": "why",
                "until": "1970-01-12T14:04:20+00:00",
            },
        ),
        (
            "feature enabled",
            {
                "feature": "limits",
                "by": "the end of its time",
                "was_disabled_by": "ann",
                "since": "1970-01-12T14:03:20+00:00",
            },
        ),
    ]


async def test_it_is_switched_on_before_its_time_and_each_feature_by_itself() -> None:
    board = Board(Clock())
    await off(board)
    await off(board, "auth")
    assert board.off == ["auth", "limits"]
    assert await board.it.enable(Feature.LIMITS, by="bob") == (True, None)
    assert board.off == ["auth"]
    assert await board.it.enable(Feature.LIMITS, by="bob") == (False, None)
    assert await board.it.enable(Feature.ADMISSION, by="bob") == (False, None)
    assert board.events == ["feature disabled", "feature disabled", "feature enabled"]
    assert board.logged[-1][1]["by"] == "bob"


async def test_a_later_command_sets_the_time_anew() -> None:
    clock = Clock()
    board = Board(clock)
    await off(board, for_s=600)
    await off(board, for_s=10)
    clock.now_s += 11
    assert board.off == []


async def test_the_other_gateways_follow() -> None:
    hosts = Hosts()
    assert await off(hosts.one) is None
    await hosts.follow()
    assert hosts.two.off == ["limits"]
    assert hosts.two.it.view() == hosts.one.it.view()
    assert hosts.two.logged == hosts.one.logged
    hosts.clock.now_s += 5
    assert await hosts.two.it.enable(Feature.LIMITS, by="bob") == (True, None)
    await hosts.follow()
    assert hosts.one.off == hosts.two.off == []
    hosts.clock.now_s += 120  # neither comes back
    await hosts.follow()
    assert hosts.one.off == hosts.two.off == []
    assert hosts.one.events == ["feature disabled", "feature enabled"]
    assert await hosts.store.look([KEY]) == [None]


async def test_a_command_knows_of_one_that_was_given_elsewhere_just_now() -> None:
    hosts = Hosts()
    await off(hosts.one)
    assert await hosts.two.it.enable(Feature.LIMITS, by="bob") == (True, None)
    await hosts.follow()
    assert hosts.one.off == []


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_clocks_that_differ_neither_prolong_nor_end_it(ahead_s: float) -> None:
    hosts = Hosts(ahead_s=ahead_s)
    await off(hosts.one)
    hosts.clock.now_s += 30
    await hosts.follow()
    assert hosts.two.off == ["limits"]
    hosts.clock.now_s += 30
    assert hosts.two.off == []
    await hosts.follow()
    assert hosts.one.off == hosts.two.off == []
    await off(hosts.two)
    await hosts.follow()
    await hosts.one.it.enable(Feature.LIMITS, by="ann")  # later, whatever its clock says
    await hosts.follow()
    assert hosts.two.off == []


async def test_without_the_store_it_works_here_and_later_everywhere() -> None:
    hosts = Hosts()
    hosts.store.is_down = True
    assert await off(hosts.one) == "gone"
    await hosts.follow()
    assert (hosts.one.off, hosts.two.off) == (["limits"], [])
    hosts.store.is_down = False
    hosts.clock.now_s += 10
    await hosts.follow()
    assert hosts.two.off == ["limits"]
    hosts.clock.now_s += 50  # no longer than it was told
    assert hosts.two.off == []


async def test_what_was_switched_on_during_an_outage_stays_so() -> None:
    hosts = Hosts()
    await off(hosts.one)
    await hosts.follow()
    hosts.store.is_down = True
    assert await hosts.one.it.enable(Feature.LIMITS, by="ann") == (True, "gone")
    hosts.store.is_down = False
    await hosts.follow()
    assert hosts.one.off == hosts.two.off == []


async def test_a_store_that_has_lost_its_memory_learns_again() -> None:
    hosts = Hosts()
    await off(hosts.one)
    (kept,) = await hosts.store.look([KEY])
    assert kept is not None
    await hosts.store.forget(KEY, kept.value)
    hosts.clock.now_s += 20
    await hosts.follow()
    assert hosts.two.off == ["limits"]
    (found,) = await hosts.store.look([KEY])
    assert found is not None
    assert found.left_s == pytest.approx(40)


async def test_what_is_kept_is_in_force_after_a_restart_for_what_is_left() -> None:
    clock = Clock()
    board = Board(clock)
    await off(board)
    await off(board, "auth", for_s=5)
    kept = json.loads(json.dumps(board.it.entries()))
    clock.now_s += 20
    after = Board(clock)
    after.it.restore(kept)
    assert after.off == ["limits"]
    assert after.told == [{"limits": pytest.approx(clock() + 40)}]
    assert sorted(after.events) == ["feature disabled", "feature enabled"]
    clock.now_s += 40
    assert after.off == []


async def test_a_file_edited_by_hand_makes_nothing_longer_than_a_day() -> None:
    clock = Clock()
    board = Board(clock)
    await off(board)
    (entry,) = board.it.entries()
    board.it.restore([{**entry, "until_s": entry["until_s"] + 1e9}])
    clock.now_s += MAX_S - 1
    assert board.off == ["limits"]
    clock.now_s += 1
    assert board.off == []


async def test_what_other_gateways_were_told_is_kept_here_too() -> None:
    hosts = Hosts()
    kept: list[object] = []

    async def keep() -> None:
        kept.append(hosts.two.it.entries())
        raise OSError("disk full")

    hosts.two.it.keep = keep
    await hosts.follow()
    assert kept == []
    await off(hosts.one)
    await hosts.follow()
    await hosts.follow()
    assert kept == [hosts.one.it.entries()]
    hosts.clock.now_s += 61
    await hosts.follow()
    assert kept[1:] == [[]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\x00",
        '{"feature": "limits"}',
        '{"feature": "auth", "off": true, "by": "", "reason": "", "since_s": 1, "until_s": 2}',
        '{"feature": "limits", "off": true, "by": "", "reason": "", "since_s": 1e99, "until_s": 2}',
    ],
)
async def test_what_is_not_understood_is_left_alone_until_there_is_a_command(text: str) -> None:
    hosts = Hosts()
    await hosts.store.claim(KEY, text, ttl_s=100)
    await hosts.follow()
    assert hosts.one.off == []
    assert await hosts.store.look([KEY]) == [Entry(text, 100)]
    await off(hosts.one)
    await hosts.follow()
    assert hosts.two.off == ["limits"]
