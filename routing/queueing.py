"""What a model's scheduler on its server takes into account: priorities, and time to wait.

Read from the model's configuration (ModelDynamicBatching, ModelQueuePolicy). Only dynamic batching
has such queues: any other scheduler ignores both without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

DYNAMIC_BATCHING = "dynamic_batching"
ENSEMBLE = "ensemble_scheduling"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long requests of one level may wait: `timeout_us` microseconds, 0 for ever.

    With `may_ask` a request may ask for less than that.
    """

    timeout_us: int = 0
    may_ask: bool = False

    @property
    def heeds_timeouts(self) -> bool:
        """Whether the `timeout` of a request counts: Triton compares it with its own, if any."""
        return self.may_ask and self.timeout_us > 0


@dataclass(frozen=True, slots=True)
class Queueing:
    """The queues of one model version. `scheduler` is Triton's name of its kind, "" for none.

    Level 1 of `levels` is served first; with 0 there are none. `usual` is for levels that
    `by_level` does not have.
    """

    scheduler: str = ""
    levels: int = 0
    usual: QueuePolicy = QueuePolicy()
    by_level: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def heeds_timeouts(self, level: int) -> bool:
        """Whether the `timeout` of a request at `level` (0 without levels) counts."""
        return self.by_level.get(level, self.usual).heeds_timeouts


NO_QUEUES = Queueing()
