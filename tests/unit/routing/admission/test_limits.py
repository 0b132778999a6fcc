"""The limit of a model on a server: what makes it grow and shrink, and where it stops."""

import heapq
import math
import statistics
from random import Random

import pytest

from routing.admission.limits import FoundLimit, ModelLimits, Shape, Waits

ONE = Shape()
BATCHING = Shape(instances=2, max_batch=8)


def found(shape: Shape = ONE) -> FoundLimit:
    return FoundLimit(shape)


def told(limit: FoundLimit, times: int = 1, *, used: int = 10_000, **waits: float) -> list[float]:
    """Let statistics come once a second; return the limit behind each."""
    rows = []
    for _ in range(times):
        told.now_s += 1.0  # type: ignore[attr-defined]
        seen = Waits(limit.shape, requests=int(waits.get("requests", 100)))
        seen = Waits(
            limit.shape, seen.requests, waits.get("queue_s", 0.0), waits.get("compute_s", 0.02)
        )
        limit.observe(seen, used=used, now_s=told.now_s)  # type: ignore[attr-defined]
        rows.append(limit.rows)
    return rows


told.now_s = 1000.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shape", "start", "floor"),
    [
        (ONE, 2, 1),
        (Shape(instances=4), 8, 4),
        (Shape(max_batch=1), 2, 1),
        (BATCHING, 32, 16),
        (Shape(decoupled=True), 64, 1),
    ],
)
def test_it_begins_with_twice_what_runs_at_a_time(shape: Shape, start: int, floor: int) -> None:
    limit = found(shape)
    assert limit.rows == start
    assert told(limit, 100, queue_s=9.0)[-1] == floor
    limit.full(0.0)
    assert limit.rows == floor


def test_it_grows_in_steps_while_it_is_used_and_the_queue_is_short() -> None:
    limit = found(Shape(instances=4))
    assert told(limit, 2) == [9, 10]
    assert told(limit, 1, used=4) == [10], "less than half of it was in use"
    assert told(limit, 1, used=5) == [11]
    assert told(limit, 100)[-1] == 64, "eight times what it began with"
    assert told(found(Shape(instances=2, max_batch=16)), 1) == [68], "an eighth of what runs"


@pytest.mark.parametrize(
    ("shape", "compute_s", "target_s"),
    [
        (ONE, 0.02, 0.01),  # half of what a request takes
        (Shape(instances=10), 0.1, 0.015),  # a request and a half before an instance is free
        (ONE, 0.001, 0.005),  # short queues are no trouble
        (Shape(max_batch=8), 0.02, 0.03),  # a batch is filled while another one runs
        (Shape(max_batch=8, batch_delay_s=0.1), 0.02, 0.2),  # the model wants them to wait
    ],
)
def test_it_shrinks_when_requests_wait_too_long(
    shape: Shape, compute_s: float, target_s: float
) -> None:
    limit = found(shape)
    before = limit.rows
    (grown,) = told(limit, queue_s=target_s, compute_s=compute_s)
    assert grown > before
    (shrunk,) = told(limit, queue_s=target_s * 1.01, compute_s=compute_s)
    assert shrunk == pytest.approx(grown * 0.9)


def test_how_long_requests_run_is_no_matter() -> None:
    limit = found(BATCHING)
    assert told(limit, 1, compute_s=0.02)[-1] < told(limit, 1, compute_s=20.0)[-1]


def test_without_requests_nothing_is_known() -> None:
    limit = found()
    told(limit, 3)
    before = limit.rows
    assert told(limit, 50, requests=0, queue_s=9.0) == [before] * 50


def test_one_step_a_second_however_often_it_is_told() -> None:
    limit, waits = found(), Waits(ONE, 100, 0.0, 0.02)
    limit.observe(waits, used=9, now_s=0.0)
    for tenths in range(1, 9):
        assert not limit.observe(waits, used=9, now_s=tenths / 10)
    assert limit.rows == 3
    assert limit.observe(waits, used=9, now_s=0.95)
    assert limit.rows == 4


def test_a_full_queue_counts_at_once_and_once_a_second() -> None:
    limit = found(BATCHING)
    for tenths in range(10):
        limit.full(tenths / 10)
    assert limit.rows == pytest.approx(32 * 0.7)
    limit.full(1.0)
    assert limit.rows == 16


def test_another_shape_keeps_what_was_found_out_in_proportion() -> None:
    limit = found()
    told(limit, 2)
    assert limit.rows == 4
    limit.observe(Waits(Shape(instances=3)), used=0, now_s=math.inf)
    assert limit.rows == 12


def test_versions_add_up() -> None:
    two = Shape(2, 8, 0.1) + Shape(1, 4, 0.2, decoupled=True)
    assert two == Shape(3, 8, 0.2, decoupled=True)


# --- the limits of a model


def limits(places: int = 2, fixed: int | None = None) -> ModelLimits:
    made = ModelLimits(fixed)
    made.fit(places)
    return made


