"""The stores of quotas do what `gateway.ports.QuotaStore` says, in memory and in Redis."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from gateway.ports import QuotaStore, StoreDown
from gateway.stores import redis_connection
from gateway.stores.quotas import MemoryQuotas, RedisQuotas
from routing.quota import Answer, Ask, Charge, Place
from tests.redis_server import RedisServer
from tests.stores.conftest import connected

HOUR_US = 3_600_000_000


def charge(key: str = "k", cost: int = 1, burst: int = 3, **rest: object) -> Charge:
    """A quota of `burst` hours at one an hour: time is of no account."""
    return Charge(key, cost * HOUR_US, burst * HOUR_US, **rest)  # type: ignore[arg-type]


def hours(used: int) -> float:
    return round(used / HOUR_US, 2)


async def one(store: QuotaStore, *charges: Charge) -> Answer:
    return await store.decide(Ask(charges))


async def places(store: QuotaStore, *wanted: Place, ttl_ms: int = 60_000) -> Answer:
    return await store.decide(Ask((), wanted, ttl_ms))


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield MemoryQuotas(time.monotonic)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    async with connected(server.port) as connection:
        yield RedisQuotas(connection)


class QuotaConformance:
    """What every store of quotas has to do."""

    async def test_a_burst_is_let_through_and_no_more(self, store: QuotaStore) -> None:
        answers = [await one(store, charge()) for _ in range(5)]
        assert [answer.refused for answer in answers] == [False, False, False, True, True]
        assert [hours(answer.charges[0].used) for answer in answers] == [1, 2, 3, 3, 3]
        assert answers[-1].charges[0].over

    async def test_a_refusal_charges_nothing_anywhere(self, store: QuotaStore) -> None:
        full = charge("full", 1, 1)
        await one(store, full)
        answer = await store.decide(Ask((charge("other"), full), (Place("seat", 1, "h"),), 60_000))
        assert answer.refused
        assert [counted.over for counted in answer.charges] == [False, True]
        assert (await one(store, charge("other", 3))).refused is False
        assert (await places(store, Place("seat", 1, "h"))).refused is False

    async def test_what_is_only_observed_refuses_nothing(self, store: QuotaStore) -> None:
        full = charge("full", 1, 1, enforce=False)
        await one(store, full)
        answer = await one(store, full, charge("other"))
        assert not answer.refused
        assert [counted.over for counted in answer.charges] == [True, False]
        assert hours((await one(store, charge("other", 0))).charges[0].used) == 1
        seat = Place("seat", 0, "h", enforce=False)
        answer = await places(store, seat)
        assert (answer.refused, answer.places[0].over, answer.places[0].used) == (False, True, 0)

    async def test_charged_ahead_is_as_much_as_fits(self, store: QuotaStore) -> None:
        (first,) = (await one(store, charge(extra_us=HOUR_US))).charges
        assert (hours(first.used), hours(first.extra_us)) == (2, 1)
        (second,) = (await one(store, charge(extra_us=HOUR_US))).charges
        assert (hours(second.used), hours(second.extra_us)) == (3, 0)
        assert second.extra_us < HOUR_US / 100

    async def test_what_is_given_back_can_be_used_again(self, store: QuotaStore) -> None:
        await one(store, charge("k", 3), charge("l", 1))
        await store.give_back({"k": HOUR_US, "l": 5 * HOUR_US, "unknown": 1})
        assert not (await one(store, charge("k"), charge("l", 3))).refused
        assert (await one(store, charge("k"))).refused
        assert (await one(store, charge("l"))).refused

    async def test_time_works_charges_off(self, store: QuotaStore) -> None:
        charges = (Charge("k", 50_000, 50_000),)
        assert not (await store.decide(Ask(charges))).refused
        answer = await store.decide(Ask(charges))
        assert answer.refused
        await asyncio.sleep(answer.charges[0].used / 1e6 + 0.002)
        assert not (await store.decide(Ask(charges))).refused

    async def test_places_are_for_as_many_as_there_are(self, store: QuotaStore) -> None:
        answers = [await places(store, Place("p", 2, holder)) for holder in "abc"]
        assert [answer.refused for answer in answers] == [False, False, True]
        assert [answer.places[0].used for answer in answers] == [1, 2, 2]
        await store.free([("p", "a"), ("p", "never"), ("unknown", "a")])
        assert not (await places(store, Place("p", 2, "c"))).refused

    async def test_a_place_that_is_not_renewed_is_free_by_itself(self, store: QuotaStore) -> None:
        await places(store, Place("p", 2, "short"), ttl_ms=50)
        await places(store, Place("p", 2, "long"), ttl_ms=50)
        assert await store.hold([("p", "long"), ("q", "new")], ttl_s=60) == [2, 1]
        await asyncio.sleep(0.06)
        answer = await places(store, Place("p", 2, "next"))
        assert (answer.refused, answer.places[0].used) == (False, 2)
        assert (await places(store, Place("p", 2, "last"))).refused

    async def test_a_holder_is_counted_once(self, store: QuotaStore) -> None:
        await places(store, Place("p", 2, "a"))
        assert await store.hold([("p", "a")], ttl_s=60) == [1]

    async def test_what_is_forgotten_was_never_used(self, store: QuotaStore) -> None:
        await store.decide(Ask((charge("k", 3),), (Place("p", 1, "h"),), 60_000))
        await store.forget(["k", "p", "unknown"])
        answer = await store.decide(Ask((charge("k", 3),), (Place("p", 1, "i"),), 60_000))
        assert not answer.refused

    async def test_decisions_of_one_moment_are_each_their_own(self, store: QuotaStore) -> None:
        asks = [one(store, charge(f"k{number % 50}")) for number in range(200)]
        answers = await asyncio.gather(*asks)
        assert sum(answer.refused for answer in answers) == 50
        for number in range(50):
            of_one = answers[number::50]
            used = sorted(hours(answer.charges[0].used) for answer in of_one if not answer.refused)
            assert used == [1, 2, 3]

    async def test_numbers_keep_all_their_digits(self, store: QuotaStore) -> None:
        """Microseconds since 1970 have 16; Lua's own text of a number has 14."""
        small = Charge("k", 7, 1_000_000_000)
        used = [(await store.decide(Ask((small,)))).charges[0].used for _ in range(3)]
        for earlier, later in pairwise(used):
            assert later <= earlier + 7
        await store.decide(Ask((Charge("big", 10**15, 2 * 10**15),)))
        left = (await store.decide(Ask((Charge("big", 3, 2 * 10**15),)))).charges[0].used
        assert 10**15 - 60_000_000 < left <= 10**15 + 3


