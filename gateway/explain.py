"""Why a request went where it went, or where one would go now.

Answers from the snapshot and the pool, and for past requests from what their exchanges noted.
Called by the ops listener; an observer, so that the last requests are at hand.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.exchange import INFERENCE, Exchange
from gateway.faults import Fault
from gateway.names import UnknownName, listed
from gateway.ports import Clock, CurrentView
from routing.aliases import Alias, StickTo
from routing.choices import Choices
from routing.endpoint import Candidate
from routing.errors import RoutingError
from routing.fleet import FleetSnapshot, ModelRoute, ModelVersion, ServerRow, VersionRoute

KEPT_REQUESTS = 1000

_PINNED = "its sequence began there: the server has its state"


class Explainer:
    """Explains choices; see `gateway.ports.Observer` for `observe`."""

    def __init__(self, view: CurrentView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._requests: OrderedDict[str, Exchange] = OrderedDict()

    def observe(self, exchange: Exchange) -> None:
        """Keep a settled inference request; of two with one id the later."""
        if exchange.route in INFERENCE:
            if exchange.fault is not None:
                exchange.fault.without_frames()  # which would keep the request's body alive
            self._requests[exchange.request_id] = exchange
            self._requests.move_to_end(exchange.request_id)
            if len(self._requests) > KEPT_REQUESTS:
                self._requests.popitem(last=False)

    def model(self, model: str, version: int | None, tenant: str | None = None) -> dict[str, Any]:
        """Explain where a request for this model would go now, or why it would be refused.

        `tenant` is whose it is. Raises UnknownName for a model or version no server is known to
        have, and for a tenant that is none.
        """
        now_s = self._clock()
        view = self._view()
        snapshot, pool, aliases = view.fleet.snapshot, view.pool, view.aliases
        alias = aliases.by_name.get(model) if version is None else None
        model, version = aliases.stand_in(model, version)
        known = snapshot.models.get(model)
        if known is None:
            raise UnknownName(_unknown_model(snapshot, model))
        chosen, chosen_by = _version(known, version)
        if alias and version is not None:
            chosen_by = f"the alias {alias.name}"
        route = known.versions.get(chosen)
        if route is None:
            raise UnknownName.version(model, chosen, known.versions)
        choices = pool.choices(route, now_s) if route.servers else None
        return {
            "alias": _alias(alias) if alias else None,
            "model": model,
            "version": chosen,
            "chosen_by": chosen_by,
            "version_is_bad": ModelVersion(model, chosen) in pool.bad_versions(),
            "refused": _refused(snapshot, model, version, choices, now_s),
            "admission": view.admission.mode,
            "queued": view.admission.queued().get(model, {}),
            "candidates": _candidates(choices, now_s) if choices else [],
            "excluded": self._excluded(snapshot, model, chosen, choices),
            "priority": view.priorities.explain(route, tenant),
        }

    def request(self, request_id: str) -> dict[str, Any]:
        """Explain a past request. Raises UnknownName if it is not among the last thousand."""
        past = self._requests.get(request_id)
        if past is None:
            raise UnknownName(
                f"request '{request_id}' is not among the last {KEPT_REQUESTS} inference requests"
                " that this gateway has answered"
            )
        return {
            "request_id": request_id,
            "ended_s_ago": round(self._clock() - past.ended_s, 1),
            "duration_ms": _ms(past.duration_s),
            "model": past.model,
            "version": past.version,
            "outcome": past.outcome,
            "status": past.status,
            "admission": past.admission,
            "queued_ms": _ms(past.queued_s),
            "error": (past.fault.detail or past.fault.message) if past.fault else None,
            "attempts": _attempts(past.choices, in_sequence=past.pin is not None),
        }

    def _excluded(
        self, snapshot: FleetSnapshot, model: str, version: int, choices: Choices | None
    ) -> dict[str, str]:
        route = snapshot.models[model].versions[version]
        usable = {candidate.name for candidate in choices.everyone()} if choices else set()
        reasons = {}
        for name, row in snapshot.servers.items():
            if name in usable:
                continue
            why = _why_not(row, route, choices.excluded if choices else {})
            by_hand = self._view().pool.steering.reason(model, version, name)
            reasons[name] = "; ".join(dict.fromkeys(filter(None, (why, by_hand))))
        return reasons


def _alias(alias: Alias) -> dict[str, Any]:
    total = sum(arm.weight for arm in alias.arms)
    return {
        "name": alias.name,
        "sticky": alias.header if alias.stick_to is StickTo.HEADER else alias.stick_to.value,
        "arms": [
            {"model": arm.model, "version": arm.version, "share": arm.weight / total}
            for arm in alias.arms
        ],
    }


def _version(model: ModelRoute, asked: int | None) -> tuple[int, str]:
    """Return the version that is meant, and what chose it."""
    if asked is not None:
        return asked, "the request"
    if model.default is not None:
        return model.default, "the default version"
    return max(model.versions), "the highest known one, since none is ready"


def _unknown_model(snapshot: FleetSnapshot, model: str) -> str:
    idle = [name for name, row in snapshot.servers.items() if model in row.unloaded]
    if idle:
        return f"the model '{model}' is not loaded; it is in the repository of {listed(idle)}"
    if not any(row.triton_version for row in snapshot.servers.values()):
        return "no server of the fleet has answered yet, so no model is known"
    return str(UnknownName.among("model", model, snapshot.models))


def _refused(
    snapshot: FleetSnapshot,
    model: str,
    version: int | None,
    choices: Choices | None,
    now_s: float,
) -> dict[str, str] | None:
    try:
        snapshot.resolve(model, version, now_s)
        if choices is not None and not choices.everyone():
            raise choices.nothing_left(())
    except RoutingError as error:
        fault = Fault.of_routing(error)
        return {"outcome": fault.kind.value, "error": fault.message}
    return None


def _why_not(row: ServerRow, route: VersionRoute, excluded: Mapping[str, str]) -> str:
    if row.name in excluded:
        return excluded[row.name]
    if row.name in route.left_out:
        return route.left_out[row.name]
    if not row.up:
        return f"down: {row.reason}"
    held = row.models.get(ModelVersion(route.spec.model, route.spec.version))
    if held is None:
        return "does not have this version"
    return f"{held.state.value}: {held.reason}" if held.reason else held.state.value


def _candidates(choices: Choices, now_s: float) -> list[dict[str, Any]]:
    groups = (
        (choices.candidates, choices.local_share),
        (choices.remote, 1 - choices.local_share),
    )
    return [
        {
            "server": candidate.name,
            "zone": candidate.server.zone,
            "capacity": candidate.capacity,
            "share": round(part * _weight(candidate, now_s) / whole, 4),
            "starting_slowly": candidate.starting(now_s),
            "work": round(candidate.work(now_s), 2),
            "limit": _limit(candidate),
            "latency_ms": _ms(candidate.latency_s(now_s)),
            "ejected": choices.excluded.get(candidate.name),
        }
        for group, part in groups
        for whole in [sum(_weight(candidate, now_s) for candidate in group)]
        for candidate in group
    ]


def _limit(candidate: Candidate) -> float | None:
    """Return how many rows the server is given at a time, None if that is not limited."""
    rows = candidate.model.limits.rows[candidate.place]
    return None if math.isinf(rows) else round(rows, 1)


def _weight(candidate: Candidate, now_s: float) -> float:
    return candidate.capacity * candidate.ramp(now_s)


def _attempts(choices: Sequence[tuple[Choices, str]], *, in_sequence: bool) -> list[dict[str, Any]]:
    tried: list[str] = []
    found = []
    for had, server in choices:
        candidates = [candidate.name for candidate in had.everyone()]
        found.append(
            {
                "server": server,
                "why": _PINNED if in_sequence else _why(had, server, tried),
                "candidates": candidates,
                "excluded": {
                    name: reason
                    for name, reason in {**had.route.left_out, **had.excluded}.items()
                    if name not in candidates
                },
            }
        )
        tried.append(server)
    return found


def _why(choices: Choices, server: str, tried: Sequence[str]) -> str:
    left = [c.name for c in _preferred(choices, server) if c.name not in tried or c.name == server]
    if not any(candidate.name == server for candidate in choices.everyone()):
        return "a probe: it was ejected, and one request may try whether it has recovered"
    if server in choices.excluded:
        return "it was ejected, but so were all others"
    if len(left) == 1:
        return "the only one left" if tried else "the only candidate"
    return f"the balancing policy chose among {listed(left)}"


def _preferred(choices: Choices, server: str) -> Sequence[Candidate]:
    """Return those that were compared: the ones of the zone the request stayed in or went to."""
    if any(candidate.name == server for candidate in choices.remote):
        return choices.remote
    return choices.candidates


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
