"""Decisions without and with the store, and what becomes of them when callers leave."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import pytest

from gateway.limits.limiter import Limiter
from gateway.limits.prepaid import MOST_AHEAD
from gateway.limits.verdict import Verdict
from gateway.ports import StoreDown
from gateway.stores.quotas import MemoryQuotas
from routing.limits import OnFailure, Per, Rule, Source
from routing.quota import Answer, Ask
from tests.limits.building import at_a_time, limiter, rate, wanted
from tests.limits.virtual import VirtualLoop
from tests.pipeline.scripted import Clock


class Store(MemoryQuotas):
    """Counts what it is asked; it may be slow, or down."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.asked = 0
        self.is_down = False
        self.let_go: asyncio.Event | None = None

    async def decide(self, ask: Ask) -> Answer:
        self.asked += 1
        if self.is_down:
            raise StoreDown("gone")
        answer = await super().decide(ask)
        if self.let_go is not None:
            await self.let_go.wait()
        return answer

    async def hold(self, places: Sequence[tuple[str, str]], *, ttl_s: float) -> list[int]:
        if self.is_down:
            raise StoreDown("gone")
        return await super().hold(places, ttl_s=ttl_s)

    async def free(self, places: Sequence[tuple[str, str]]) -> None:
        if self.is_down:
            raise StoreDown("gone")
        await super().free(places)

    def down_reason(self) -> str | None:
        return "gone" if self.is_down else None


class Bench:
    """Limiters of several gateways over one store and one clock."""

    def __init__(self, gateways: int = 1) -> None:
        self.clock = Clock()
        self.store = Store(self.clock)
        self.limiters = [
            limiter(self.store, self.clock, down=self.store.down_reason) for _ in range(gateways)
        ]

    @property
    def limiter(self) -> Limiter:
        return self.limiters[0]

    async def ask(self, *rules: Rule, tenant: str = "a", at: int = 0) -> Verdict:
        return await self.limiters[at].decide([wanted(rule, tenant) for rule in rules])

    async def look(self) -> None:
        """Do what is done every quarter of a second."""
        for each in self.limiters:
            await each._held._look()

    async def close(self) -> None:
        for each in self.limiters:
            await each.close()


@pytest.fixture
async def bench():
    bench = Bench()
    yield bench
    await bench.close()


async def test_a_flood_over_the_limit_does_not_reach_the_store(bench: Bench) -> None:
    rule = rate(10, 2)
    for _ in range(3):
        await bench.ask(rule)
    asked = bench.store.asked
    verdicts = [await bench.ask(rule) for _ in range(100)]
    assert all(verdict.refused for verdict in verdicts)
    assert bench.store.asked == asked
    assert bench.limiter.decisions["rate", "denied"] == 101
    bench.clock.now_s += verdicts[0].wait_us / 1e6
    assert not (await bench.ask(rule)).refused


async def test_a_long_wait_is_believed_for_a_second_only(bench: Bench) -> None:
    """The limit may have been reset through another gateway."""
    rule = rate(0.01, 1)
    await bench.ask(rule)
    assert (await bench.ask(rule)).refused
    await bench.store.forget([rule.key("a", "m")])
    bench.clock.now_s += 0.9
    assert (await bench.ask(rule)).refused
    bench.clock.now_s += 0.2
    assert not (await bench.ask(rule)).refused


async def test_who_asks_often_is_charged_ahead_and_within_the_limit(bench: Bench) -> None:
    rule = rate(1000, 100)
    for _ in range(2000):  # 500 a second
        assert not (await bench.ask(rule)).refused
        bench.clock.now_s += 0.002
    assert bench.store.asked < 250 + 2000 / 20
    bench.clock.now_s += 2
    admitted = 0
    for _ in range(4000):  # 2000 a second
        admitted += not (await bench.ask(rule)).refused
        bench.clock.now_s += 0.0005
    assert 0.99 * (100 + 2000) <= admitted <= 100 + 2000


async def test_what_was_charged_ahead_is_good_for_a_second_only(bench: Bench) -> None:
    """Later it would come on top of what the limit allows then."""
    rule = rate(1, 1000)
    for _ in range(83):
        await bench.ask(rule)
        bench.clock.now_s += 0.0125
    asked = bench.store.asked
    bench.clock.now_s += 0.5
    await bench.ask(rule)
    assert bench.store.asked == asked
    bench.clock.now_s += 1.0
    await bench.ask(rule)
    assert bench.store.asked == asked + 1
    bench.clock.now_s += 60
    await bench.look()
    assert len(bench.limiter._prepaid) == 0


