"""Priority classes as requests meet them: how one is asked for, and what the server is told.

Decides where in a request a class is named and what is written into the call; `routing.priorities`
decides which one it gets. Called by the pipeline before the stage `admit`, also for operators.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from gateway.codec.types import InferCall, Scalar
from gateway.exchange import ANONYMOUS, Exchange, Overreach
from gateway.faults import Fault
from gateway.names import UnknownName, listed
from routing.fleet import VersionRoute
from routing.priorities import Asked, Objection, Priorities
from routing.queueing import DYNAMIC_BATCHING, ENSEMBLE, NO_QUEUES, Queueing
from routing.types import ModelVersion

PRIORITY_CLASS = "Triton-Gateway-Class"
"""The header that names the class a request asks for."""
PRIORITY, TIMEOUT = "priority", "timeout"
"""Triton's parameters of a request: its level, and its time in the queue in microseconds."""
_SHOWN_CHARS = 64


class Ranking:
    """Gives requests their classes; see also `gateway.ports.PriorityView`.

    `queueing_at` returns how a server queues requests for a version, None while that is not known.
    """

    def __init__(
        self,
        priorities: Priorities,
        queueing_at: Callable[[str, ModelVersion], Queueing | None],
    ) -> None:
        self._priorities = priorities
        self._queueing_at = queueing_at

    def rank(
        self, exchange: Exchange, route: VersionRoute, call: InferCall, named: str | None
    ) -> None:
        """Note the class on the exchange, and in the call what its server needs to know of it.

        `named` is what the header says, None without one. Raises Fault (INVALID) for a class that
        is none, and for a priority that the model does not have.
        """
        priorities = self._priorities
        level = cast(int, call.parameters.get(PRIORITY, 0)) if call.parameters else 0
        if named is None and not level and not priorities.configured:
            return
        queueing = self._queueing(route) or NO_QUEUES
        may = priorities.entitled(exchange.tenant, exchange.tier)
        ranked = priorities.rank(Asked(named, level), may, route.spec.model, queueing)
        exchange.classed, exchange.priority_class = True, ranked.cls
        if ranked.objection is not None:
            asked = f"priority {level}" if named is None else f"class {named[:_SHOWN_CHARS]}"
            exchange.overreach = Overreach(ranked.objection, asked, priorities.enforce)
            if priorities.enforce:
                self._refuse(ranked.objection, queueing)
        if ranked.level:
            call.parameters = {**call.parameters, PRIORITY: ranked.level}
        if ranked.timeout_us:
            timeout_us = _sooner(call.parameters.get(TIMEOUT, 0), ranked.timeout_us)
            call.parameters = {**call.parameters, TIMEOUT: timeout_us}

    def explain(self, route: VersionRoute, tenant: str | None) -> dict[str, Any] | None:
        """Return which class and level requests get that ask for none."""
        priorities = self._priorities
        if tenant is None and not priorities.configured:
            return None
        if tenant is not None and tenant not in priorities.tenants:
            raise UnknownName.among("tenant", tenant, priorities.tenants)
        tenant = tenant or ANONYMOUS
        may, queueing = priorities.entitled(tenant, ""), self._queueing(route)
        level = 0
        if priorities.configured:
            level = priorities.level(may.usual, route.spec.model, queueing or NO_QUEUES)
        return {
            "tenant": tenant,
            "tier": priorities.tier_of.get(tenant),
            "class": may.usual.name,
            "highest_class": may.most.name,
            "level": level or None,
            "levels": queueing.levels if queueing else None,
            "queue_timeout_s": may.usual.queue_timeout_us / 1e6 or None,
            "unheeded": [
                f"{each.what} {each.why}"
                for each in (unheeded(priorities, route.spec.model, queueing) if queueing else ())
            ],
        }

    def _queueing(self, route: VersionRoute) -> Queueing | None:
        # Servers of one version are meant to be alike; where they are not, a finding says so.
        if not route.servers:
            return None
        key = ModelVersion(route.spec.model, route.spec.version)
        return self._queueing_at(route.servers[0], key)

    def _refuse(self, objection: Objection, queueing: Queueing) -> None:
        if objection is Objection.UNKNOWN_CLASS:
            names = listed(cls.name for cls in self._priorities.classes)
            raise Fault.invalid(f"{PRIORITY_CLASS} names no priority class; there are {names}")
        if objection is Objection.OUT_OF_RANGE:
            raise Fault.invalid(
                f"Unable to parse 'parameters.{PRIORITY}': expected an integer from 0 to"
                f" {queueing.levels}, the priority levels of the model"
            )


def _sooner(asked: Scalar, most_us: int) -> int:
    """Return the smaller of the caller's own time in the queue, 0 for none, and the class's."""
    asked_us = cast(int, asked)
    return min(asked_us, most_us) if asked_us else most_us


class Unheeded(NamedTuple):
    """What a model makes nothing of although it is configured: `what` it is, and `why`."""

    what: str
    why: str


CLASSES_UNHEEDED = "priority classes make no difference at the servers:"
TIMEOUTS_UNHEEDED = "`queue_timeout_s` makes no difference at the servers:"
LEVELS_UNHEEDED = "`priority_levels` goes too far:"


def unheeded(priorities: Priorities, model: str, queueing: Queueing) -> Iterator[Unheeded]:
    """Yield what of the configuration a model ignores, if anything is configured."""
    if not priorities.configured or queueing.scheduler == ENSEMBLE:
        return
    batches = queueing.scheduler == DYNAMIC_BATCHING
    if len(priorities.classes) > 1 and queueing.levels < 2:
        yield Unheeded(CLASSES_UNHEEDED, _no_levels(queueing) if batches else _NO_BATCHING)
    waits = [cls for cls in priorities.classes if cls.queue_timeout_us]
    levels = {priorities.level(cls, model, queueing) for cls in waits}
    if waits and not batches:
        yield Unheeded(TIMEOUTS_UNHEEDED, _NO_BATCHING)
    elif not all(map(queueing.heeds_timeouts, levels)):
        yield Unheeded(TIMEOUTS_UNHEEDED, _NO_TIMEOUTS)
    for name, level in priorities.levels.get(model, {}).items():
        if level > queueing.levels > 0:
            why = f"it gives class '{name}' the level {level}, and there are {queueing.levels}"
            yield Unheeded(LEVELS_UNHEEDED, why)


_NO_BATCHING = "no dynamic batching, so requests are served as they come"
_NO_TIMEOUTS = (
    "the queue policy has no `allow_timeout_override`, or a `default_timeout_microseconds` of 0"
)


def _no_levels(queueing: Queueing) -> str:
    return f"the dynamic batching has {'one level' if queueing.levels else 'no `priority_levels`'}"
