"""All breakers of a gateway: one group of them a version, and one for the servers themselves.

The pool tells it how attempts ended and asks who is out; other workers' news come and go here (see
`routing.health.news`). It does not know loads.
"""

import math
from collections.abc import Callable, Collection, Mapping

from routing.fleet import ModelVersion
from routing.health.breaker import Breaker, BreakerSettings, Circuit
from routing.health.ejection import EjectionSettings, Group
from routing.health.news import News
from routing.types import Blame

THE_SERVER = ModelVersion("", 0)
"""The key of the group that judges connections; no model has an empty name."""


class Circuits:
    """The groups by version. `servers` are the names of all servers, kept up to date outside.

    `random` yields floats in [0, 1).
    """

    def __init__(
        self,
        breaker: BreakerSettings,
        ejection: EjectionSettings,
        *,
        random: Callable[[], float],
        servers: Collection[str],
    ) -> None:
        self._breaker = breaker
        self._ejection = ejection
        self._random = random
        self._servers = servers
        self._groups: dict[ModelVersion, Group] = {}
        self._lost_s: dict[str, float] = {}
        self._untold: set[ModelVersion] = set()
        self.transport = self.group(THE_SERVER)

    def group(self, key: ModelVersion) -> Group:
        """Return the breakers of a version, by server."""
        found = self._groups.get(key)
        if found is None:
            found = Group(self._breaker, self._ejection, self._random)
            self._groups[key] = found
        return found

    def standing(self, key: ModelVersion, server: str) -> tuple[Breaker, ...]:
        """Return those breakers that keep a version on a server out: not closed."""
        breakers = (group.breakers.get(server) for group in (self.group(key), self.transport))
        return tuple(b for b in breakers if b is not None and b.circuit is not Circuit.CLOSED)

    def succeeded(
        self, key: ModelVersion, server: str, holders: Collection[str], now_s: float
    ) -> list[ModelVersion]:
        """Note an answer; return of what it closed the circuit: the version, the server.

        `holders` are the servers that have the version ready.
        """
        group = self.group(key)
        closed = []
        if group.success(server, holders, now_s):
            closed.append(key)
        if self.transport.success(server, self._servers, now_s):
            closed.append(THE_SERVER)
        self._note(key, group)
        return closed

    def failed(
        self,
        key: ModelVersion,
        server: str,
        holders: Collection[str],
        *,
        blame: Blame,
        began_s: float,
        now_s: float,
    ) -> bool:
        """Note an attempt that failed; return True if a circuit changed."""
        group = self.group(key)
        match blame:
            case Blame.VERSION:
                changed = group.failure(server, holders, now_s, began_s=began_s)
            case Blame.SLOW:
                changed = group.failure(server, holders, now_s, weight=0.5, began_s=began_s)
            case Blame.FATAL:
                changed = group.fatal(server, holders, now_s)
            case Blame.SERVER:
                if not self._is_another_loss(server, began_s, now_s):
                    return False
                changed = self.transport.failure(server, self._servers, now_s, began_s=began_s)
            case _:
                return False
        self._note(key, group)
        return changed

    def reset(self, server: str | None, model: str | None, version: int | None) -> None:
        """Close the breakers of a server, of a model, of a version, or of all that apply."""
        for key, group in self._groups.items():
            of_it = model in (None, key.model) and version in (None, key.version)
            if model is None if key == THE_SERVER else of_it:
                group.reset(server)
                self._note(key, group)

    def take_over(self, before: "Circuits", kept: Collection[str]) -> None:
        """Judge the `kept` servers on by what `before` knows of them."""
        for key, group in before._groups.items():
            self.group(key).take_over(group, kept)
        self._lost_s = {name: s for name, s in before._lost_s.items() if name in kept}
        self._untold = before._untold

    def forget(self, server: str) -> None:
        """Drop everything about a server that is gone."""
        self._lost_s.pop(server, None)
        for group in self._groups.values():
            group.forget(server)

    def bad_versions(self) -> list[ModelVersion]:
        """Return the versions that most of their servers fail."""
        return sorted(key for key, group in self._groups.items() if group.bad and key != THE_SERVER)

    def is_out(self, key: ModelVersion, server: str) -> bool:
        """Whether this one breaker is not closed."""
        breaker = self.group(key).breakers.get(server)
        return breaker is not None and breaker.circuit is not Circuit.CLOSED

    def ejected(self) -> Mapping[str, Mapping[str, Breaker]]:
        """Return the breakers that are not closed, by "model/version" or "server", by server."""
        found = {
            "server" if key == THE_SERVER else f"{key.model}/{key.version}": group.ejected()
            for key, group in self._groups.items()
        }
        return {name: breakers for name, breakers in found.items() if breakers}

    def news(self, worker: int) -> list[News]:
        """Return what changed since the last call, for the other workers of the host."""
        told = []
        for key in self._untold:
            group = self.group(key)
            for server in sorted(group.untold & group.breakers.keys()):
                told.append(self._row(key, group, server, worker))
                group.breakers[server].told()
            group.untold.clear()
        self._untold.clear()
        return told

    def standing_news(self, worker: int) -> list[News]:
        """Return where every breaker stands, for a worker that joins."""
        return [
            self._row(key, group, server, worker)._replace(failures=())
            for key, group in self._groups.items()
            for server in group.breakers
        ]

    def hear(
        self, news: News, holders: Collection[str] | None, now_s: float, *, succeeded_s: float
    ) -> bool:
        """Merge news; return True if a circuit changed. See `Group.hear`."""
        key = ModelVersion(news.model, news.version)
        group = self.group(key)
        if key == THE_SERVER:
            holders = self._servers
            news = news._replace(failures=self._other_losses(news))
        changed = group.hear(news, holders, now_s, succeeded_s=succeeded_s)
        self._note(key, group)
        return changed

    def _row(self, key: ModelVersion, group: Group, server: str, worker: int) -> News:
        breaker = group.breakers[server]
        return breaker.news(worker, server, key.model, key.version, group.allowed)

    def _note(self, key: ModelVersion, group: Group) -> None:
        if group.untold:
            self._untold.add(key)
        if self.transport.untold:
            self._untold.add(THE_SERVER)

    def _is_another_loss(self, server: str, began_s: float, now_s: float) -> bool:
        # All calls on one connection are lost together, which is one failure; so are those that
        # all workers lose when the server dies.
        if began_s < self._lost_s.get(server, -math.inf):
            return False
        self._lost_s[server] = now_s
        return True

    def _other_losses(self, news: News) -> tuple[tuple[float, float], ...]:
        return tuple(
            (began_s, ended_s)
            for began_s, ended_s in news.failures
            if self._is_another_loss(news.server, began_s, ended_s)
        )
