"""Filter, pick, and hold what was picked: the mutable side of routing.

`Pool` knows how much work each server has from this gateway and how it has been answering. `pick`
chooses among the servers that have a version ready and yields a `Lease`, which is settled once,
whatever happens to the request. Who may be chosen is worked out when something changes, not for
every request: see `routing.choices`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from routing.balancing import Balancer
from routing.choices import Choices, admitted, spill
from routing.endpoint import Candidate, ModelLoad, ServerLoad
from routing.errors import PinnedServerGone
from routing.fleet import ModelVersion, VersionRoute
from routing.health.breaker import Breaker, BreakerSettings, Circuit
from routing.health.ejection import EjectionSettings, Group
from routing.rendezvous import place
from routing.steering import Steering
from routing.types import Blame, Server


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How servers are chosen and judged; times in seconds.

    A server with `max_detached_calls` detached calls is saturated: it gets no new ones until some
    of them have ended. Servers in `zone` are preferred.
    """

    max_detached_calls: int
    slow_start_s: float = 0.0
    zone: str | None = None
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    ejection: EjectionSettings = field(default_factory=EjectionSettings)


class Lease:
    """One server's place, held from the pick until the work there has really ended.

    A call nobody waits for any more but which still runs on the server is *detached*: it keeps its
    rows in flight, so that hanging up is no way round the load of a server.
    """

    __slots__ = (
        "_detached", "_heard_s", "_pool", "_rows", "candidate", "choices", "probe", "since_s",
    )  # fmt: skip

    def __init__(
        self,
        pool: "Pool",
        choices: Choices,
        candidate: Candidate,
        *,
        rows: int,
        now_s: float,
        probe: tuple[Breaker, ...] = (),
    ) -> None:
        self._pool: Pool | None = pool
        self._rows = rows
        self.since_s = now_s
        self._heard_s: float | None = None
        self._detached = False
        self.choices = choices
        self.candidate = candidate
        self.probe = probe
        model = candidate.model
        pool.leases += 1
        model.rows += rows
        model.load.calls += 1
        model.load.rows += rows

    @property
    def server(self) -> str:
        """The name of the server this place is on."""
        return self.candidate.name

    def heard(self, now_s: float) -> None:
        """Note a part of an answer that comes in parts: the first one says how fast it was."""
        self.candidate.model.load.last_reply_s = now_s
        if self._heard_s is None:
            self._heard_s = now_s

    def settle(self, blame: Blame, now_s: float) -> None:
        """Say how the attempt ended. The place is given back by `release`.

        A probe's place is given back at once: the call may run on detached for a long time.
        """
        if self._pool is not None:
            answered_s = now_s if self._heard_s is None else self._heard_s
            self._pool.learn(self, blame, answered_s - self.since_s, now_s)
            self._pool.end_probe(self)

    def detach(self) -> None:
        """Note that nobody waits for this call any more although it still runs."""
        if self._pool is not None and not self._detached:
            self._detached = True
            self.candidate.model.load.detached += 1
            self._pool.detached_changed(self.candidate.model.load)

    def release(self) -> None:
        """Give the place back. Only the first call has an effect."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.end_probe(self)
        pool.leases -= 1
        model = self.candidate.model
        model.rows -= self._rows
        model.load.calls -= 1
        model.load.rows -= self._rows
        if self._detached:
            model.load.detached -= 1
            pool.detached_changed(model.load)


class Pool:
    """The servers' loads, their health as requests felt it, and the choice between them.

    `random` yields floats in [0, 1). `new_balancer` makes the policy of a model at first use.
    `leases` counts the places that have not been given back.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        random: Callable[[], float],
        settings: PoolSettings,
        new_balancer: Callable[[str], Balancer],
    ) -> None:
        self.loads = {server.name: ServerLoad(server) for server in servers}
        self.leases = 0
        self.steering = Steering()
        self.transport = Group(settings.breaker, settings.ejection, random)
        self._random = random
        self._settings = settings
        self._new_balancer = new_balancer
        self._balancers: dict[str, Balancer] = {}
        self._models: dict[tuple[str, str], ModelLoad] = {}
        self._groups: dict[ModelVersion, Group] = {}
        self._choices: dict[ModelVersion, Choices] = {}
        self._saturated: set[str] = set()
        self._lost_s: dict[str, float] = {}
        self._recovered_s: dict[str, float] = {}
        self._epoch = 0
        self._successor: Pool | None = None

    def add(self, server: Server) -> None:
        """Take a server in, with no work on it and no history."""
        self.loads[server.name] = ServerLoad(server)

    def update(self, server: Server) -> None:
        """Take over what is configured differently now; the server's work and history stay."""
        self.loads[server.name].server = server
        for (name, model), load in self._models.items():
            if name == server.name:
                load.take_capacity(model)
        self._changed()

    def remove(self, name: str) -> None:
        """Forget a server. Leases on it still end, and no longer count for anything.

        The fleet must not route to it any more.
        """
        del self.loads[name]
        self._saturated.discard(name)
        self._lost_s.pop(name, None)
        self._recovered_s.pop(name, None)
        for group in (self.transport, *self._groups.values()):
            group.forget(name)
        self._models = {at: load for at, load in self._models.items() if at[0] != name}
        self._choices = {key: had.without(name) for key, had in self._choices.items()}
        self._changed()

    def pick(
        self,
        route: VersionRoute,
        *,
        now_s: float,
        tried: Collection[str] = (),
        rows: int = 1,
    ) -> Lease:
        """Choose one of the servers of `route` that was not tried and take a place on it.

        Raises NoReadyEndpoint when none is left.
        """
        choices = self.choices(route, now_s)
        if now_s >= choices.probe_due_s and not tried:
            due = choices.probe_due(now_s)
            if due is not None:
                return self._probe(choices, *due, rows=rows, now_s=now_s)
        candidates = self._willing(choices, tried, now_s)
        chosen = candidates[self._balancer(choices.key.model).pick(candidates, self._random, now_s)]
        return Lease(self, choices, chosen, rows=rows, now_s=now_s)

    def place_sequence(
        self, route: VersionRoute, key: str, held: Mapping[str, int], *, now_s: float
    ) -> str:
        """Choose the server on which the sequence `key` of `route` begins.

        `held` is how many open sequences of the model each server has. Nothing is taken there yet:
        that is `pick_pinned`. An ejected server whose time is over is tried with one sequence.
        Raises NoReadyEndpoint when there is no server.
        """
        choices = self.choices(route, now_s)
        due = choices.probe_due(now_s)
        if due is not None:
            return due[0].name
        candidates = self._willing(choices, (), now_s)
        names = [candidate.name for candidate in candidates]
        shares = [candidate.share(now_s) for candidate in candidates]
        return names[place(key, names, shares, [held.get(name, 0) for name in names])]

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
        candidate, due = found
        return self._probe(choices, candidate, due, rows=rows, now_s=now_s)

    def choices(self, route: VersionRoute, now_s: float) -> Choices:
        """Return who may be chosen for `route`, and why the others may not."""
        key = ModelVersion(route.spec.model, route.spec.version)
        known = self._choices.get(key)
        if known is not None and known.route is route and known.epoch == self._epoch:
            return known
        new = Choices.build(
            key,
            route,
            epoch=self._epoch,
            candidates=self._candidates(key, route, known, now_s),
            reason=self._reason,
            circuits=self._circuits(key),
            zone=self._settings.zone,
            lost_capacity=self._lost_capacity(route),
        )
        self._choices[key] = new
        return new

    def learn(self, lease: Lease, blame: Blame, took_s: float, now_s: float) -> None:
        """Take the outcome of an attempt into account; called by its lease."""
        server, model = lease.server, lease.candidate.model
        group, holders = self._group(lease.choices.key), lease.choices.holders
        changed = False
        if blame is Blame.UNTOLD or self.loads.get(server) is not model.load:
            # No latency either. An attempt that was let go of (its caller left, another server was
            # faster) took longer than it was waited for, and nobody knows how much.
            return
        if blame is Blame.NOBODY:
            model.load.last_reply_s = now_s
            model.sample(took_s, now_s)
            changed = group.success(server, holders, now_s)
            if changed:
                lease.candidate.start_slowly(now_s)
            if self.transport.success(server, self.loads.keys(), now_s):
                self._start_slowly(server, now_s)
                changed = True
        else:
            model.fail(blame, took_s, now_s)
            changed = self._judge(group, lease, blame, now_s)
        if changed:
            self._changed()

    def end_probe(self, lease: Lease) -> None:
        """Note that a probe is over, whatever it told; called by its lease."""
        for breaker in lease.probe:
            breaker.end_probe()
        if lease.probe:
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
        for key, group in self._groups.items():
            if model in (None, key.model) and version in (None, key.version):
                group.reset(server)
        if model is None:
            self.transport.reset(server)
        self._changed()

    def detached_changed(self, load: ServerLoad) -> None:
        """Note a change in a server's number of detached calls; called by its leases."""
        if self.loads.get(load.name) is not load:  # it was removed
            return
        saturated = load.detached >= self._settings.max_detached_calls
        if saturated != (load.name in self._saturated):
            self._saturated ^= {load.name}
            self._changed()
        after = self._successor
        if after is not None and after.loads.get(load.name) is load:
            after.detached_changed(load)

    def take_over(self, before: "Pool", kept: Collection[str]) -> None:
        """Go on from `before` for the `kept` servers: what is under way there, how they answered.

        Leases of `before` go on counting here. Steering is taken over, too.
        """
        self.steering = before.steering
        for name in kept:
            before.loads[name].server = self.loads[name].server
            self.loads[name] = before.loads[name]
        for (name, model), load in before._models.items():
            if name in kept:
                load.take_capacity(model)
                self._models[name, model] = load
        self.transport.take_over(before.transport, kept)
        for key, group in before._groups.items():
            self._group(key).take_over(group, kept)
        self._lost_s = {name: s for name, s in before._lost_s.items() if name in kept}
        self._recovered_s = {name: s for name, s in before._recovered_s.items() if name in kept}
        slow_start_s = self._settings.slow_start_s
        self._choices = {
            key: choices.kept(kept, slow_start_s) for key, choices in before._choices.items()
        }
        before._successor = self
        self._changed()
        for name in kept:
            self.detached_changed(self.loads[name])

    def bad_versions(self) -> list[ModelVersion]:
        """Return the versions that most of their servers fail."""
        return sorted(key for key, group in self._groups.items() if group.bad)

    def breakers(self) -> Mapping[str, Mapping[str, Breaker]]:
        """Return the breakers that are not closed, by "model/version" or "server", by server."""
        found = {f"{key.model}/{key.version}": g.ejected() for key, g in self._groups.items()}
        found["server"] = self.transport.ejected()
        return {name: breakers for name, breakers in found.items() if breakers}

    def _changed(self) -> None:
        """Have every choice worked out anew, also by the pool that has taken over."""
        self._epoch += 1
        if self._successor is not None:
            self._successor._changed()

    def _judge(self, group: Group, lease: Lease, blame: Blame, now_s: float) -> bool:
        server, holders = lease.server, lease.choices.holders
        match blame:
            case Blame.VERSION:
                return group.failure(server, holders, now_s)
            case Blame.SLOW:
                return group.failure(server, holders, now_s, weight=0.5)
            case Blame.FATAL:
                return group.fatal(server, holders, now_s)
            case Blame.SERVER:
                return self._lost(server, lease.since_s, now_s)
            case _:
                return False

    def _start_slowly(self, server: str, now_s: float) -> None:
        """Begin with a small share of every version on the server, also of those not asked yet."""
        self._recovered_s[server] = now_s
        for choices in self._choices.values():
            for candidate in choices.all_candidates:
                if candidate.name == server:
                    candidate.start_slowly(now_s)

    def _lost(self, server: str, began_s: float, now_s: float) -> bool:
        # All calls on one connection are lost together, which is one failure.
        if began_s < self._lost_s.get(server, -math.inf):
            return False
        self._lost_s[server] = now_s
        return self.transport.failure(server, self.loads.keys(), now_s)

    def _willing(
        self, choices: Choices, tried: Collection[str], now_s: float
    ) -> Sequence[Candidate]:
        """Return those to choose from, never none: by zone, tried and slow ones left out."""
        candidates: Sequence[Candidate] = choices.candidates
        if choices.remote:
            candidates = spill(choices, self._random, now_s)
        if tried:
            candidates = [c for c in candidates if c.name not in tried]
            candidates = candidates or [c for c in choices.everyone() if c.name not in tried]
        if not candidates:
            raise choices.nothing_left(tried)
        if now_s < choices.slow_until_s:
            candidates = admitted(candidates, self._random, now_s)
        return candidates

    def _probe(
        self,
        choices: Choices,
        candidate: Candidate,
        breakers: tuple[Breaker, ...],
        *,
        rows: int,
        now_s: float,
    ) -> Lease:
        for breaker in breakers:
            breaker.begin_probe()
        return Lease(self, choices, candidate, rows=rows, now_s=now_s, probe=breakers)

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

    def _group(self, key: ModelVersion) -> Group:
        found = self._groups.get(key)
        if found is None:
            settings = self._settings
            found = Group(settings.breaker, settings.ejection, self._random)
            self._groups[key] = found
        return found

    def _circuits(self, key: ModelVersion) -> Callable[[str], tuple[Breaker, ...]]:
        group = self._groups.get(key)

        def of(server: str) -> tuple[Breaker, ...]:
            of_version = group.breakers.get(server) if group else None
            found = (of_version, self.transport.breakers.get(server))
            return tuple(b for b in found if b is not None and b.circuit is not Circuit.CLOSED)

        return of

    def _reason(self, key: ModelVersion, server: str) -> str | None:
        by_hand = self.steering.reason(key.model, key.version, server)
        if by_hand is None and server in self._saturated:
            return "saturated with detached calls"
        return by_hand

    def _candidates(
        self, key: ModelVersion, route: VersionRoute, before: Choices | None, now_s: float
    ) -> list[Candidate]:
        known = {c.name: c for c in before.all_candidates} if before else {}
        new = [server for server in route.servers if server not in known]
        # When all of them are new there is nobody to take the load meanwhile.
        since_s = now_s if len(new) * 2 <= len(route.servers) else -math.inf
        return [
            known.get(server) or self._candidate(key, server, since_s) for server in route.servers
        ]

    def _candidate(self, key: ModelVersion, server: str, since_s: float) -> Candidate:
        model = self._models.get((server, key.model))
        if model is None:
            model = ModelLoad(self.loads[server], key.model)
            self._models[server, key.model] = model
        return Candidate(
            model,
            slow_start_s=self._settings.slow_start_s,
            slow_since_s=max(since_s, self._recovered_s.get(server, -math.inf)),
        )