def test_what_is_not_known_is_not_limited() -> None:
    some = limits()
    some.observe(1, Waits(ONE), 0.0)
    some.full(0, 0.0)
    assert list(some.rows) == [math.inf, 2]
    some.renew(1)
    assert list(some.rows) == [math.inf, math.inf]


def test_what_is_laid_down_counts_everywhere_and_can_be_taken_back() -> None:
    some = limits(fixed=5)
    some.observe(0, Waits(ONE), 0.0)
    some.fit(3)
    some.full(0, 0.0)
    assert list(some.rows) == [5, 5, 5]
    some.fix(None)
    assert list(some.rows) == [1.4, math.inf, math.inf]
    some.fix(7)
    assert list(some.rows) == [7, 7, 7]


def test_what_was_in_use_counts_since_the_last_step() -> None:
    some = limits(1)
    some.use(0, 9)
    some.use(0, 1)
    some.observe(0, Waits(ONE, 10), 0.0)
    assert some.rows[0] == 3
    some.observe(0, Waits(ONE, 10), 2.0)
    assert some.rows[0] == 3
    assert not some.is_at_start(0)


def test_the_fastest_server_says_how_long_a_request_runs() -> None:
    some = limits()
    assert some.compute_s() == 0
    some.observe(0, Waits(ONE, 10, 0.0, 0.5), 0.0)
    some.observe(1, Waits(ONE, 10, 0.0, 0.2), 0.0)
    assert some.compute_s() == 0.2


# --- a whole server


class Batcher:
    """A server with a dynamic batcher that takes whatever waits when an instance is free.

    A batch of n rows takes `fixed_s` + n * `row_s`. Each row that is answered is followed by
    another one within 4 ms, as long as the limit allows: there is always enough to do.
    """

    def __init__(self, shape: Shape, *, fixed_s: float, row_s: float) -> None:
        self.limit = FoundLimit(shape)
        self.rows_per_s: list[float] = []
        self._fixed_s, self._row_s = fixed_s, row_s
        self._events: list[tuple[float, int]] = []  # an arrival (0), or the end of so many rows
        self._waiting: list[float] = []
        self._idle = shape.instances
        self._in_flight = 0
        self._random = Random(1)
        self._answered, self._waited_s, self._worked_s = 0, 0.0, 0.0

    def run(self, seconds: int) -> None:
        now_s, second = 0.0, 1
        while second <= seconds:
            self._send(now_s)
            now_s, ended = heapq.heappop(self._events)
            if ended:
                self._in_flight -= ended
                self._answered += ended
                self._idle += 1
            else:
                self._waiting.append(now_s)
            self._start(now_s)
            if now_s >= second:
                self._tell(second)
                second += 1

    def _send(self, now_s: float) -> None:
        while self._in_flight < self.limit.rows:
            self._in_flight += 1
            heapq.heappush(self._events, (now_s + self._random.uniform(0, 0.004), 0))

    def _start(self, now_s: float) -> None:
        most = max(1, self.limit.shape.max_batch)
        while self._waiting and self._idle:
            batch, self._waiting = self._waiting[:most], self._waiting[most:]
            took_s = self._fixed_s + len(batch) * self._row_s
            self._waited_s += sum(now_s - since_s for since_s in batch)
            self._worked_s += took_s * len(batch)
            self._idle -= 1
            heapq.heappush(self._events, (now_s + took_s, len(batch)))

    def _tell(self, second: int) -> None:
        each = max(1, self._answered)
        waits = Waits(
            self.limit.shape, self._answered, self._waited_s / each, self._worked_s / each
        )
        self.limit.observe(waits, used=math.ceil(self.limit.rows), now_s=second)
        self.rows_per_s.append(self._answered)
        self._answered, self._waited_s, self._worked_s = 0, 0.0, 0.0


@pytest.mark.parametrize("shape", [Shape(max_batch=32), Shape(instances=3, max_batch=8)])
def test_a_model_that_gets_slower_with_its_batches_keeps_its_throughput(shape: Shape) -> None:
    fixed_s, row_s = 0.02, 0.0007  # a whole batch of 32 takes twice as long as one row
    best = shape.instances * shape.max_batch / (fixed_s + shape.max_batch * row_s)
    server = Batcher(shape, fixed_s=fixed_s, row_s=row_s)
    server.run(60)
    assert statistics.mean(server.rows_per_s[30:]) > 0.95 * best
    assert min(server.rows_per_s[30:]) > 0.8 * best


@pytest.mark.parametrize("instances", [1, 2, 8, 32])
def test_a_model_without_batches_keeps_its_throughput(instances: int) -> None:
    server = Batcher(Shape(instances=instances), fixed_s=0.02, row_s=0.0)
    server.run(60)
    assert statistics.mean(server.rows_per_s[30:]) > 0.93 * instances / 0.02
    assert server.limit.rows <= 2 * instances + 2, "and no long queue"
