"""What a policy sees of a server, written down by hand."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedLoad:
    """A load that is the same at all times."""

    rows: float = 0
    capacity: float = 1.0
    latency: float | None = None

    def work(self, now_s: float) -> float:
        return float(self.rows)

    def share(self, now_s: float) -> float:
        return self.capacity

    def latency_s(self, now_s: float) -> float | None:
        return self.latency
