"""What this process knows of quotas without asking the store: prepaid amounts, and full ones.

Decides when a request need not be put to the store. A quota that is asked for often is charged
ahead, so that the next requests are paid already: what all gateways admit stays within the limit,
as everything is charged before it is used. What is charged in vain is not given back: it is at most
what the rate yields in `AHEAD_S`. One that is full stays so for a known time. Called by
`gateway.limits.limiter`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.limits.verdict import Verdict, Wanted, refusal
from routing.limits import SECOND_US, LimitState, Source

OFTEN_PER_S = 50.0
"""A quota used so often is charged ahead."""
AHEAD_S = 0.1
"""For so long, at the rate it was used at."""
MOST_AHEAD = 4
"""At most this part of the burst: others must find something too."""
VALID_S = 1.0
"""How long what was charged ahead may be used, and what the store said is believed."""
_IDLE_S = 10.0
_MEASURE_S = 0.5


@dataclass(slots=True)
class _Quota:
    """`used_us` of the burst were used at `asked_s`, as the store said; `paid_us` is prepaid.

    `paying` says that a charge ahead is under way.
    """

    paid_us: int = 0
    paid_until_s: float = 0.0
    used_us: int = 0
    asked_s: float = float("-inf")
    since_s: float = 0.0
    requests: int = 0
    spent_us: int = 0
    often: bool = False
    paying: bool = False
    spent_per_s: float = 0.0

    def at_least_used_us(self, now_s: float) -> int:
        """Return what of the burst is used at the least, if nobody has given anything back."""
        used_us = self.used_us - int((now_s - self.asked_s) * SECOND_US)
        return used_us if used_us > 0 else 0

    def measure(self, cost_us: int, now_s: float) -> None:
        """Note one more use."""
        passed_s = now_s - self.since_s
        if passed_s >= _MEASURE_S:
            self.often = self.requests / passed_s >= OFTEN_PER_S
            self.spent_per_s = self.spent_us / passed_s
            self.since_s, self.requests, self.spent_us = now_s, 0, 0
        self.requests += 1
        self.spent_us += cost_us


class Prepaid:
    """The quotas this process has used of late, by key."""

    def __init__(self) -> None:
        self._quotas: dict[str, _Quota] = {}

    def __len__(self) -> int:
        return len(self._quotas)

    def measure(self, wanted: Sequence[Wanted], now_s: float) -> None:
        """Note that a request is about to use these."""
        for each in wanted:
            if not each.rule.counts_places:
                quota = self._quotas.get(each.key)
                if quota is None:
                    quota = self._quotas[each.key] = _Quota(since_s=now_s)
                quota.measure(each.cost_us, now_s)

    def decide(self, wanted: Sequence[Wanted], now_s: float) -> Verdict | None:
        """Decide, without the store, on a request that was measured; None if it has to be asked."""
        quotas: list[_Quota] = []
        over: list[tuple[Wanted, int]] = []
        for each in wanted:
            quota = self._quotas.get(each.key)
            if quota is None:  # places, or forgotten meanwhile
                continue
            if quota.paid_us >= each.cost_us and quota.paid_until_s > now_s:
                quotas.append(quota)
            elif each.rule.enforce and now_s - quota.asked_s < VALID_S:
                used_us = quota.at_least_used_us(now_s)
                if each.wait_us(used_us) > 0:
                    over.append((each, used_us))
        if over:
            return refusal(Source.SHARED, over)
        return _paid(wanted, quotas, now_s) if len(quotas) == len(wanted) else None

    def ahead_us(self, wanted: Sequence[Wanted]) -> dict[str, int]:
        """Return what is to be charged ahead, by key: all of them or none, as all are needed.

        What is there is to be told to `paid`. Only one question at a time charges ahead: of many on
        their way to a store that is far, each would take as much.
        """
        amounts_us = {}
        for each in wanted:
            quota = self._quotas.get(each.key)
            if quota is None or not quota.often or quota.paying:
                return {}
            most_us = min(quota.spent_per_s * AHEAD_S, each.rule.burst_us // MOST_AHEAD)
            amount_us = _whole(each.cost_us, most_us)
            if not amount_us:
                return {}
            amounts_us[each.key] = amount_us
        for key in amounts_us:
            self._quotas[key].paying = True
        return amounts_us

    def paid(self, keys: Iterable[str]) -> None:
        """Note that the question that was to charge these ahead has an answer, or never will."""
        for key in keys:
            if key in self._quotas:
                self._quotas[key].paying = False

    def learn(self, key: str, used_us: int, extra_us: int, *, asked_s: float, now_s: float) -> None:
        """Take in what the store said to a question from `asked_s`."""
        quota = self._quotas.setdefault(key, _Quota(since_s=now_s))
        if asked_s >= quota.asked_s:
            quota.used_us, quota.asked_s = used_us, asked_s
        if extra_us:
            valid_us = quota.paid_us if quota.paid_until_s > now_s else 0
            quota.paid_us = valid_us + extra_us
            quota.paid_until_s = now_s + VALID_S

    def given_back(self, key: str, amount_us: int) -> None:
        """Note that there is more room than the store said."""
        if key in self._quotas:
            self._quotas[key].used_us -= amount_us

    def forget(self, keys: Sequence[str]) -> None:
        """Know nothing of these any more."""
        for key in keys:
            self._quotas.pop(key, None)

    def sweep(self, now_s: float) -> None:
        """Drop what is not in use."""
        for key, quota in list(self._quotas.items()):
            if now_s - max(quota.since_s, quota.paid_until_s) > _IDLE_S:
                del self._quotas[key]


def _paid(wanted: Sequence[Wanted], quotas: Sequence[_Quota], now_s: float) -> Verdict:
    states: list[LimitState] = []
    charged: dict[str, int] = {}
    for each, quota in zip(wanted, quotas, strict=True):
        quota.paid_us -= each.cost_us
        charged[each.key] = each.cost_us
        states.append(LimitState(each.rule, quota.at_least_used_us(now_s)))
    return Verdict(Source.SHARED, False, tuple(states), charged=charged)


def _whole(cost_us: int, amount_us: float) -> int:
    """Return the part of an amount that pays whole requests of the same cost."""
    return int(amount_us // cost_us) * cost_us if cost_us else 0
