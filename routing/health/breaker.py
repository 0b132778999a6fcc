"""One circuit breaker: closed, open, half-open.

It judges the outcomes of requests it is told of, and hears what its replicas in other worker
processes tell (see `routing.health.news`). Whether a tripped breaker really opens is not its
decision: `routing.health.ejection` looks at the other servers first.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from routing.health.news import News

FRESH_S = 1.0
"""For so long after a failure a breaker tells its replicas of successes, too."""

_KEPT_FAILURES = 64
"""So many moments of failures are kept, to be told and to be compared with successes elsewhere."""


class Circuit(Enum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"  # gets nothing
    HALF_OPEN = "half_open"  # gets one request at a time


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a breaker trips and how it recovers; times in seconds.

    It trips after `consecutive_failures`, or when the success rate over about `window_s` falls
    below `min_success_rate` with at least `min_requests` in it. It stays open for `open_min_s`,
    doubling each time up to `open_max_s`; half-open it closes after `close_after` successes. Clean
    for `forget_after_s`, it starts at `open_min_s` again.
    """

    consecutive_failures: int = 5
    min_success_rate: float = 0.8
    window_s: float = 30.0
    min_requests: int = 20
    open_min_s: float = 5.0
    open_max_s: float = 120.0
    close_after: int = 3
    forget_after_s: float = 60.0


