"""Retry budgets: retries are a share of the traffic, so that they cannot multiply an overload."""

import math


class RetryBudget:
    """Tokens earned by requests and spent by retries (after Finagle's RetryBudget).

    Each request earns `ratio` tokens, which are worth less and less over `ttl_s` seconds;
    `min_per_s` retries a second are free. One budget a model.
    """

    __slots__ = ("_earned", "_earned_s", "_free", "_free_s", "_min_per_s", "_ratio", "_ttl_s")

    def __init__(self, *, ratio: float, min_per_s: float, ttl_s: float = 10.0) -> None:
        self._ratio = ratio
        self._min_per_s = min_per_s
        self._ttl_s = ttl_s
        self._earned = 0.0
        self._earned_s = -math.inf
        self._free = 0.0
        self._free_s = -math.inf

    def deposit(self, now_s: float) -> None:
        """Note a request."""
        self._decay(now_s)
        self._earned += self._ratio

    def affords(self, now_s: float) -> bool:
        """Whether there is a token for one retry."""
        self._decay(now_s)
        most = max(1.0, self._min_per_s * self._ttl_s)
        passed_s = now_s - self._free_s  # infinite the first time, which fills it
        self._free = min(most, self._free + passed_s * self._min_per_s) if self._min_per_s else 0.0
        self._free_s = now_s
        return self._earned >= 1.0 or self._free >= 1.0

    def withdraw(self, now_s: float) -> bool:
        """Take a token for one retry; return False if there is none."""
        if not self.affords(now_s):
            return False
        if self._earned >= 1.0:
            self._earned -= 1.0
        else:
            self._free -= 1.0
        return True

    def _decay(self, now_s: float) -> None:
        if self._earned > 0.0:
            self._earned *= math.exp(-(now_s - self._earned_s) / self._ttl_s)
        self._earned_s = now_s
