"""The load of servers and of models on them, as this gateway causes and feels it.

Changed only by `routing.pool` and its leases; read by the balancing policies and the fleet view.
"""

import math

from routing.types import Blame, Server

LATENCY_DECAY_S = 10.0
PHANTOM_S = 1.0
FAILED_LATENCY_S = 1.0
SLOW_START_FLOOR = 0.1


class ServerLoad:
    """Everything of this gateway that is under way on one server."""

    __slots__ = ("calls", "detached", "last_reply_s", "rows", "server")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.calls = 0
        self.rows = 0
        self.detached = 0
        self.last_reply_s = -math.inf

    @property
    def name(self) -> str:
        """The server's name."""
        return self.server.name

    def __repr__(self) -> str:
        return (
            f"ServerLoad({self.name}: {self.calls} calls, {self.rows} rows, "
            f"{self.detached} detached)"
        )


class ModelLoad:
    """One model on one server: rows in flight, felt latency, recent failures.

    A failure counts as work for about a second and as a slow answer: a server that fails fast must
    not look attractive.
    """

    __slots__ = ("_failed_s", "_latency_s", "_phantom", "_sampled_s", "capacity", "load", "rows")

    def __init__(self, load: ServerLoad, model: str) -> None:
        self.load = load
        self.take_capacity(model)
        self.rows = 0
        self._latency_s: float | None = None
        self._sampled_s = -math.inf
        self._phantom = 0.0
        self._failed_s = -math.inf

    def take_capacity(self, model: str) -> None:
        """Take the capacity from the server's configuration (again)."""
        self.capacity = self.load.server.capacity_for(model)

    def work(self, now_s: float) -> float:
        """Return rows in flight plus phantom rows for recent failures."""
        if self._phantom:
            return self.rows + self._phantom_now(now_s)
        return float(self.rows)

    def latency_s(self, now_s: float) -> float | None:
        """Return the average latency, decaying while nothing is heard so that it is tried again."""
        if self._latency_s is None:
            return None
        return self._latency_s * math.exp(-(now_s - self._sampled_s) / LATENCY_DECAY_S)

    def sample(self, latency_s: float, now_s: float) -> None:
        """Note a latency: above the average it replaces it, below it is mixed in."""
        average = self._latency_s
        if average is None or latency_s >= average:
            self._latency_s = latency_s
        else:
            keep = math.exp(-(now_s - self._sampled_s) / LATENCY_DECAY_S)
            self._latency_s = average * keep + latency_s * (1 - keep)
        self._sampled_s = now_s

    def fail(self, blame: Blame, latency_s: float, now_s: float) -> None:
        """Note a failure that speaks against this server."""
        self._phantom = self._phantom_now(now_s) + 1.0
        self._failed_s = now_s
        if blame is not Blame.OVERLOAD:
            self.sample(max(latency_s, FAILED_LATENCY_S), now_s)

    def _phantom_now(self, now_s: float) -> float:
        left = self._phantom * math.exp(-(now_s - self._failed_s) / PHANTOM_S)
        if left < 0.01:
            self._phantom = left = 0.0
        return left


class Candidate:
    """One version on one server, as a policy sees it: a model's load, and its slow start."""

    __slots__ = ("_slow_since_s", "_slow_start_s", "model", "name")

    def __init__(self, model: ModelLoad, *, slow_start_s: float, slow_since_s: float) -> None:
        self.model = model
        self.name = model.load.server.name
        self._slow_start_s = slow_start_s
        self._slow_since_s = slow_since_s

    def start_slowly(self, now_s: float) -> None:
        """Begin with a small share, growing to the full one."""
        self._slow_since_s = now_s

    def starting(self, now_s: float) -> bool:
        """Whether the share is still growing."""
        return now_s - self._slow_since_s < self._slow_start_s

    def work(self, now_s: float) -> float:
        """Return the work of the model on this server, all versions together."""
        return self.model.work(now_s)

    def latency_s(self, now_s: float) -> float | None:
        """Return the felt latency of the model on this server."""
        return self.model.latency_s(now_s)

    def share(self, _: float) -> float:
        """Return the capacity."""
        return self.model.capacity

    def with_slow_start(self, slow_start_s: float) -> "Candidate":
        """Return the same with another length of a slow start."""
        return Candidate(self.model, slow_start_s=slow_start_s, slow_since_s=self._slow_since_s)

    @property
    def slow_until_s(self) -> float:
        """When the slow start is over."""
        return self._slow_since_s + self._slow_start_s

    def ramp(self, now_s: float) -> float:
        """Return how often it takes part in the choice: from a tenth up to always."""
        passed_s = now_s - self._slow_since_s
        if passed_s >= self._slow_start_s:
            return 1.0
        return max(SLOW_START_FLOOR, passed_s / self._slow_start_s)