class Breaker:
    """Judges one server, or one version on one server. `random` yields floats in [0, 1).

    `untold` says that its replicas should hear of it.
    """

    __slots__ = (
        "_clean_since_s",
        "_counted_s",
        "_failed_at_s",
        "_failed_s",
        "_good",
        "_heard",
        "_in_a_row",
        "_openings",
        "_probing",
        "_random",
        "_recovered",
        "_succeeded_s",
        "_to_tell",
        "_total",
        "_turn",
        "circuit",
        "opened_until_s",
        "settings",
        "tripped_s",
        "untold",
    )

    def __init__(
        self,
        settings: BreakerSettings,
        random: Callable[[], float],
        *,
        succeeded_s: float = -math.inf,
    ) -> None:
        self.settings = settings
        self._random = random
        self.circuit = Circuit.CLOSED
        self.opened_until_s = -math.inf
        self._openings = 0
        self._clean_since_s = -math.inf
        self._succeeded_s = succeeded_s  # the newest success known, here or elsewhere
        self._failed_s = -math.inf  # the newest failure known
        self._turn = 0
        self._failed_at_s: deque[float] = deque(maxlen=_KEPT_FAILURES)  # those in a row
        self._to_tell: deque[tuple[float, float]] = deque(maxlen=_KEPT_FAILURES)
        self._heard: dict[int, News] = {}  # what each replica told last in this turn
        self._in_a_row = 0
        self._recovered = 0
        self._start_over()
        self.untold = False

    def __repr__(self) -> str:
        return f"Breaker({self.circuit.value}, {self._in_a_row} failures in a row)"

    def reset(self) -> None:
        """Close, and forget every outcome so far (but not how often it has opened)."""
        self._turn += 1
        self._start_over()
        self.untold = True

    def success(self, now_s: float) -> bool:
        """Note a success; return True if it closed the circuit."""
        if self._in_a_row or now_s - self._failed_s < FRESH_S:
            self.untold = True
        self._in_a_row = 0
        self._failed_at_s.clear()
        self._succeeded_s = now_s
        if self.circuit is Circuit.HALF_OPEN:
            self._probing = False
            self._recovered += 1
            self.untold = True
            return self._close_if_recovered(now_s)
        if self._clean_since_s == math.inf and self.circuit is Circuit.CLOSED:
            self._clean_since_s = now_s  # it was reset
        self._count(1.0, 1.0, now_s)
        return False

    def failure(self, now_s: float, *, weight: float = 1.0, began_s: float | None = None) -> bool:
        """Note a failure that counts `weight`; return True if the breaker is tripped by it.

        Half-open it opens again by itself, since it was open before.
        """
        self.untold = True
        self._failed_s = now_s
        if self.circuit is Circuit.HALF_OPEN:
            self.open(now_s)
            return False
        if weight >= 1.0:
            self._in_a_row += 1
            self._failed_at_s.append(now_s)
            self._to_tell.append((now_s if began_s is None else began_s, now_s))
        self._count(0.0, weight, now_s)
        enough = self._in_a_row >= self.settings.consecutive_failures
        if not enough and not self._rate_is_bad(now_s):
            return False
        self.tripped_s = now_s
        return self.circuit is Circuit.CLOSED

    def open(self, now_s: float) -> None:
        """Open, for longer each time, with jitter so that not all gateways probe together."""
        settings = self.settings
        if self._openings and now_s - self._clean_since_s > settings.forget_after_s:
            self._openings = 0
        full_s = min(settings.open_min_s * 2**self._openings, settings.open_max_s)
        self._openings = min(self._openings + 1, 16)
        self._turn += 1
        self.untold = True
        self._begin_open(now_s, now_s + full_s * (0.5 + 0.5 * self._random()))

    def probe_due(self, now_s: float) -> bool:
        """Whether one request may be sent as a probe now."""
        return not self._probing and now_s >= self.opened_until_s

    def begin_probe(self) -> None:
        """Note that a request is on its way as a probe; it must be settled."""
        self.circuit = Circuit.HALF_OPEN
        self._probing = True

    def end_probe(self) -> None:
        """Give the probe's place back: it told nothing (the caller left)."""
        self._probing = False

    def news(self, worker: int, server: str, model: str, version: int, allowed: int) -> News:
        """Return what replicas should know."""
        return News(
            worker=worker,
            server=server,
            model=model,
            version=version,
            turn=self._turn,
            is_open=self.circuit is not Circuit.CLOSED,
            opened_until_s=self.opened_until_s,
            openings=self._openings,
            allowed=allowed,
            tripped_s=self.tripped_s,
            failed_s=self._failed_s,
            succeeded_s=self._succeeded_s,
            failures=tuple(self._to_tell),
            good=self._good,
            total=self._total,
            counted_s=self._counted_s,
            recovered=self._recovered,
        )

    def told(self) -> None:
        """Note that the replicas have been told."""
        self._to_tell.clear()
        self.untold = False

    def hear(self, news: News, now_s: float) -> None:
        """Merge what a replica tells."""
        is_open = self.circuit is not Circuit.CLOSED
        mine = (self._turn, is_open, self.opened_until_s if is_open else 0.0)
        told = (news.turn, news.is_open, news.opened_until_s if news.is_open else 0.0)
        if told > mine:
            self._follow(news, now_s)
        elif told < mine:
            self.untold = True  # so that it catches up
        if news.turn != self._turn:
            return
        self._heard[news.worker] = news
        self.tripped_s = max(self.tripped_s, news.tripped_s)
        self._failed_s = max(self._failed_s, news.failed_s)
        if any(news.succeeded_s < ended_s < self._succeeded_s for _, ended_s in news.failures):
            self.untold = True  # they are not in a row: say so
        self._hear_failures(news)
        if self.circuit is not Circuit.CLOSED:
            self._close_if_recovered(now_s)

    def _hear_failures(self, news: News) -> None:
        if news.succeeded_s > self._succeeded_s:
            self._succeeded_s = news.succeeded_s
            later = [at_s for at_s in self._failed_at_s if at_s > news.succeeded_s]
            if len(later) < len(self._failed_at_s):
                self._in_a_row = len(later)
                self._failed_at_s = deque(later, _KEPT_FAILURES)
        fresh = [ended_s for _, ended_s in news.failures if ended_s > self._succeeded_s]
        self._in_a_row += len(fresh)
        self._failed_at_s.extend(fresh)

    def _follow(self, news: News, now_s: float) -> None:
        self.untold = True  # once more, since who told it may be gone before all have heard
        if news.is_open:
            self._openings = news.openings
            self._begin_open(news.tripped_s, news.opened_until_s)
        else:
            self._start_over()
            self._clean_since_s = now_s
        self._turn = news.turn

    def _start_over(self) -> None:
        self.circuit = Circuit.CLOSED
        self.tripped_s = -math.inf
        self._recovered = 0
        self._probing = False
        self._good = self._total = 0.0
        self._counted_s = -math.inf
        self._in_a_row = 0
        self._failed_at_s.clear()
        self._to_tell.clear()
        self._heard.clear()

    def _begin_open(self, tripped_s: float, until_s: float) -> None:
        self.circuit = Circuit.OPEN
        self.tripped_s = tripped_s
        self.opened_until_s = until_s
        self._clean_since_s = math.inf
        self._probing = False
        self._recovered = 0
        self._heard.clear()

    def _close_if_recovered(self, now_s: float) -> bool:
        recovered = self._recovered + sum(news.recovered for news in self._heard.values())
        if recovered < self.settings.close_after:
            return False
        self.reset()
        self._clean_since_s = now_s
        return True

    def _count(self, good: float, total: float, now_s: float) -> None:
        keep = self._fading(self._counted_s, now_s)
        self._good = self._good * keep + good
        self._total = self._total * keep + total
        self._counted_s = now_s

    def _fading(self, since_s: float, now_s: float) -> float:
        return math.exp(-(now_s - since_s) / self.settings.window_s)

    def _rate_is_bad(self, now_s: float) -> bool:
        good, total = self._good, self._total
        for news in self._heard.values():
            keep = self._fading(news.counted_s, now_s)
            good += news.good * keep
            total += news.total * keep
        if total < self.settings.min_requests:
            return False
        return good < self.settings.min_success_rate * total