async def test_several_gateways_together_keep_the_limit() -> None:
    bench, rule, chance = Bench(3), rate(200, 20), random.Random(1)
    admitted = 0
    for _ in range(2500):  # 500 a second, for 5 s
        admitted += not (await bench.ask(rule, at=chance.randrange(3))).refused
        bench.clock.now_s += 0.002
        if chance.random() < 0.01:
            await bench.look()
    assert 0.99 * (20 + 1000) <= admitted <= 20 + 1000
    await bench.close()


async def test_of_several_limits_the_longest_wait_is_told(bench: Bench) -> None:
    """Also when nobody asks the store any more."""
    quick, slow = rate(1, 1, "quick"), rate(0.1, 1, "slow")
    await bench.ask(quick, slow)
    asked = bench.store.asked
    for _ in range(3):
        verdict = await bench.ask(quick, slow)
        assert verdict.refused_by == slow
        assert verdict.wait_us == pytest.approx(10_000_000)
        assert {state.rule.name for state in verdict.states if state.over} == {"quick", "slow"}
    assert bench.store.asked == asked


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gateways", [None, 1, 4])
async def test_who_comes_back_when_it_was_told_to_is_let_in(
    seed: int, gateways: int | None
) -> None:
    """A lone client and whole seconds, as in Retry-After; with `gateways` the store is down."""
    chance = random.Random(seed)
    rules = [
        rate(chance.choice([0.02, 0.3, 1, 7, 60]), chance.randint(1, 9), f"r{number}")
        for number in range(3)
    ]
    bench = Bench()
    if gateways is not None:
        bench.limiter._held.gateways = gateways
        bench.store.is_down = True
    refused = 0
    for _ in range(200):
        verdict = await bench.ask(*rules)
        if verdict.refused:
            refused += 1
            bench.clock.now_s += math.ceil(verdict.wait_us / 1e6)
            assert not (await bench.ask(*rules)).refused
        bench.clock.now_s += chance.random() * 0.2
    assert refused > 10
    await bench.close()


async def test_a_refund_is_there_for_the_next(bench: Bench) -> None:
    rule = rate(0.01, 1)
    for _ in range(3):
        verdict = await bench.ask(rule)
        assert not verdict.refused
        bench.limiter.refund(verdict)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not (await bench.ask(rule)).refused
    assert (await bench.ask(rule)).refused


async def test_a_caller_that_leaves_is_counted_and_holds_no_place(bench: Bench) -> None:
    bench.store.let_go = asyncio.Event()
    asking = asyncio.create_task(bench.ask(rate(0.01, 5), at_a_time(1)))
    while not bench.store.asked:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    bench.store.let_go.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.limiter.decisions == {("rate", "allowed"): 1, ("places", "allowed"): 1}
    assert bench.limiter.places == 0
    assert not (await bench.ask(at_a_time(1))).refused


# --- while the store is down


async def test_each_limit_says_what_decides_while_the_store_is_down(bench: Bench) -> None:
    bench.store.is_down = True
    local = rate(0.01, 2, "local")
    verdicts = [await bench.ask(local) for _ in range(3)]
    assert [verdict.refused for verdict in verdicts] == [False, False, True]
    assert {verdict.source for verdict in verdicts} == {Source.LOCAL}
    opened = rate(0.01, 1, "open", on_failure=OnFailure.OPEN)
    for _ in range(3):
        verdict = await bench.ask(opened)
        assert (verdict.refused, verdict.source) == (False, Source.OPEN)
    closed = rate(0.01, 1, "closed", on_failure=OnFailure.CLOSED)
    verdict = await bench.ask(closed)
    assert (verdict.refused, verdict.source) == (True, Source.CLOSED)
    observed = rate(0.01, 1, "observed", on_failure=OnFailure.CLOSED, enforce=False)
    assert not (await bench.ask(observed)).refused
    assert bench.limiter.sources == {"shared": 0, "local": 3, "open": 4, "closed": 1}


