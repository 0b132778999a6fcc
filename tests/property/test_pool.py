"""Whatever happens to the requests, the pool's books are right and its servers come back."""

import contextlib
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.balancing.least_request import LeastRequest
from routing.errors import NoReadyEndpoint, PinnedServerGone
from routing.pool import Lease
from routing.steering import Block, Steering
from routing.types import Blame, Server
from tests.unit.routing.building import pool_of, route

SERVERS = ("a", "b", "c", "d", "e")
BOUND = 2
ROUTE = route(*SERVERS)
BLOCKS = st.sets(
    st.builds(Block, st.just("m"), st.none(), st.sampled_from(SERVERS)), max_size=len(SERVERS)
)


@dataclass
class Held:
    """A lease, and what the books must say because of it."""

    lease: Lease
    rows: int
    detached: bool = False
    settled: bool = False
    released: bool = False


class PoolMachine(RuleBasedStateMachine):
    """Picks, settles, detaches and releases in any order, some of it more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(
            [Server(n, capacity=i + 1.0, zone="yz"[i % 2]) for i, n in enumerate(SERVERS)],
            balancer=LeastRequest(),
            random=random.Random(7).random,
            max_detached_calls=BOUND,
            slow_start_s=30.0,
            zone="z",
        )
        self.now_s = 1000.0
        self.held: list[Held] = []
        self.by_hand: set[str] = set()
        self.blocked: set[str] = set()

    def full(self) -> set[str]:
        open_ones = [h for h in self.held if h.detached and not h.released]
        counts = Counter(h.lease.server for h in open_ones)
        return {name for name, count in counts.items() if count >= BOUND}

    @rule(step_s=st.floats(0.001, 40))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(tried=st.sets(st.sampled_from(SERVERS)), rows=st.integers(1, 64))
    def pick(self, tried: set[str], rows: int) -> None:
        usable = set(SERVERS) - self.by_hand - self.full() - tried
        ejected = {name for by_server in self.pool.breakers().values() for name in by_server}
        if usable and not usable <= ejected:
            lease = self.pool.pick(ROUTE, now_s=self.now_s, tried=tried, rows=rows)
            assert lease.server in usable
            self.held.append(Held(lease, rows))
        elif not usable:
            with pytest.raises(NoReadyEndpoint) as refusal:
                self.pool.pick(ROUTE, now_s=self.now_s, tried=tried, rows=rows)
            assert refusal.value.saturated == bool(self.full() - self.by_hand - tried)
        else:
            with contextlib.suppress(NoReadyEndpoint):
                lease = self.pool.pick(ROUTE, now_s=self.now_s, tried=tried, rows=rows)
                assert lease.server in usable
                self.held.append(Held(lease, rows))

    @rule(key=st.text(), held=st.dictionaries(st.sampled_from(SERVERS), st.integers(0, 9)))
    def begin_sequence(self, key: str, held: dict[str, int]) -> None:
        usable = set(SERVERS) - self.by_hand - self.full()
        try:
            server = self.pool.place_sequence(ROUTE, key, held, now_s=self.now_s)
        except NoReadyEndpoint:
            assert not usable
        else:
            assert server in usable

    @rule(server=st.sampled_from(SERVERS))
    def pick_pinned(self, server: str) -> None:
        if server in self.blocked:
            with pytest.raises(PinnedServerGone):
                self.pool.pick_pinned(ROUTE, server, now_s=self.now_s)
        else:
            lease = self.pool.pick_pinned(ROUTE, server, now_s=self.now_s)
            assert lease.server == server
            self.held.append(Held(lease, 1))

    @rule(servers=st.sets(st.sampled_from(SERVERS)), blocks=BLOCKS)
    def steer(self, servers: set[str], blocks: set[Block]) -> None:
        self.pool.steer(Steering(frozenset(servers), frozenset(blocks)))
        self.blocked = {str(block.server) for block in blocks}
        self.by_hand = servers | self.blocked

    @precondition(lambda self: self.held)
    @rule(data=st.data(), blame=st.sampled_from(Blame), took_s=st.floats(0, 5))
    def settle(self, data: st.DataObject, blame: Blame, took_s: float) -> None:
        held = data.draw(st.sampled_from(self.held))
        if not held.settled:
            self.now_s += took_s
            held.lease.settle(blame, self.now_s)
            held.settled = True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        held.lease.detach()
        held.detached = held.detached or not held.released

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        held.lease.release()
        held.released = True

    @invariant()
    def the_books_are_right(self) -> None:
        held = [h for h in self.held if not h.released]
        for name, load in self.pool.loads.items():
            mine = [h for h in held if h.lease.server == name]
            expected = (len(mine), sum(h.rows for h in mine), sum(h.detached for h in mine))
            assert (load.calls, load.rows, load.detached) == expected
        for candidate in self.pool.choices(ROUTE, self.now_s).all_candidates:
            rows = sum(h.rows for h in held if h.lease.server == candidate.name)
            assert candidate.model.rows[candidate.place] == rows

    @invariant()
    def who_may_be_chosen_is_right(self) -> None:
        choices = self.pool.choices(ROUTE, self.now_s)
        usable = {candidate.name for candidate in choices.everyone()}
        assert usable == set(SERVERS) - self.by_hand - self.full() - {
            name for name, why in choices.excluded.items() if "ejected" in why
        } or (usable and all("ejected" in choices.excluded[name] for name in usable))
        assert all("operator" in choices.excluded[name] for name in self.by_hand)

    @invariant()
    def a_circuit_waits_only_for_a_probe_that_is_under_way(self) -> None:
        waiting = {id(breaker) for h in self.held if not h.released for breaker in h.lease.probe}
        for by_server in self.pool.breakers().values():
            for breaker in by_server.values():
                assert not breaker._probing or id(breaker) in waiting

    def teardown(self) -> None:
        for held in self.held:
            held.lease.release()
        for load in self.pool.loads.values():
            assert (load.calls, load.rows, load.detached) == (0, 0, 0)
        self.pool.steer(Steering())
        assert all(
            not breaker._probing
            for by_server in self.pool.breakers().values()
            for breaker in by_server.values()
        )
        self.everyone_recovers()

    def everyone_recovers(self) -> None:
        """With nothing but successes all circuits close, and all servers get their work."""
        for _ in range(300):
            self.now_s += 2.0
            lease = self.pool.pick(ROUTE, now_s=self.now_s)
            lease.settle(Blame.NOBODY, self.now_s)
            lease.release()
        assert self.pool.breakers() == {}
        assert self.pool.bad_versions() == []
        assert len(self.pool.choices(ROUTE, self.now_s).everyone()) == len(SERVERS)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


class EjectionMachine(RuleBasedStateMachine):
    """Servers that fail in every way, one request after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.pool = pool_of(SERVERS, balancer=LeastRequest(), random=random.Random(3).random)

    @rule(step_s=st.sampled_from([0.01, 1.0, 10.0, 100.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(
        failing=st.sets(st.sampled_from(SERVERS)),
        blame=st.sampled_from([Blame.VERSION, Blame.FATAL, Blame.SLOW, Blame.SERVER]),
        count=st.integers(1, 60),
    )
    def requests_come(self, failing: set[str], blame: Blame, count: int) -> None:
        for _ in range(count):
            lease = self.pool.pick(ROUTE, now_s=self.now_s)
            lease.settle(blame if lease.server in failing else Blame.NOBODY, self.now_s)
            lease.release()
            self.now_s += 0.01

    @invariant()
    def at_most_half_are_ejected_for_one_reason(self) -> None:
        for by_server in self.pool.breakers().values():
            assert len(by_server) <= len(SERVERS) // 2

    @invariant()
    def somebody_is_always_left(self) -> None:
        assert self.pool.choices(ROUTE, self.now_s).everyone()

    def teardown(self) -> None:
        PoolMachine.everyone_recovers(self)  # type: ignore[arg-type]


EjectionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestEjection = EjectionMachine.TestCase
