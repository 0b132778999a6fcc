"""Whether a failed attempt is worth another one on another server."""

from dataclasses import dataclass

from routing.types import Replay


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `max_attempts` attempts in all, and only of what is known not to have run."""

    max_attempts: int = 2

    def allows(self, replay: Replay, *, attempts: int, remaining_s: float) -> bool:
        """Say whether one more attempt may be made after `attempts` failed ones."""
        return replay is Replay.SAFE and attempts < self.max_attempts and remaining_s > 0
