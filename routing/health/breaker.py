"""One circuit breaker: closed, open, half-open.

It judges the outcomes of requests it is told of. Whether a tripped breaker really opens is not its
decision: `routing.health.ejection` looks at the other servers first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


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
    """Judges one server, or one version on one server. `random` yields floats in [0, 1)."""

    __slots__ = (
        "_clean_since_s",
        "_consecutive",
        "_counted_s",
        "_good",
        "_openings",
        "_probing",
        "_random",
        "_recovered",
        "_total",
        "circuit",
        "opened_until_s",
        "settings",
        "tripped_s",
    )

    def __init__(self, settings: BreakerSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        self._random = random
        self.circuit = Circuit.CLOSED
        self.tripped_s = -math.inf
        self.opened_until_s = -math.inf
        self._openings = 0
        self._clean_since_s = -math.inf
        self._probing = False
        self.reset()

    def __repr__(self) -> str:
        return f"Breaker({self.circuit.value}, {self._consecutive} failures in a row)"

    def reset(self) -> None:
        """Close, and forget every outcome so far (but not how often it has opened)."""
        self.circuit = Circuit.CLOSED
        self.tripped_s = -math.inf
        self._consecutive = 0
        self._recovered = 0
        self._probing = False
        self._good = self._total = 0.0
        self._counted_s = -math.inf

    def success(self, now_s: float) -> bool:
        """Note a success; return True if it closed the circuit."""
        self._consecutive = 0
        if self.circuit is Circuit.HALF_OPEN:
            self._probing = False
            self._recovered += 1
            if self._recovered < self.settings.close_after:
                return False
            self.reset()
            self._clean_since_s = now_s
            return True
        if self._clean_since_s == math.inf and self.circuit is Circuit.CLOSED:
            self._clean_since_s = now_s  # it was reset
        self._count(1.0, 1.0, now_s)
        return False

    def failure(self, now_s: float, *, weight: float = 1.0) -> bool:
        """Note a failure that counts `weight`; return True if the breaker is tripped by it.

        Half-open it opens again by itself, since it was open before.
        """
        if self.circuit is Circuit.HALF_OPEN:
            self.open(now_s)
            return False
        if weight >= 1.0:
            self._consecutive += 1
        self._count(0.0, weight, now_s)
        if self._consecutive < self.settings.consecutive_failures and not self._rate_is_bad():
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
        self._clean_since_s = math.inf
        self.circuit = Circuit.OPEN
        self._probing = False
        self._recovered = 0
        self.tripped_s = now_s
        self.opened_until_s = now_s + full_s * (0.5 + 0.5 * self._random())

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

    def _count(self, good: float, total: float, now_s: float) -> None:
        passed_s = now_s - self._counted_s
        keep = math.exp(-passed_s / self.settings.window_s) if passed_s < math.inf else 0.0
        self._good = self._good * keep + good
        self._total = self._total * keep + total
        self._counted_s = now_s

    def _rate_is_bad(self) -> bool:
        if self._total < self.settings.min_requests:
            return False
        return self._good < self.settings.min_success_rate * self._total
