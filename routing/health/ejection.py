"""Whether a tripped breaker may open: the group of servers behind one version, looked at together.

Called by `routing.health.circuits` with every outcome. A server is ejected only if enough others
are left, counted after the ejection; when most servers fail a version, the version is bad and not
the servers.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from routing.health.breaker import Breaker, BreakerSettings, Circuit
from routing.health.news import News

SUSPICION_S = 30.0
"""How long a trip counts as one, when it is asked whether most servers fail."""


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """At most this share of the servers may be ejected, but always one, and never the last."""

    max_ejected_share: float = 0.5


@dataclass(slots=True)
class Group:
    """The breakers of one version (or of the whole fleet), by server.

    `bad` is True while most servers fail: then nobody more is ejected. `untold` are the servers
    whose breakers the other workers should hear of, `allowed` how many may be ejected at once, as
    last worked out (0 before).
    """

    settings: BreakerSettings
    ejection: EjectionSettings
    random: Callable[[], float]
    breakers: dict[str, Breaker] = field(default_factory=dict)
    bad: bool = False
    untold: set[str] = field(default_factory=set)
    allowed: int = 0

    def breaker(self, server: str, succeeded_s: float = -math.inf) -> Breaker:
        """Return the breaker of a server, making it at first use.

        `succeeded_s` is when the server is known to have answered last.
        """
        found = self.breakers.get(server)
        if found is None:
            found = Breaker(self.settings, self.random, succeeded_s=succeeded_s)
            self.breakers[server] = found
        return found

    def success(self, server: str, holders: Collection[str], now_s: float) -> bool:
        """Note a success; return True if it closed the server's circuit."""
        if self.bad:
            self.bad = self._most_fail(holders, now_s)
        found = self.breakers.get(server)
        if found is None:
            return False
        closed = found.success(now_s)
        self._note(server, found)
        return closed

    def failure(
        self,
        server: str,
        holders: Collection[str],
        now_s: float,
        *,
        weight: float = 1.0,
        began_s: float | None = None,
    ) -> bool:
        """Note a failure; return True if something changed that a choice depends on.

        `holders` are the servers that have the version ready, ejected ones included.
        """
        breaker = self.breaker(server)
        before = breaker.circuit
        tripped = breaker.failure(now_s, weight=weight, began_s=began_s)
        changed = breaker.circuit is not before
        if breaker.tripped_s == now_s:
            changed |= self._judge_version(holders, now_s)
            if tripped and self._may_eject(holders):
                breaker.open(now_s)
                changed = True
        self._note(server, breaker)
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
        self._note(server, breaker)
        return True

    def reset(self, server: str | None = None) -> None:
        """Close the breaker of one server, or all of them."""
        for name, breaker in self.breakers.items():
            if server in (None, name):
                breaker.reset()
                self._note(name, breaker)
        self.bad = self.bad and server is not None

    def take_over(self, before: "Group", kept: Collection[str]) -> None:
        """Judge the `kept` servers on by what `before` knows of them, by this group's settings."""
        self.bad = before.bad
        self.untold = before.untold  # of one set, so that what `before` still learns is told
        for name in kept:
            if name in before.breakers:
                self.breakers[name] = before.breakers[name]
                self.breakers[name].settings = self.settings

    def forget(self, server: str) -> None:
        """Drop everything about a server that is gone."""
        self.breakers.pop(server, None)
        self.untold.discard(server)

    def hear(
        self, news: News, holders: Collection[str] | None, now_s: float, *, succeeded_s: float
    ) -> bool:
        """Merge what another worker tells of a breaker; return True if a circuit changed.

        `holders` are None where they are not known, since this worker has had no such request.
        """
        breaker = self.breaker(news.server, succeeded_s)
        before = breaker.circuit
        breaker.hear(news, now_s)
        changed = breaker.circuit is not before
        self.allowed = news.allowed or self.allowed
        if changed and breaker.circuit is not Circuit.CLOSED:
            self._close_the_latest()
        if holders is not None and now_s - news.tripped_s < SUSPICION_S:
            changed |= self._judge_version(holders, now_s)
        self._note(news.server, breaker)
        return changed

    def ejected(self) -> Mapping[str, Breaker]:
        """Return the breakers that are not closed."""
        return {
            name: breaker
            for name, breaker in self.breakers.items()
            if breaker.circuit is not Circuit.CLOSED
        }

    def _note(self, server: str, breaker: Breaker) -> None:
        if breaker.untold:
            self.untold.add(server)

    def _may_eject(self, holders: Collection[str]) -> bool:
        if self.bad:
            return False
        out = sum(1 for name in self.ejected() if name in holders) + 1
        self.allowed = max(1, int(len(holders) * self.ejection.max_ejected_share))
        return out <= self.allowed and out < len(holders)

    def _judge_version(self, holders: Collection[str], now_s: float) -> bool:
        """Note whether most holders fail; when all of them do, let nobody stay ejected.

        Returns True if somebody came back by that.
        """
        self.bad = self._most_fail(holders, now_s)
        ejected = self.ejected()
        if not self.bad or not ejected or self._suspects(holders, now_s) < len(holders):
            return False
        for name, breaker in ejected.items():
            self._let_back(name, breaker)
        return True

    def _close_the_latest(self) -> None:
        # Workers that open circuits at the same moment do not see one another's. All of them hear
        # of the same ones in the end, so all come to the same decision.
        ejected = sorted(self.ejected().items(), key=lambda each: (each[1].tripped_s, each[0]))
        for name, breaker in ejected[max(1, self.allowed) :]:
            self._let_back(name, breaker)

    def _let_back(self, server: str, breaker: Breaker) -> None:
        tripped_s = breaker.tripped_s
        breaker.reset()
        breaker.tripped_s = tripped_s  # it still counts among those that fail
        self._note(server, breaker)

    def _most_fail(self, holders: Collection[str], now_s: float) -> bool:
        suspects = self._suspects(holders, now_s)
        return suspects >= 2 and suspects * 2 > len(holders)

    def _suspects(self, holders: Collection[str], now_s: float) -> int:
        return sum(
            1
            for name, breaker in self.breakers.items()
            if name in holders and now_s - breaker.tripped_s < SUSPICION_S
        )
