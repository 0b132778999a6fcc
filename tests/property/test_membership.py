"""Whoever comes and goes while requests run: they go to who is there, and nothing stays behind."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.balancing.least_request import LeastRequest
from routing.errors import NoReadyEndpoint, NoSuchModel
from routing.fleet import FleetTable, ModelVersion
from routing.pool import Lease
from routing.retention import GONE_AFTER_S, Retention, RetentionSettings
from routing.types import Blame, Server
from tests.unit.routing.building import pool_of

NAMES = ("a", "b", "c", "d")
KEY = ModelVersion("m", 1)
SOME_NAME = st.sampled_from(NAMES)


class MembershipMachine(RuleBasedStateMachine):
    """A pool and a table whose servers change under the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.table = FleetTable((), quorum=0.5, recently_ready_s=50.0)
        self.pool = pool_of(
            (),
            balancer=LeastRequest(),
            random=random.Random(5).random,
            max_detached_calls=2,
            slow_start_s=30.0,
        )
        self.there: set[str] = set()
        self.leaving: set[str] = set()
        self.ready: set[str] = set()
        self.leases: list[tuple[Lease, object]] = []

    @rule(step_s=st.floats(0.01, 60))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(name=SOME_NAME, capacity=st.sampled_from([1.0, 4.0]))
    def comes_or_changes(self, name: str, capacity: float) -> None:
        server = Server(name, capacity=capacity, model_capacity={"m": capacity * 2})
        if name in self.there:
            self.pool.update(server)
            self.table.update(server, now_s=self.now_s)
        else:
            self.pool.add(server)
            self.table.add(server, now_s=self.now_s)
        self.there.add(name)
        self.leaving.discard(name)
        assert self.pool.loads[name].server.capacity == capacity

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.there)))
        self.table.leave(name, now_s=self.now_s)
        self.leaving.add(name)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def is_removed(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.there)))
        self.table.remove(name, now_s=self.now_s)
        self.pool.remove(name)
        for names in (self.there, self.leaving, self.ready):
            names.discard(name)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.there)))
        self.table.observe_ready(name, [KEY], asked_s=self.now_s, now_s=self.now_s)
        self.table.server_up(name, server_id="", triton_version="2.58.0", now_s=self.now_s)
        self.ready.add(name)

    @rule(rows=st.integers(1, 8), tried=st.sets(SOME_NAME))
    def is_asked(self, rows: int, tried: set[str]) -> None:
        usable = self.ready - self.leaving - tried
        try:
            route = self.table.snapshot.resolve("m", None, self.now_s)
            lease = self.pool.pick(route, now_s=self.now_s, tried=tried, rows=rows)
        except (NoReadyEndpoint, NoSuchModel):
            full = {name for name, load in self.pool.loads.items() if load.detached >= 2}
            assert usable <= full
        else:
            assert lease.server in usable
            self.leases.append((lease, self.pool.loads[lease.server]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), blame=st.sampled_from(Blame), detach=st.booleans(), end=st.booleans())
    def moves_on(self, data: st.DataObject, blame: Blame, detach: bool, end: bool) -> None:
        lease, load = data.draw(st.sampled_from(self.leases))
        lease.settle(blame, self.now_s)
        if detach:
            lease.detach()
        if end:
            lease.release()
            self.leases.remove((lease, load))

    @invariant()
    def the_books_count_what_runs_on_each_server_that_is_there(self) -> None:
        assert set(self.pool.loads) == self.there
        for load in self.pool.loads.values():
            assert load.calls == sum(1 for _, on in self.leases if on is load)

    @invariant()
    def nothing_is_kept_of_who_is_gone(self) -> None:
        pool, table = self.pool, self.table
        kept = pool._saturated | pool.circuits._lost_s.keys()
        for group in pool.circuits._groups.values():
            kept |= group.breakers.keys() | group.untold
        for choices in (*pool._current.values(), *pool._choices.values()):
            kept |= {candidate.name for candidate in choices.all_candidates}
        kept |= table.snapshot.servers.keys() | table._observed.keys()
        for model in table.snapshot.models.values():
            for route in model.versions.values():
                kept |= {*route.servers, *route.left_out}
        assert kept <= self.there

    @invariant()
    def the_picture_shows_who_leaves(self) -> None:
        rows = self.table.snapshot.servers.values()
        assert {row.name for row in rows if row.leaving} == self.leaving

    def teardown(self) -> None:
        for lease, _ in self.leases:
            lease.release()
        for load in self.pool.loads.values():
            assert (load.calls, load.rows, load.detached) == (0, 0, 0)


MembershipMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestMembership = MembershipMachine.TestCase


class RetentionMachine(RuleBasedStateMachine):
    """A source that names whom it likes, of servers that answer as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.settings = RetentionSettings(grace_s=30.0, max_removed_share=0.5)
        self.retention = Retention(self.settings)
        self.members: set[str] = set()
        self.named: set[str] = set()
        self.silent: dict[str, float] = {}
        self.missing: dict[str, float] = {}

    @rule(step_s=st.floats(0.1, 40))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s
        self.review()

    @rule(names=st.sets(SOME_NAME))
    def answers(self, names: set[str]) -> None:
        self.named = names
        self.review()

    @rule(name=SOME_NAME)
    def falls_silent_or_answers_again(self, name: str) -> None:
        if self.silent.pop(name, None) is None:
            self.silent[name] = self.now_s
        self.review()

    def review(self) -> None:
        before = set(self.members)
        for name in before - self.named:
            self.missing.setdefault(name, self.now_s)
        distrusted = self.distrusted()
        kept = self.retention.review(
            before, self.named, answers=lambda name: name not in self.silent, now_s=self.now_s
        )
        assert kept <= before - self.named
        for name in before - self.named - kept:
            silent_s = self.now_s - self.silent.get(name, self.now_s)
            late = self.now_s - self.missing[name] >= self.settings.grace_s
            few = len(before - self.named) * 2 <= len(before)
            assert silent_s >= GONE_AFTER_S or (late and few and name not in distrusted)
        self.members = self.named | kept
        for name in self.named | (before - self.members):
            self.missing.pop(name, None)

    def distrusted(self) -> set[str]:
        return set(self.retention.distrusted)

    @invariant()
    def a_fleet_that_answers_is_never_emptied(self) -> None:
        for name in self.distrusted() - self.silent.keys():
            assert name in self.members


RetentionMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestRetention = RetentionMachine.TestCase
