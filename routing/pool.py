"""Filter, pick, and hold what was picked: the mutable side of routing.

`Pool` knows how much work each server has from this gateway and how it has been answering. `pick`
chooses among the servers that have a version ready and yields a `Lease`, which is settled once,
whatever happens to the request. Who may be chosen is worked out when something changes, not for
every request: see `routing.choices`.

Several worker processes of one host become one balancer: with a table they count what all of them
have under way (`routing.shared`), and what their breakers learn they tell one another
(`routing.health.news`).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from routing import rendezvous
from routing.admission.limits import Room, WaitsNews
from routing.balancing import Balancer
from routing.books import Books
from routing.choices import Choices, Due
from routing.endpoint import Candidate, ModelLoads, ServerLoad
from routing.errors import PinnedServerGone
from routing.fleet import ModelVersion, VersionRoute
from routing.health.breaker import Breaker, BreakerSettings
from routing.health.circuits import THE_SERVER, Circuits
from routing.health.ejection import EjectionSettings, Group
from routing.health.news import News
from routing.lease import Lease
from routing.shared import HostTable, Pair
from routing.steering import Steering
from routing.types import Blame, Server

__all__ = ["Lease", "Pool", "PoolSettings"]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How servers are chosen and judged; times in seconds.

    A server with `max_detached_calls` detached calls is saturated: it gets no new ones until some
    of them have ended. Servers in `zone` are preferred. `limits` are the rows in flight on a server
    that are laid down for single models; `workers` share the limits of their host.
    """

    max_detached_calls: int
    slow_start_s: float = 0.0
    zone: str | None = None
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    ejection: EjectionSettings = field(default_factory=EjectionSettings)
    limits: Mapping[str, int] = field(default_factory=dict)
    workers: int = 1


