"""Workers of one host: the shared books are right, and all breakers come to say the same."""

import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.balancing.least_request import LeastRequest
from routing.errors import NoReadyEndpoint
from routing.health.breaker import Circuit
from routing.pool import Lease
from routing.types import Blame
from tests.unit.routing.building import route
from tests.unit.routing.hosts import Host

SERVERS = "abcd"
WORKERS = 4
NUMBERS = st.integers(0, WORKERS - 1)
MODELS = ("m", "n")
ROUTES = [route(*SERVERS, model=model) for model in MODELS]
ROUTE = ROUTES[0]


@dataclass
class Held:
    """A lease of a worker, and what the table must say because of it."""

    worker: int
    lease: Lease
    model: str
    rows: int
    detached: bool = False


class TableMachine(RuleBasedStateMachine):
    """Picks, detaches, releases; workers that die and are replaced; slots that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(
            SERVERS,
            workers=WORKERS,
            models=MODELS,
            balancer=LeastRequest(),
            random=random.Random(7).random,
            max_detached_calls=10**9,
        )
        self.held: list[Held] = []
        self.unheard: set[tuple[int, str, str]] = set()

    @rule(worker=NUMBERS, which=st.sampled_from(ROUTES), rows=st.integers(1, 64))
    def pick(self, worker: int, which: object, rows: int) -> None:
        lease = self.host.pools[worker].pick(which, now_s=1.0, rows=rows)  # type: ignore[arg-type]
        self.held.append(Held(worker, lease, lease.choices.key.model, rows))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        held.lease.detach()
        held.detached = True

    @precondition(lambda self: self.held)
    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data: st.DataObject, times: int) -> None:
        held = data.draw(st.sampled_from(self.held))
        for _ in range(times):
            held.lease.release()
        self.held.remove(held)

    @rule(worker=NUMBERS)
    def die(self, worker: int) -> None:
        self.host.replace(worker)
        self.held = [held for held in self.held if held.worker != worker]
        self.unheard = {each for each in self.unheard if each[0] != worker}

    @rule(worker=NUMBERS, server=st.sampled_from(SERVERS), model=st.sampled_from(MODELS))
    def take_slot_back(self, worker: int, server: str, model: str) -> None:
        self.host.pools[worker].assign({(server, model): None})
        self.unheard.add((worker, server, model))

    @rule(worker=NUMBERS)
    def announce_slots(self, worker: int) -> None:
        self.host.pools[worker].assign(self.host.slots)
        self.unheard = {each for each in self.unheard if each[0] != worker}

    def rows(self, server: str, model: str, workers: set[int]) -> int:
        return sum(
            held.rows
            for held in self.held
            if (held.lease.server, held.model) == (server, model) and held.worker in workers
        )

    @invariant()
    def every_worker_sees_all_the_work(self) -> None:
        for number, pool in enumerate(self.host.pools):
            for which, model in zip(ROUTES, MODELS, strict=True):
                for candidate in pool.choices(which, 1.0).all_candidates:
                    name = candidate.name
                    sharing = {n for n in range(WORKERS) if (n, name, model) not in self.unheard}
                    seen_by = sharing if number in sharing else {number}
                    assert candidate.work(1.0) == self.rows(name, model, seen_by)

    @invariant()
    def detached_calls_are_those_of_all_workers(self) -> None:
        for name in SERVERS:
            detached = sum(held.detached for held in self.held if held.lease.server == name)
            assert {pool.loads[name].host_detached for pool in self.host.pools} == {detached}

    def teardown(self) -> None:
        for held in self.held:
            held.lease.release()
        assert not any(self.host.memory[self.replies_bytes :])

    @property
    def replies_bytes(self) -> int:
        return 8 * WORKERS * len(SERVERS)


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTable = TableMachine.TestCase


class NewsMachine(RuleBasedStateMachine):
    """Workers whose requests fail and succeed, and whose news arrive whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.host = Host(
            SERVERS, workers=WORKERS, balancer=LeastRequest(), random=random.Random(3).random
        )
        self.probes: list[tuple[int, Lease]] = []

    @rule(step_s=st.sampled_from([0.001, 0.1, 3.0, 20.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    def request(self, worker: int, blame_of: dict[str, Blame]) -> None:
        self.now_s += 0.001
        try:
            lease = self.host.pools[worker].pick(ROUTE, now_s=self.now_s)
        except NoReadyEndpoint:
            return
        self.now_s += 0.001
        lease.settle(blame_of.get(lease.server, Blame.NOBODY), self.now_s)
        lease.release()

    @rule(
        workers=st.lists(NUMBERS, min_size=1, max_size=30),
        failing=st.dictionaries(
            st.sampled_from(SERVERS),
            st.sampled_from([Blame.VERSION, Blame.SLOW, Blame.FATAL, Blame.SERVER]),
        ),
    )
    def requests(self, workers: list[int], failing: dict[str, Blame]) -> None:
        for worker in workers:
            self.request(worker, failing)

    @rule(worker=NUMBERS)
    def a_probe_takes_long(self, worker: int) -> None:
        lease = self.host.pools[worker].pick(ROUTE, now_s=self.now_s)
        if lease.probe:
            self.probes.append((worker, lease))
        else:
            lease.release()

    @precondition(lambda self: self.probes)
    @rule(blame=st.sampled_from([Blame.NOBODY, Blame.VERSION, Blame.UNTOLD]))
    def a_probe_ends(self, blame: Blame) -> None:
        _, lease = self.probes.pop()
        lease.settle(blame, self.now_s)
        lease.release()

    @rule(worker=NUMBERS)
    def tell(self, worker: int) -> None:
        self.host.tell(worker)

    @rule(worker=NUMBERS)
    def hear(self, worker: int) -> None:
        self.host.deliver(worker, self.now_s)

    @rule(worker=NUMBERS)
    def die(self, worker: int) -> None:
        self.host.replace(worker)
        self.probes = [(number, lease) for number, lease in self.probes if number != worker]

    @invariant()
    def one_probe_at_a_time(self) -> None:
        servers = [lease.server for _, lease in self.probes]
        assert len(servers) == len(set(servers))

    @invariant()
    def somebody_can_always_be_chosen(self) -> None:
        for pool in self.host.pools:
            assert pool.choices(ROUTE, self.now_s).everyone()

    def settle_down(self) -> None:
        for number in range(WORKERS):
            self.host.deliver(number, self.now_s)
        for _ in range(20):
            if not self.host.exchange(self.now_s):
                return
        raise AssertionError("the workers do not stop telling")

    def teardown(self) -> None:
        self.settle_down()
        views = [
            {
                (of, server): breaker.opened_until_s
                for of, breakers in pool.breakers().items()
                for server, breaker in breakers.items()
            }
            for pool in self.host.pools
        ]
        assert all(view == views[0] for view in views), views
        self.everyone_recovers()

    def everyone_recovers(self) -> None:
        for _, lease in self.probes:
            lease.release()
        for number in range(400):
            self.now_s += 2.0
            self.request(number % WORKERS, {})
            self.host.exchange(self.now_s)
        for pool in self.host.pools:
            assert pool.breakers() == {}
            assert all(
                breaker.circuit is Circuit.CLOSED
                for breaker in pool.circuits.transport.breakers.values()
            )


NewsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestNews = NewsMachine.TestCase