async def test_one_closed_limit_refuses_and_nothing_is_charged(bench: Bench) -> None:
    bench.store.is_down = True
    local, closed = rate(0.01, 1, "l"), rate(0.01, 1, "c", on_failure=OnFailure.CLOSED)
    assert (await bench.ask(local, closed)).refused
    assert not (await bench.ask(local)).refused


async def test_each_gateway_takes_its_share_while_the_store_is_down() -> None:
    bench, rule, seats = Bench(4), rate(0.01, 8), at_a_time(9)
    for at in range(4):
        await bench.ask(rate(1, 1, "other"), at=at)
    await bench.look()
    await bench.look()
    bench.clock.now_s += 10
    await bench.look()
    assert [each.gateways for each in bench.limiters] == [4] * 4
    bench.store.is_down = True
    for at in range(4):
        taken = [await bench.ask(rule, at=at) for _ in range(4)]
        assert [verdict.refused for verdict in taken] == [False, False, True, True]
        seated = [await bench.ask(seats, at=at) for _ in range(4)]
        assert [verdict.refused for verdict in seated] == [False, False, True, True]
    bench.store.is_down = False
    await bench.close()


async def test_a_local_refund_and_a_local_place_are_given_back(bench: Bench) -> None:
    bench.store.is_down = True
    rule, seats = rate(0.01, 1), at_a_time(1)
    for _ in range(3):
        verdict = await bench.ask(rule, seats)
        assert not verdict.refused
        assert (await bench.ask(seats)).refused
        bench.limiter.refund(verdict)
        bench.limiter.free(verdict)


async def test_places_taken_during_an_outage_count_when_it_is_over(bench: Bench) -> None:
    await bench.ask(rate(1, 1))
    await bench.look()
    bench.store.is_down = True
    seats = at_a_time(2)
    mine = await bench.ask(seats)
    gone = await bench.ask(seats)
    bench.limiter.free(gone)
    with pytest.raises(StoreDown):
        await bench.look()
    bench.store.is_down = False
    await bench.look()
    assert (await bench.limiter.peek([wanted(seats)]))[0].used == 1
    bench.limiter.free(mine)
    await asyncio.sleep(0)
    await bench.look()
    assert (await bench.limiter.peek([wanted(seats)]))[0].used == 0


async def test_a_place_that_may_have_been_given_before_the_answer_was_lost_is_freed(
    bench: Bench,
) -> None:
    seats = at_a_time(1)
    decide = bench.store.decide

    async def lost(ask: Ask) -> Answer:
        await decide(ask)
        raise StoreDown("too late")

    bench.store.decide = lost  # type: ignore[method-assign]
    verdict = await bench.ask(seats)
    assert verdict.source is Source.LOCAL
    bench.limiter.free(verdict)
    bench.store.decide = decide  # type: ignore[method-assign]
    await bench.look()
    assert not (await bench.ask(seats)).refused


# --- places are leases


async def test_places_are_renewed_while_they_are_held(bench: Bench) -> None:
    seats = at_a_time(1)
    verdict = await bench.ask(seats)
    for _ in range(10):
        bench.clock.now_s += 10
        await bench.look()
        assert (await bench.ask(seats)).refused
    bench.limiter.free(verdict)
    await asyncio.sleep(0)
    await bench.look()
    assert not (await bench.ask(seats)).refused


async def test_places_of_a_gateway_that_was_killed_are_free_after_the_lease() -> None:
    bench, seats = Bench(2), at_a_time(50)
    for _ in range(50):
        assert not (await bench.ask(seats, at=0)).refused
    assert (await bench.ask(seats, at=1)).refused
    bench.clock.now_s += 29.9
    assert (await bench.ask(seats, at=1)).refused
    bench.clock.now_s += 0.2
    for _ in range(50):
        assert not (await bench.ask(seats, at=1)).refused
    await bench.close()


async def test_a_gateway_that_stops_gives_everything_back() -> None:
    bench, seats = Bench(2), at_a_time(3)
    for _ in range(3):
        await bench.ask(seats)
    await bench.look()
    await bench.limiters[0].close()
    assert not (await bench.ask(seats, at=1)).refused
    bench.clock.now_s += 10
    await bench.limiters[1]._held._look()
    assert bench.limiters[1].gateways == 1
    await bench.limiters[1].close()