class Pool:
    """The servers' loads, their health as requests felt it, and the choice between them.

    `random` yields floats in [0, 1). `new_balancer` makes the policy of a model at first use.
    `table` is what the workers of a host share, None where there is only one. `leases` counts the
    places that have not been given back.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        random: Callable[[], float],
        settings: PoolSettings,
        new_balancer: Callable[[str], Balancer],
        table: HostTable | None = None,
    ) -> None:
        self._books = Books(servers, table, limits=settings.limits, workers=settings.workers)
        self.loads = self._books.loads
        self.leases = 0
        self.steering = Steering()
        self.circuits = Circuits(
            settings.breaker, settings.ejection, random=random, servers=self.loads.keys()
        )
        self._random = random
        self._settings = settings
        self._new_balancer = new_balancer
        self._balancers: dict[str, Balancer] = {}
        self._current: dict[ModelVersion, Choices] = {}
        self._choices: dict[int, Choices] = {}  # by the identity of the route they hold
        self._saturated: set[str] = set()
        self._recovered_s: dict[str, float] = {}
        self._epoch = 0
        self._successor: Pool | None = None

    @property
    def transport(self) -> Group:
        """The breakers that judge servers by their connections."""
        return self.circuits.transport

    def add(self, server: Server) -> None:
        """Take a server in, with no work on it and no history."""
        self._books.add(server)

    def update(self, server: Server) -> None:
        """Take over what is configured differently now; the server's work and history stay."""
        self._books.update(server)
        self._changed()

    def remove(self, name: str) -> None:
        """Forget a server. Leases on it still end, and no longer count for anything.

        The fleet must not route to it any more.
        """
        self._books.remove(name)
        self._saturated.discard(name)
        self._recovered_s.pop(name, None)
        self.circuits.forget(name)
        for key, choices in self._current.items():
            self._current[key] = self._choices[id(choices.route)] = choices.without(name)
        self._changed()

    def pick(
        self,
        route: VersionRoute,
        *,
        now_s: float,
        tried: Collection[str] = (),
        rows: int = 1,
        room: float | None = None,
    ) -> Lease:
        """Choose one of the servers of `route` that was not tried and take a place on it.

        With `room` only one where less than this share of its limit is in flight. Raises
        NoReadyEndpoint when none is left, and NoRoom when none of those has room.
        """
        choices = self._choices.get(id(route))
        if choices is None or choices.epoch != self._epoch:
            choices = self.choices(route, now_s)
        if now_s >= choices.probe_due_s and not tried:
            due = choices.probe_due(now_s, self._claim)
            if due is not None:
                return self._probe(choices, due, rows, now_s)
        places: Sequence[int] = choices.places
        if tried or not places or choices.remote or now_s < choices.slow_until_s:
            places = [c.place for c in choices.willing(tried, self._random, now_s)]
        place = choices.policy.pick(choices.loads, places, self._random, now_s)
        if room is not None and not choices.loads.has_room(place, room):
            places = choices.with_room(room, tried)
            place = choices.policy.pick(choices.loads, places, self._random, now_s)
        return Lease(self, choices, place, rows, now_s)

    def place_sequence(
        self, route: VersionRoute, key: str, held: Mapping[str, int], *, now_s: float
    ) -> str:
        """Choose the server on which the sequence `key` of `route` begins.

        `held` is how many open sequences of the model each server has. Nothing is taken there yet:
        that is `pick_pinned`. An ejected server whose time is over is tried with one sequence.
        Raises NoReadyEndpoint when there is no server.
        """
        choices = self.choices(route, now_s)
        due = choices.probe_due(now_s, self._may_claim)
        if due is not None:
            return due[0].name
        candidates = choices.willing((), self._random, now_s)
        names = [candidate.name for candidate in candidates]
        shares = [candidate.capacity for candidate in candidates]
        return names[rendezvous.place(key, names, shares, [held.get(name, 0) for name in names])]

    def takes_sequences(self, route: VersionRoute, server: str, now_s: float) -> bool:
        """Whether a sequence may begin on this server."""
        return any(c.name == server for c in self.choices(route, now_s).everyone())

    def pick_pinned(
        self, route: VersionRoute, server: str, *, now_s: float, rows: int = 1
    ) -> Lease:
        """Take a place on the one server that has the state of a sequence.

        Cordoned, saturated and ejected servers go on with what they have begun. Raises
        PinnedServerGone if it does not have the version ready, or must not serve it.
        """
        choices = self.choices(route, now_s)
        found = choices.holder(server, now_s)
        if found is None or self.steering.blocked(*choices.key, server):
            raise PinnedServerGone
        candidate, breakers = found
        probe = breakers if self._claim(candidate, breakers) else ()
        return self._probe(choices, (candidate, probe), rows, now_s)

    def choices(self, route: VersionRoute, now_s: float) -> Choices:
        """Return who may be chosen for `route`, and why the others may not."""
        known = self._choices.get(id(route))
        if known is not None and known.epoch == self._epoch:
            return known
        key = ModelVersion(route.spec.model, route.spec.version)
        before = self._current.get(key)
        loads = self._books.model(key.model)
        new = Choices.build(
            key,
            route,
            epoch=self._epoch,
            loads=loads,
            policy=self._balancer(key.model),
            group=self.circuits.group(key),
            candidates=self._candidates(loads, route, before, now_s),
            reason=self._reason,
            circuits=lambda server: self.circuits.standing(key, server),
            zone=self._settings.zone,
            lost_capacity=self._lost_capacity(route),
        )
        if before is not None:
            self._choices.pop(id(before.route), None)
        self._current[key] = self._choices[id(route)] = new
        return new

    def learn(self, lease: Lease, blame: Blame, took_s: float, now_s: float) -> None:
        """Take the outcome of an attempt into account; called by its lease."""
        choices, place = lease.choices, lease.place
        loads = choices.loads
        load = loads.servers[place]
        if blame is Blame.NOBODY:
            load.replied(now_s)
            loads.sample(place, took_s, now_s)
            if choices.group.breakers or self.circuits.transport.breakers:
                self._note_success(choices, load.name, now_s)
        elif blame is not Blame.UNTOLD and self._books.holds(load):
            loads.fail(place, blame, took_s, now_s)
            if blame is Blame.OVERLOAD:
                loads.limits.full(place, now_s)
            if self.circuits.failed(
                choices.key,
                load.name,
                choices.holders,
                blame=blame,
                began_s=lease.since_s,
                now_s=now_s,
            ):
                self._changed()

    def end_probe(self, lease: Lease) -> None:
        """Note that a probe is over, whatever it told; called by its lease."""
        for breaker in lease.probe:
            breaker.end_probe()
        if self._books.host is not None:
            contact = self.circuits.transport.breakers.get(lease.server)
            self._books.host.end_claim(lease.candidate, lease.probe, contact)
        lease.probe = ()
        self._changed()  # the next probe may be due

    def steer(self, steering: Steering) -> None:
        """Take what operators decided by hand into account at once."""
        self.steering = steering
        self._changed()

    def reset_breakers(self, server: str | None, model: str | None, version: int | None) -> None:
        """Close the breakers of a server, of a model, of a version, or of all that apply.

        For operators, and for servers that were down: what they did before says nothing any more.
        """
        self.circuits.reset(server, model, version)
        self._changed()

    def detached_changed(self, load: ServerLoad, change: int) -> None:
        """Count a server's detached calls; called by its leases."""
        load.detached += change
        load.tell()
        self._judge_saturation(load)

    def model(self, name: str) -> ModelLoads:
        """Return the loads of a model, and the limits of its servers."""
        return self._books.model(name)

    def models(self) -> Collection[ModelLoads]:
        """Return those of every model that was asked for, or has told how it does."""
        return self._books.models()

    def observe_waits(self, server: str, news: WaitsNews, now_s: float) -> None:
        """Take into account how models of a server did lately."""
        load = self.loads.get(server)
        if load is None:
            return
        for model, waits in news.items():
            limits = self._books.model(model).limits
            if waits is None:
                limits.renew(load.place)
            else:
                limits.observe(load.place, waits, now_s)

    def limits(self, *, news_only: bool = False) -> Mapping[tuple[str, str], Room]:
        """Return the limit of each model on each server, and what is in flight of it.

        With `news_only` without those where nothing is, and the limit is where it began.
        """
        return {
            (load.name, loads.model): Room(loads.limits.rows[load.place], loads.rows[load.place])
            for loads in self._books.models()
            for load in self.loads.values()
            if loads.limits.knows(load.place)
            and not (
                news_only and loads.rows[load.place] == 0 and loads.limits.is_at_start(load.place)
            )
        }

    def take_over(self, before: "Pool", kept: Collection[str]) -> None:
        """Go on from `before` for the `kept` servers: what is under way there, how they answered.

        Leases of `before` go on counting here. Steering and slots are taken over, too.
        """
        self.steering = before.steering
        self._books.take_over(before._books, kept)
        self.circuits.take_over(before.circuits, kept)
        self._recovered_s = {name: s for name, s in before._recovered_s.items() if name in kept}
        slow_start_s = self._settings.slow_start_s
        self._current = {key: had.kept(kept, slow_start_s) for key, had in before._current.items()}
        self._choices.clear()
        before._successor = self
        self._changed()
        for name in kept:
            self._judge_saturation(self.loads[name])

    def bad_versions(self) -> list[ModelVersion]:
        """Return the versions that most of their servers fail."""
        return self.circuits.bad_versions()

    def breakers(self) -> Mapping[str, Mapping[str, Breaker]]:
        """Return the breakers that are not closed, by "model/version" or "server", by server."""
        return self.circuits.ejected()

    def assign(self, slots: Mapping[Pair, int | None]) -> None:
        """Take note of slots in the table; None takes one back. See `routing.shared`."""
        self._books.assign(slots)

    def news(self) -> list[News]:
        """Return what the host's other workers should hear; to be called about every 20 ms.

        Also takes note of what they changed in the table. Empty without a table.
        """
        host = self._books.host
        if host is None:
            return []
        if host.advance():
            for load in self.loads.values():
                self._judge_saturation(load)
        return self.circuits.news(host.table.worker)

    def standing_news(self) -> list[News]:
        """Return where all breakers stand, for a worker that joins. Empty without a table."""
        host = self._books.host
        return [] if host is None else self.circuits.standing_news(host.table.worker)

    def learn_foreign(self, news: Iterable[Sequence[Any]], now_s: float) -> None:
        """Merge what other workers told: rows of `News`, also as plain lists or tuples."""
        for row in news:
            told = News(*row)
            if told.server in self.loads:  # otherwise it was removed, or is not known yet
                self._hear(told, now_s)

    def _changed(self) -> None:
        """Have every choice worked out anew, also by the pool that has taken over."""
        self._epoch += 1
        if self._successor is not None:
            self._successor._changed()

    def _hear(self, news: News, now_s: float) -> None:
        key, server = ModelVersion(news.model, news.version), news.server
        choices, place = self._current.get(key), self.loads[server].place
        was_out = self.circuits.is_out(key, server)
        changed = self.circuits.hear(
            news,
            choices.holders if choices else None,
            now_s,
            succeeded_s=choices.loads.felt_s(place) if choices else -math.inf,
        )
        if choices and news.failures:
            choices.loads.hear(place, len(news.failures), now_s)
        if changed:
            self._changed()
            if was_out and not self.circuits.is_out(key, server):
                self._start_slowly(key, server, now_s)

    def _note_success(self, choices: Choices, server: str, now_s: float) -> None:
        for key in self.circuits.succeeded(choices.key, server, choices.holders, now_s):
            self._changed()
            self._start_slowly(key, server, now_s)

    def _start_slowly(self, key: ModelVersion, server: str, now_s: float) -> None:
        concerned: Iterable[Choices | None] = [self._current.get(key)]
        if key == THE_SERVER:  # every version, also those not asked for yet
            self._recovered_s[server] = now_s
            concerned = self._current.values()
        for choices in concerned:
            for candidate in choices.all_candidates if choices else ():
                if candidate.name == server:
                    candidate.start_slowly(now_s)

    def _judge_saturation(self, load: ServerLoad) -> None:
        if not self._books.holds(load):  # it was removed
            return
        saturated = load.host_detached >= self._settings.max_detached_calls
        if saturated != (load.name in self._saturated):
            self._saturated ^= {load.name}
            self._changed()
        if self._successor is not None:
            self._successor._judge_saturation(load)

    def _probe(self, choices: Choices, due: Due, rows: int, now_s: float) -> Lease:
        candidate, breakers = due
        for breaker in breakers:
            breaker.begin_probe()
        return Lease(self, choices, candidate.place, rows, now_s, probe=breakers)

    def _claim(self, candidate: Candidate, breakers: Sequence[Breaker]) -> bool:
        host, contact = self._books.host, self.transport.breakers.get(candidate.name)
        return host is None or host.claim(candidate, breakers, contact)

    def _may_claim(self, candidate: Candidate, breakers: Sequence[Breaker]) -> bool:
        host, contact = self._books.host, self.transport.breakers.get(candidate.name)
        return host is None or host.may_claim(candidate, breakers, contact)

    def _lost_capacity(self, route: VersionRoute) -> float:
        """Return what the gateway's zone would have for a version if nothing were down."""
        lost = (self.loads[name].server for name in route.lost if name in self.loads)
        zone, model = self._settings.zone, route.spec.model
        return sum(server.capacity_for(model) for server in lost if server.zone == zone)

    def _balancer(self, model: str) -> Balancer:
        found = self._balancers.get(model)
        if found is None:
            found = self._balancers[model] = self._new_balancer(model)
        return found

    def _reason(self, key: ModelVersion, server: str) -> str | None:
        by_hand = self.steering.reason(key.model, key.version, server)
        if by_hand is None and server in self._saturated:
            return "saturated with detached calls"
        return by_hand

    def _candidates(
        self, loads: ModelLoads, route: VersionRoute, before: Choices | None, now_s: float
    ) -> list[Candidate]:
        known = {c.name: c for c in before.all_candidates} if before else {}
        new = [server for server in route.servers if server not in known]
        # When all of them are new there is nobody to take the load meanwhile.
        since_s = now_s if len(new) * 2 <= len(route.servers) else -math.inf
        return [
            known.get(server) or self._candidate(loads, server, since_s) for server in route.servers
        ]

    def _candidate(self, loads: ModelLoads, server: str, since_s: float) -> Candidate:
        return Candidate(
            loads,
            self.loads[server],
            slow_start_s=self._settings.slow_start_s,
            slow_since_s=max(since_s, self._recovered_s.get(server, -math.inf)),
        )
