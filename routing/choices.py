"""Who may be chosen for one version at the moment, and why the others may not.

Built by the pool when the fleet, a breaker or an operator changed something, and kept until the
next change: a request only reads it.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from routing.balancing import Balancer
from routing.endpoint import Candidate, ModelLoads
from routing.errors import NoReadyEndpoint, NoRoom
from routing.fleet import ModelVersion, VersionRoute
from routing.health.breaker import Breaker
from routing.health.ejection import Group

OVERPROVISIONING = 1.4
"""A zone takes all of its traffic while this much of its capacity is left (Envoy's factor)."""
SPILL_RATIO = 2.0
"""Above this many times the pressure of a server elsewhere, a request leaves its zone."""

Due = tuple[Candidate, tuple[Breaker, ...]]
"""A server, and those of its breakers that a request there is a probe for."""

_SATURATED = "saturated"


@dataclass(frozen=True, slots=True)
class Choices:
    """The servers of one version, sorted by whether they may be chosen.

    `candidates` may be, those of the gateway's own zone if it has any; `remote` are the ones
    elsewhere that take what the zone cannot. `ejected` have an open breaker and get a probe from
    `probe_due_s` on. `excluded` says why, by server. At `slow_until_s` the last slow start is over.
    `policy` chooses among `places`, those of `candidates` in `loads`; `group` has the breakers.
    """

    key: ModelVersion
    route: VersionRoute
    epoch: int
    loads: ModelLoads
    policy: Balancer
    group: Group
    holders: tuple[str, ...]
    all_candidates: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    places: tuple[int, ...]
    remote: tuple[Candidate, ...]
    local_share: float
    ejected: tuple[tuple[Candidate, tuple[Breaker, ...]], ...]
    excluded: Mapping[str, str]
    probe_due_s: float
    slow_until_s: float

    @classmethod
    def build(
        cls,
        key: ModelVersion,
        route: VersionRoute,
        *,
        epoch: int,
        loads: ModelLoads,
        policy: Balancer,
        group: Group,
        candidates: Sequence[Candidate],
        reason: Callable[[ModelVersion, str], str | None],
        circuits: Callable[[str], tuple[Breaker, ...]],
        zone: str | None,
        lost_capacity: float = 0.0,
    ) -> "Choices":
        """Sort the candidates. `lost_capacity` is what the zone would have besides them."""
        usable: list[Candidate] = []
        ejected: list[tuple[Candidate, tuple[Breaker, ...]]] = []
        excluded: dict[str, str] = {}
        for candidate in candidates:
            why = reason(key, candidate.name)
            breakers = circuits(candidate.name) if why is None else ()
            if why is not None:
                excluded[candidate.name] = why
            elif breakers:
                ejected.append((candidate, breakers))
                excluded[candidate.name] = f"ejected: its circuit is {breakers[0].circuit.value}"
            else:
                usable.append(candidate)
        if not usable and ejected:  # better an ejected server than none
            usable = [candidate for candidate, _ in ejected]
        local, remote, share = _by_zone(usable, candidates, zone, lost_capacity)
        due_s = [min(breaker.opened_until_s for breaker in breakers) for _, breakers in ejected]
        return cls(
            key=key,
            route=route,
            epoch=epoch,
            loads=loads,
            policy=policy,
            group=group,
            holders=route.servers,
            all_candidates=tuple(candidates),
            candidates=local,
            places=loads.roster.shared(tuple(candidate.place for candidate in local)),
            remote=remote,
            local_share=share,
            ejected=tuple(ejected),
            excluded=excluded,
            probe_due_s=min(due_s, default=math.inf),
            slow_until_s=max((c.slow_until_s for c in usable), default=-math.inf),
        )

    def kept(self, servers: Collection[str], slow_start_s: float) -> "Choices":
        """Return a start for other choices: the candidates among `servers`, fit for no request."""
        candidates = tuple(
            candidate.with_slow_start(slow_start_s)
            for candidate in self.all_candidates
            if candidate.name in servers
        )
        return replace(self, epoch=-1, all_candidates=candidates)

    def without(self, server: str) -> "Choices":
        """Return what is to be remembered of these choices when a server is gone."""
        left = tuple(c for c in self.all_candidates if c.name != server)
        return replace(self, all_candidates=left)

    def everyone(self) -> tuple[Candidate, ...]:
        """Return all that may be chosen, whatever their zone."""
        return self.candidates + self.remote

    def probe_due(
        self, now_s: float, may: Callable[[Candidate, Sequence[Breaker]], bool]
    ) -> Due | None:
        """Return an ejected server that one request may try now, and its breakers.

        `may` is asked last, for each that is due here, whether another worker has not begun to.
        """
        if now_s < self.probe_due_s:
            return None
        for candidate, breakers in self.ejected:
            due = all(breaker.probe_due(now_s) for breaker in breakers)
            if due and may(candidate, breakers):
                return candidate, breakers
        return None

    def willing(
        self, tried: Collection[str], random: Callable[[], float], now_s: float
    ) -> Sequence[Candidate]:
        """Return those to choose from, never none: by zone, tried and slow ones left out.

        Raises NoReadyEndpoint.
        """
        candidates: Sequence[Candidate] = self.candidates
        if self.remote:
            candidates = spill(self, random, now_s)
        if tried:
            candidates = [c for c in candidates if c.name not in tried]
            candidates = candidates or [c for c in self.everyone() if c.name not in tried]
        if not candidates:
            raise self.nothing_left(tried)
        if now_s < self.slow_until_s:
            candidates = admitted(candidates, random, now_s)
        return candidates

    def with_room(self, share: float, tried: Collection[str]) -> list[int]:
        """Return the places that have less than this share of their limit in flight, never none.

        Whatever their zone, and also of servers that start slowly. Raises NoRoom.
        """
        places: Sequence[int] = self.places
        if tried or self.remote:
            places = [c.place for c in self.everyone() if c.name not in tried]
        found = self.loads.with_room(places, share)
        if not found:
            raise NoRoom
        return found

    def holder(self, server: str, now_s: float) -> Due | None:
        """Return a server that has the version ready, whatever else speaks against it.

        With its breakers if it is ejected and a request may try it now.
        """
        for candidate, breakers in self.ejected:
            if candidate.name == server:
                due = all(breaker.probe_due(now_s) for breaker in breakers)
                return candidate, breakers if due else ()
        for candidate in self.all_candidates:
            if candidate.name == server:
                return candidate, ()
        return None

    def nothing_left(self, tried: Collection[str]) -> NoReadyEndpoint:
        """Return the error that says why nobody can be chosen."""
        reasons = {why for server, why in self.excluded.items() if server not in tried}
        if any(why.startswith(_SATURATED) for why in reasons):
            return NoReadyEndpoint("every server that holds the model is saturated", saturated=True)
        return NoReadyEndpoint("no server is ready to take the request")


def admitted(
    candidates: Sequence[Candidate], random: Callable[[], float], now_s: float
) -> Sequence[Candidate]:
    """Leave out each server that starts slowly, as often as its share is below the full one.

    Chance, and not a smaller capacity: with little to do, a policy would never choose the smaller.
    """
    return [c for c in candidates if random() < c.ramp(now_s)] or candidates


def spill(choices: Choices, random: Callable[[], float], now_s: float) -> Sequence[Candidate]:
    """Return the candidates of the zone a request is to stay in or go to.

    The zone keeps its share (all of it while enough of its capacity is up), unless a random server
    of it is far busier than a random one elsewhere.
    """
    local, remote = choices.candidates, choices.remote
    if not local or random() >= choices.local_share:
        return remote
    here = local[int(random() * len(local))]
    there = remote[int(random() * len(remote))]
    if _pressure(here, now_s) > SPILL_RATIO * _pressure(there, now_s):
        return remote
    return local


def _pressure(candidate: Candidate, now_s: float) -> float:
    return (candidate.work(now_s) + 1) / candidate.capacity


def _by_zone(
    usable: Sequence[Candidate],
    everyone: Sequence[Candidate],
    zone: str | None,
    lost_capacity: float,
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...], float]:
    if zone is None:
        return tuple(usable), (), 1.0
    local = tuple(c for c in usable if c.server.zone == zone)
    remote = tuple(c for c in usable if c.server.zone != zone)
    if not local:
        return remote, (), 1.0
    there = sum(c.capacity for c in everyone if c.server.zone == zone)
    left = sum(c.capacity for c in local)
    return local, remote, min(1.0, OVERPROVISIONING * left / (there + lost_capacity))
