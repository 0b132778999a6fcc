"""Whether a failed attempt is worth another one on another server."""

from dataclasses import dataclass

from routing.budget import RetryBudget
from routing.types import Replay


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `max_attempts` in all.

    What is known not to have run is sent again; what may have run is, once and within the budget,
    if the model is idempotent.
    """

    max_attempts: int = 3

    def allows(
        self,
        replay: Replay,
        *,
        attempts: int,
        unsure: int,
        idempotent: bool,
        remaining_s: float,
        budget: RetryBudget,
        now_s: float,
    ) -> bool:
        """Say whether one more attempt may be made.

        `attempts` have failed so far, `unsure` of them in a way that may have run (this one
        included). A retry of such a one costs a token, which is `spend`'s to take.
        """
        if attempts >= self.max_attempts or remaining_s <= 0:
            return False
        if replay is Replay.SAFE:
            return unsure == 0 or idempotent
        if replay is Replay.NEVER or not idempotent or unsure > 1:
            return False
        return budget.affords(now_s)

    def spend(self, replay: Replay, budget: RetryBudget, now_s: float) -> None:
        """Pay for a retry that `allows` allowed and for which a server was found."""
        if replay is not Replay.SAFE:
            budget.withdraw(now_s)