class TestQuotas(QuotaConformance):
    """In memory, and in one Redis."""


class TestCluster(QuotaConformance):
    """In a cluster of three."""

    @pytest.fixture
    @staticmethod
    async def store(redis_nodes: list[RedisServer]) -> AsyncIterator[QuotaStore]:
        async with connected(redis_nodes[0].port, kind="cluster") as connection:
            yield RedisQuotas(connection)


# --- Redis alone


async def test_what_is_not_in_use_is_not_in_redis(redis_server: RedisServer) -> None:
    async with connected(redis_server.port, namespace="idle") as connection:
        store = RedisQuotas(connection)
        await store.decide(Ask((Charge("k", 20_000, 40_000),), (Place("p", 1, "h"),), 20))
        assert sorted(redis_server.ask("KEYS", "{idle}*")) == [  # type: ignore[call-overload]
            "{idle}:1:k",
            "{idle}:1:p",
        ]
        await asyncio.sleep(0.05)
        assert redis_server.ask("KEYS", "{idle}*") == []


async def test_scripts_are_loaded_again_where_redis_has_forgotten_them(
    redis_server: RedisServer,
) -> None:
    async with connected(redis_server.port) as connection:
        store = RedisQuotas(connection)
        for used in (1, 2):
            redis_server.ask("SCRIPT", "FLUSH")
            answers = await asyncio.gather(one(store, charge("a")), one(store, charge("b")))
            assert [hours(answer.charges[0].used) for answer in answers] == [used, used]


async def test_decisions_of_one_moment_are_one_command(redis_server: RedisServer) -> None:
    async with connected(redis_server.port) as connection:
        store = RedisQuotas(connection)
        await one(store, charge("warm"))
        before = _calls(redis_server, "evalsha")
        await asyncio.gather(*(one(store, charge(f"k{number}")) for number in range(50)))
        assert _calls(redis_server, "evalsha") == before + 1


async def test_gateways_with_another_schema_share_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(redis_server.port, namespace="n") as new:
        await one(RedisQuotas(new), charge("k", 3))
        monkeypatch.setattr(redis_connection, "SCHEMA_VERSION", 0)
        async with connected(redis_server.port, namespace="n") as old:
            redis_server.ask("HSET", "{n}:0:k", "in", "another form")
            with pytest.raises(StoreDown, match="WRONGTYPE"):
                await one(RedisQuotas(old), charge("k"))
            assert not (await one(RedisQuotas(old), charge("other"))).refused
        assert (await one(RedisQuotas(new), charge("k"))).refused
        assert not (await one(RedisQuotas(new), charge("other", 3))).refused


def _calls(server: RedisServer, command: str) -> int:
    stats = server.ask("INFO", "commandstats")
    assert isinstance(stats, dict)
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
