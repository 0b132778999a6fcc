"""Whether a tripped breaker may open: the group of servers behind one version, looked at together.

Called by the pool with every outcome. A server is ejected only if enough others are left, counted
after the ejection; when most servers fail a version, the version is bad and not the servers.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from routing.health.breaker import Breaker, BreakerSettings, Circuit

SUSPICION_S = 30.0
"""How long a trip counts as one, when it is asked whether most servers fail."""


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """At most this share of the servers may be ejected, but always one, and never the last."""

    max_ejected_share: float = 0.5


@dataclass(slots=True)
class Group:
    """The breakers of one version (or of the whole fleet), by server.

    `bad` is True while most servers fail: then nobody more is ejected.
    """

    settings: BreakerSettings
    ejection: EjectionSettings
    random: Callable[[], float]
    breakers: dict[str, Breaker] = field(default_factory=dict)
    bad: bool = False

    def breaker(self, server: str) -> Breaker:
        """Return the breaker of a server, making it at first use."""
        found = self.breakers.get(server)
        if found is None:
            found = self.breakers[server] = Breaker(self.settings, self.random)
        return found

    def success(self, server: str, holders: Collection[str], now_s: float) -> bool:
        """Note a success; return True if it closed the server's circuit."""
        if self.bad:
            self.bad = self._most_fail(holders, now_s)
        found = self.breakers.get(server)
        return found is not None and found.success(now_s)

    def failure(
        self, server: str, holders: Collection[str], now_s: float, *, weight: float = 1.0
    ) -> bool:
        """Note a failure; return True if something changed that a choice depends on.

        `holders` are the servers that have the version ready, ejected ones included.
        """
        breaker = self.breaker(server)
        before = breaker.circuit
        tripped = breaker.failure(now_s, weight=weight)
        changed = breaker.circuit is not before
        if breaker.tripped_s != now_s:
            return changed
        if self._judge_version(holders, now_s):
            changed = True
        if tripped and self._may_eject(holders):
            breaker.open(now_s)
            changed = True
        return changed

    def fatal(self, server: str, holders: Collection[str], now_s: float) -> bool:
        """Note an error that needs no repetition (a dead stub, a sick GPU): eject at once."""
        breaker = self.breaker(server)
        if breaker.circuit is Circuit.OPEN:  # it was under way when the circuit opened
            return False
        if breaker.circuit is Circuit.CLOSED and not self._may_eject(holders):
            return self.failure(server, holders, now_s)
        breaker.open(now_s)
        self._judge_version(holders, now_s)
        return True

    def reset(self, server: str | None = None) -> None:
        """Close the breaker of one server, or all of them."""
        for name, breaker in self.breakers.items():
            if server in (None, name):
                breaker.reset()
        self.bad = self.bad and server is not None

    def take_over(self, before: "Group", kept: Collection[str]) -> None:
        """Judge the `kept` servers on by what `before` knows of them, by this group's settings."""
        self.bad = before.bad
        for name in kept:
            if name in before.breakers:
                self.breakers[name] = before.breakers[name]
                self.breakers[name].settings = self.settings

    def forget(self, server: str) -> None:
        """Drop everything about a server that is gone."""
        self.breakers.pop(server, None)

    def ejected(self) -> Mapping[str, Breaker]:
        """Return the breakers that are not closed."""
        return {
            name: breaker
            for name, breaker in self.breakers.items()
            if breaker.circuit is not Circuit.CLOSED
        }

    def _may_eject(self, holders: Collection[str]) -> bool:
        if self.bad:
            return False
        out = sum(1 for name in self.ejected() if name in holders) + 1
        allowed = max(1, int(len(holders) * self.ejection.max_ejected_share))
        return out <= allowed and out < len(holders)

    def _judge_version(self, holders: Collection[str], now_s: float) -> bool:
        """Note whether most holders fail; when all of them do, let nobody stay ejected.

        Returns True if somebody came back by that.
        """
        self.bad = self._most_fail(holders, now_s)
        ejected = self.ejected().values()
        if not self.bad or not ejected or self._suspects(holders, now_s) < len(holders):
            return False
        for breaker in ejected:
            tripped_s = breaker.tripped_s
            breaker.reset()
            breaker.tripped_s = tripped_s
        return True

    def _most_fail(self, holders: Collection[str], now_s: float) -> bool:
        suspects = self._suspects(holders, now_s)
        return suspects >= 2 and suspects * 2 > len(holders)

    def _suspects(self, holders: Collection[str], now_s: float) -> int:
        return sum(
            1
            for name, breaker in self.breakers.items()
            if name in holders and now_s - breaker.tripped_s < SUSPICION_S
        )