async def test_a_reset_is_felt_at_once(bench: Bench) -> None:
    rule = rate(0.01, 1, per=Per.TENANT_MODEL)
    await bench.ask(rule)
    assert (await bench.ask(rule)).refused
    assert (await bench.ask(rule, tenant="b")).refused is False
    await bench.limiter.reset([rule.key("a", "m")])
    assert not (await bench.ask(rule)).refused
    assert (await bench.ask(rule, tenant="b")).refused
    await bench.limiter.reset([])


# --- delays


class Far(MemoryQuotas):
    """A store that is some time away, each way another one."""

    def __init__(self, clock: Callable[[], float], mean_s: float, chance: random.Random) -> None:
        super().__init__(clock)
        self.charged_us = 0
        self._mean_s = mean_s
        self._chance = chance

    async def decide(self, ask: Ask) -> Answer:
        await asyncio.sleep(self._chance.expovariate(1 / self._mean_s))
        answer = await super().decide(ask)
        if not answer.refused:
            each = zip(ask.charges, answer.charges, strict=True)
            self.charged_us += sum(charge.cost_us + said.extra_us for charge, said in each)
        await asyncio.sleep(self._chance.expovariate(1 / self._mean_s))
        return answer


@pytest.mark.parametrize("mean_s", [0.001, 0.1])
@pytest.mark.parametrize(("per_s", "burst"), [(200, 20), (50, 10)])
def test_a_store_that_is_far_costs_nothing_of_the_limit(
    mean_s: float, per_s: int, burst: int
) -> None:
    """Three gateways that are asked for two and a half times as much, at random."""
    chance, rule = random.Random(1), rate(per_s, burst)

    async def offer() -> tuple[int, int, float]:
        loop = asyncio.get_running_loop()
        store = Far(loop.time, mean_s, chance)
        gateways = [limiter(store, loop.time) for _ in range(3)]
        began_s = loop.time()
        asking = []
        while loop.time() < began_s + 10:
            asking.append(loop.create_task(chance.choice(gateways).decide([wanted(rule)])))
            await asyncio.sleep(chance.expovariate(2.5 * per_s))
        took_s = loop.time() - began_s
        verdicts = await asyncio.gather(*asking)
        for each in gateways:
            await each.close()
        admitted = sum(not verdict.refused for verdict in verdicts)
        return admitted, store.charged_us // rule.cost_us(1), took_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        admitted, charged, took_s = runner.run(offer())
    assert charged - admitted <= 3 * burst / MOST_AHEAD  # what was charged ahead at the end
    assert 0.99 * (burst + per_s * took_s) <= admitted <= burst + per_s * (took_s + 5 * mean_s) + 1


async def often(bench: Bench, rule: Rule) -> None:
    """Use a quota often enough that it is charged ahead, and use up what was."""
    for _ in range(60):
        bench.clock.now_s += 0.01
        await bench.ask(rule)
    while bench.limiter._prepaid._quotas[rule.key("a", "m")].paid_us:
        await bench.ask(rule)


async def begun(bench: Bench, rule: Rule, count: int) -> list[asyncio.Task[Verdict]]:
    asking = [asyncio.create_task(bench.ask(rule)) for _ in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return asking


async def test_others_wait_for_the_question_that_charges_ahead() -> None:
    bench, rule = Bench(), rate(1000, 1000)
    await often(bench, rule)
    bench.store.asked, bench.store.let_go = 0, asyncio.Event()
    asking = await begun(bench, rule, 8)
    assert bench.store.asked == 1
    (left, *others) = asking[1:]
    left.cancel()
    bench.store.let_go.set()
    verdicts = await asyncio.gather(asking[0], *others)
    assert bench.store.asked == 1
    assert {(verdict.refused, verdict.source) for verdict in verdicts} == {(False, Source.SHARED)}


async def test_nobody_waits_twice_for_a_store_that_is_down() -> None:
    bench, rule = Bench(), rate(1000, 1000)
    await often(bench, rule)
    bench.store.asked, bench.store.is_down = 0, True
    verdicts = await asyncio.gather(*(await begun(bench, rule, 8)))
    assert bench.store.asked == 1
    assert {verdict.source for verdict in verdicts} == {Source.LOCAL}
