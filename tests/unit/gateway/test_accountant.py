"""The accounts: months, what waits while the store is down, and what is told to it, once."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.ports import StoreDown
from gateway.stores.state_file import USAGE, StateFile
from gateway.stores.usage import MemoryUsage
from gateway.usage import accountant
from gateway.usage.accountant import Accountant, month_of
from gateway.usage.counting import Used
from routing.shares import Executed
from routing.types import ModelVersion
from routing.usage import Amounts, Flush, Totals
from tests.pipeline.scripted import Clock

NOVEMBER_ENDS_S = 1_796_083_200.0  # 2026-12-01T00:00:00Z
KEY = ModelVersion("m", 1)
PAIR = ("acme", "m")


class Store:
    """Memory that can be down, and lose its answers."""

    kind = "memory"

    def __init__(self) -> None:
        self.memory = MemoryUsage(StateFile(None, USAGE), months=13, log=print)
        self.down = False
        self.loses_answers = False
        self.flushes: list[Flush] = []

    async def add(self, flush: Flush) -> None:
        if self.down:
            raise StoreDown("it is gone")
        await self.memory.add(flush)
        self.flushes.append(flush)
        if self.loses_answers:
            raise StoreDown("no answer")

    async def month(self, month: str) -> Totals:
        if self.down:
            raise StoreDown("it is gone")
        return await self.memory.month(month)


class Accounts:
    """An accountant with a manual clock."""

    def __init__(self, **settings: Any) -> None:
        self.store = Store()
        self.clock = Clock()
        self.wall_s = NOVEMBER_ENDS_S - 5.0
        self.counted: Used | None = None
        self.servers = {"s"}
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        self.accountant = self.new(**settings)

    def new(self, interval_s: float = 3600.0) -> Accountant:
        return Accountant(
            self.store,
            taken=self._taken,
            me="me",
            is_known=self.servers.__contains__,
            interval_s=interval_s,
            clock=self.clock,
            wall_clock=lambda: self.wall_s,
            log=lambda event, **fields: self.log.append((event, fields)),
        )

    def _taken(self) -> Used | None:
        counted, self.counted = self.counted, None
        return counted

    def used(self, *, model: str = "m", **amounts: int) -> None:
        self.accountant.take(Used({("acme", model): Amounts(**amounts)}))

    async def month(self, month: str) -> dict[tuple[str, str], Amounts]:
        return dict(await self.store.memory.month(month))


@pytest.fixture
def accounts() -> Accounts:
    return Accounts()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accountant, "_LAST_TRIES_S", (0.0, 0.0))


async def test_a_month_ends_at_midnight_utc(accounts: Accounts) -> None:
    assert month_of(NOVEMBER_ENDS_S - 0.001) == "2026-11"
    accounts.used(requests=1)
    accounts.wall_s += 5.0
    accounts.used(requests=2)
    accounts.wall_s += 31 * 86_400
    accounts.used(requests=4)
    await accounts.accountant.flush()
    for month, requests in (("2026-11", 1), ("2026-12", 2), ("2027-01", 4)):
        assert await accounts.month(month) == {PAIR: Amounts(requests=requests)}
    assert accounts.accountant.totals() == {PAIR: Amounts(requests=7)}


async def test_the_view_is_of_this_month_unless_another_is_named(accounts: Accounts) -> None:
    accounts.used(requests=1, errors=1, rows=2, input_bytes=3, output_bytes=4, compute_us=1_500_000)
    accounts.used(requests=1, model="n")
    accounts.accountant.take(Used({("b", "m"): Amounts(requests=5)}))
    view = await accounts.accountant.view(None, None)
    used = {
        "requests": 1, "errors": 1, "rows": 2,
        "input_bytes": 3, "output_bytes": 4, "compute_seconds": 1.5,
    }  # fmt: skip
    nothing = dict.fromkeys(used, 0)
    assert view == {
        "month": "2026-11",
        "kept_in": "memory",
        "total": {**used, "requests": 7},
        "tenants": [
            {
                "tenant": "acme",
                **used,
                "requests": 2,
                "models": [{"model": "m", **used}, {"model": "n", **nothing, "requests": 1}],
            },
            {
                "tenant": "b",
                **nothing,
                "requests": 5,
                "models": [{"model": "m", **nothing, "requests": 5}],
            },
        ],
    }
    accounts.wall_s += 5.0
    assert (await accounts.accountant.view(None, None))["tenants"] == []
    later = await accounts.accountant.view("2026-11", "b")
    assert [row["tenant"] for row in later["tenants"]] == ["b"]
    assert later["total"]["requests"] == 5


@pytest.mark.parametrize("month", ["", "2026-13", "2026-1", "now", "2026-11\n", "٢٠٢٦-11"])
async def test_what_is_no_month_is_refused(accounts: Accounts, month: str) -> None:
    with pytest.raises(ValueError, match="write it as in 2026-11"):
        await accounts.accountant.view(month, None)


async def test_what_the_process_counts_itself_is_taken_over(accounts: Accounts) -> None:
    accounts.accountant.executed("s", {KEY: Executed(0, 0)})
    accounts.counted = Used({PAIR: Amounts(requests=1)}, {("s", KEY): {"acme": 2}})
    accounts.accountant.executed("s", {KEY: Executed(4, 1000)})
    assert accounts.accountant.totals() == {PAIR: Amounts(requests=1, compute_us=500)}
    await accounts.accountant.flush()
    assert await accounts.month("2026-11") == {PAIR: Amounts(requests=1, compute_us=500)}


async def test_compute_time_of_a_server_that_has_left_and_come_back_begins_anew(
    accounts: Accounts,
) -> None:
    accounts.accountant.executed("s", {KEY: Executed(0, 0)})
    accounts.servers.clear()
    await accounts.accountant.flush()
    accounts.servers.add("s")
    accounts.accountant.executed("s", {KEY: Executed(4, 1000)})  # nobody knows since when
    accounts.counted = Used({}, {("s", KEY): {"acme": 2}})
    accounts.accountant.executed("s", {KEY: Executed(4, 1000)})
    assert accounts.accountant.totals() == {}


async def test_while_the_store_is_down_everything_waits(accounts: Accounts) -> None:
    accounts.store.down = True
    for _ in range(3):
        accounts.used(requests=1)
        with pytest.raises(StoreDown):
            await accounts.accountant.flush()
    accounts.wall_s += 5.0
    accounts.used(requests=1)
    with pytest.raises(StoreDown):
        await accounts.accountant.view(None, None)
    accounts.store.down = False
    await accounts.accountant.flush()
    assert await accounts.month("2026-11") == {PAIR: Amounts(requests=3)}
    assert await accounts.month("2026-12") == {PAIR: Amounts(requests=1)}


async def test_what_was_told_and_not_answered_is_told_again_as_it_was(accounts: Accounts) -> None:
    accounts.store.loses_answers = True
    accounts.used(requests=1)
    for _ in range(2):
        with pytest.raises(StoreDown):
            await accounts.accountant.flush()
        accounts.used(requests=10)
    accounts.store.loses_answers = False
    await accounts.accountant.flush()
    assert await accounts.month("2026-11") == {PAIR: Amounts(requests=21)}
    first, second, third, fourth = accounts.store.flushes
    assert first == second == third
    assert (first.number, fourth.number) == (1, 2)


async def test_flushes_at_the_same_time_tell_everything_once(accounts: Accounts) -> None:
    accounts.used(requests=1)
    await asyncio.gather(*(accounts.accountant.flush() for _ in range(5)))
    assert len(accounts.store.flushes) == 1


async def test_a_flush_is_bounded_and_many_make_up_the_whole(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accountant, "MOST_TOGETHER", 2)
    for model in "abcde":
        accounts.used(model=model, requests=1)
    await accounts.accountant.flush()
    sizes = [len(totals) for flush in accounts.store.flushes for totals in flush.months.values()]
    assert sizes == [2, 2, 1]
    assert len(await accounts.month("2026-11")) == 5


async def test_too_many_models_are_one_until_the_month_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accountant, "MOST_TOLD_APART", 2)
    accounts = Accounts()
    for model in "abcd":
        accounts.used(model=model, requests=1)
    accounts.wall_s += 5.0
    accounts.used(model="d", requests=1)
    assert accounts.accountant.totals() == {
        ("acme", "a"): Amounts(requests=1),
        ("acme", "b"): Amounts(requests=1),
        ("acme", "other"): Amounts(requests=3),
    }
    await accounts.accountant.flush()
    assert set(await accounts.month("2026-11")) == {("acme", m) for m in ("a", "b", "other")}
    assert set(await accounts.month("2026-12")) == {("acme", "d")}


async def test_it_is_told_now_and_then_by_itself_and_at_the_end() -> None:
    accounts = Accounts(interval_s=0.001)
    accounts.accountant.start()
    accounts.store.down = True
    accounts.used(requests=1)
    await asyncio.sleep(0.01)
    accounts.store.down = False
    async with asyncio.timeout(5):
        while not accounts.store.flushes:
            await asyncio.sleep(0.001)
    accounts.used(requests=2)
    accounts.store.down = True
    closing = asyncio.create_task(accounts.accountant.close())
    await asyncio.sleep(0)
    accounts.store.down = False
    await closing
    assert await accounts.month("2026-11") == {PAIR: Amounts(requests=3)}
    assert accounts.log == []


async def test_what_cannot_be_kept_at_the_end_is_logged(accounts: Accounts) -> None:
    accounts.store.down = True
    accounts.used(requests=1)
    with pytest.raises(StoreDown):
        await accounts.accountant.flush()
    accounts.used(requests=2, compute_us=7)
    await accounts.accountant.close()
    zeros = {"errors": 0, "rows": 0, "input_bytes": 0, "output_bytes": 0}
    of = {"reason": "it is gone", "month": "2026-11", "tenant": "acme", "model": "m"}
    assert accounts.log == [
        ("usage lost", {**of, **zeros, "requests": 1, "compute_us": 0}),
        ("usage lost", {**of, **zeros, "requests": 2, "compute_us": 7}),
    ]
