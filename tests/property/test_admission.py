"""The admission queue: bounds, no idle room, nobody starves, tenants get equal parts."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from routing.admission.queue import EVERY, AdmissionQueue, QueueSettings, Space, Waiting
from routing.classes import CLASSES, PriorityClass

KINDS = st.sampled_from(CLASSES)
TENANTS = st.sampled_from("abcd")
VERSIONS = st.integers(1, 3)
ROWS = st.integers(1, 8)

Queue = AdmissionQueue[int]


def entry(
    kind: PriorityClass,
    tenant: str = "t",
    rows: int = 1,
    version: int = 1,
    until_s: float = 1e9,
    size_bytes: int = 0,
) -> Waiting[int]:
    return Waiting(
        0,
        kind=kind,
        tenant=tenant,
        version=version,
        rows=rows,
        until_s=until_s,
        size_bytes=size_bytes,
    )


class Admitting(RuleBasedStateMachine):
    """Requests come, leave, get late and have their turns in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = QueueSettings(12, 6)
        self.space = Space(100)
        self.queue: Queue = AdmissionQueue(self.settings, self.space)
        self.there: list[Waiting[int]] = []
        self.now_s = 0.0

    @rule(kind=KINDS, tenant=TENANTS, rows=ROWS, version=VERSIONS, stays_s=st.integers(1, 30))
    def offer(
        self, kind: PriorityClass, tenant: str, rows: int, version: int, stays_s: int
    ) -> None:
        new = entry(kind, tenant, rows, version, self.now_s + stays_s, size_bytes=rows * 3)
        before = list(self.there)
        offered = self.queue.offer(new)
        for each in offered.evicted:
            assert each in before
            assert each.kind.rank >= kind.rank, "nobody leaves for somebody less important"
            self.there.remove(each)
        if offered.taken:
            self.there.append(new)
        else:
            assert not offered.evicted
            assert before, "an empty queue refuses nobody"

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.there:
            one = data.draw(st.sampled_from(self.there))
            self.queue.remove(one)
            self.there.remove(one)

    @rule(seconds=st.integers(0, 10))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        late = list(self.queue.late(self.now_s))
        assert all(each.until_s <= self.now_s for each in late)
        self.there = [each for each in self.there if each not in late]
        assert all(each.until_s > self.now_s for each in self.there)

    @rule(room=st.sets(VERSIONS), used=st.sampled_from([0.0, 0.75, 0.95]))
    def serve(self, room: set[int], used: float) -> None:
        """A place for one of these versions, on servers that have so much of their limit in use."""
        served = self.queue.serve(lambda each, share: each.version in room and used < share)
        if served is not None:
            assert served.version in room
            self.there.remove(served)
            return
        could = [each for each in self.there if each.version in room]
        assert all(used >= each.kind.ceiling for each in could), "room is left although some wait"

    @invariant()
    def is_bounded(self) -> None:
        queue, settings = self.queue, self.settings
        assert len(queue) == len(self.there)
        assert all(each in queue for each in self.there)
        assert len(queue) <= settings.most + len(CLASSES) * settings.reserved
        tenants = Counter(each.tenant for each in self.there)
        assert max(tenants.values(), default=0) <= settings.most_a_tenant
        assert self.space.used == sum(each.size_bytes for each in self.there) <= self.space.most
        counts = Counter(each.kind.name for each in self.there)
        assert queue.by_class() == counts


TestAdmitting = Admitting.TestCase


@given(st.lists(KINDS, min_size=1, max_size=3, unique=True), st.data())
def test_no_class_that_waits_is_left_out_for_long(
    kinds: Sequence[PriorityClass], data: st.DataObject
) -> None:
    queue: Queue = AdmissionQueue(QueueSettings(10_000, 10_000), Space(0))
    for kind in kinds:
        for _ in range(200):
            queue.offer(entry(kind))
    order = []
    for _ in range(6 * EVERY):
        if data.draw(st.booleans()):  # some pass without waiting
            queue.passed(CLASSES[0])
        served = queue.serve(lambda *_: True)
        assert served is not None
        order.append(served.kind)
    for kind in kinds:
        turns = [number for number, each in enumerate(order) if each == kind]
        gaps = [b - a for a, b in zip([-1, *turns], [*turns, len(order)], strict=True)]
        assert max(gaps) <= EVERY + len(CLASSES)


@given(st.dictionaries(TENANTS, st.lists(ROWS, min_size=60, max_size=60), min_size=2))
def test_tenants_that_wait_get_equal_parts_in_rows(wanted: dict[str, list[int]]) -> None:
    queue: Queue = AdmissionQueue(QueueSettings(10_000, 10_000), Space(0))
    for tenant, rows in wanted.items():
        for each in rows:
            queue.offer(entry(CLASSES[1], tenant, each))
    got: Counter[str] = Counter(dict.fromkeys(wanted, 0))
    left = Counter({tenant: len(rows) for tenant, rows in wanted.items()})
    while min(left.values()):
        served = queue.serve(lambda *_: True)
        assert served is not None
        got[served.tenant] += served.rows
        left[served.tenant] -= 1
        assert max(got.values()) - min(got.values()) <= 3 * 8, "one quantum and one request"
