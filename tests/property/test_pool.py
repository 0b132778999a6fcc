"""Whatever happens to the requests, the pool's books are right."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.balancing.least_request import LeastRequest
from routing.errors import NoReadyEndpoint
from routing.pool import Lease, Pool
from routing.types import Server

SERVERS = ("a", "b", "c")
BOUND = 2


@dataclass
class Held:
    """A lease, and what the books must say because of it."""

    lease: Lease
    rows: int
    detached: bool = False
    released: bool = False


class PoolMachine(RuleBasedStateMachine):
    """Picks, detaches and releases in any order, some of it more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(
            [Server(name, capacity=number + 1.0) for number, name in enumerate(SERVERS)],
            balancer=LeastRequest(),
            random=random.Random(7).random,
            max_detached_calls=BOUND,
        )
        self.held: list[Held] = []

    def detached(self) -> Counter[str]:
        open_ones = [h for h in self.held if h.detached and not h.released]
        return Counter(h.lease.server for h in open_ones)

    @rule(
        ready=st.lists(st.sampled_from(SERVERS), unique=True),
        tried=st.sets(st.sampled_from(SERVERS)),
        rows=st.integers(1, 64),
    )
    def pick(self, ready: list[str], tried: set[str], rows: int) -> None:
        full = {name for name, count in self.detached().items() if count >= BOUND}
        allowed = set(ready) - tried - full
        if allowed:
            lease = self.pool.pick(ready, tried=tried, rows=rows)
            assert lease.server in allowed
            self.held.append(Held(lease, rows))
        else:
            with pytest.raises(NoReadyEndpoint) as refusal:
                self.pool.pick(ready, tried=tried, rows=rows)
            assert refusal.value.saturated == bool(set(ready) - tried)

    @rule(ready=st.lists(st.sampled_from(SERVERS), unique=True, min_size=1))
    def pick_pinned(self, ready: list[str]) -> None:
        lease = self.pool.pick_pinned(ready)
        assert lease.server == min(ready)
        self.held.append(Held(lease, 1))

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
            assert (load.calls, load.in_flight, load.detached) == expected

    def teardown(self) -> None:
        for held in self.held:
            held.lease.release()
        for load in self.pool.loads.values():
            assert (load.calls, load.in_flight, load.detached) == (0, 0, 0)
        assert self.pool.pick(SERVERS).server in SERVERS


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
