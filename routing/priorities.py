"""Which priority class a request has, and what of it its server is told.

Decides by who calls and what was asked for: a class by name, or a level by Triton's `priority`. The
answer is the less important of what was asked for and the most the caller may have. Refuses to know
how a request says so. Called by `gateway.ranking`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from routing.classes import CLASSES, STANDARD, PriorityClass
from routing.queueing import ENSEMBLE, NO_QUEUES, Queueing


class Objection(Enum):
    """What was wrong with what a request asked for. The values are used as metric labels."""

    LOWERED = "lowered"  # more important than its caller may have
    UNKNOWN_CLASS = "unknown_class"
    OUT_OF_RANGE = "out_of_range"  # a level the model does not have


@dataclass(frozen=True, slots=True)
class Grant:
    """What is written of one tenant, one tier, or all others: None where nothing is.

    `usual` is the class of requests that ask for none, `most` the most important one to be had.
    """

    usual: PriorityClass | None = None
    most: PriorityClass | None = None


class Entitled(NamedTuple):
    """What a caller has without asking, and the most it can get by asking."""

    usual: PriorityClass
    most: PriorityClass


class Asked(NamedTuple):
    """What a request asks for: a class by name, a level of Triton's; None and 0 are neither."""

    name: str | None = None
    level: int = 0


class Ranked(NamedTuple):
    """The class of a request, and what its server is told.

    `level` 0 leaves the priority as the request has it; `timeout_us` 0 is no bound on the wait.
    """

    cls: PriorityClass
    level: int
    timeout_us: int
    objection: Objection | None


def entitled(grants: Sequence[Grant], otherwise: PriorityClass) -> Entitled:
    """Return what several grants make together, the nearest first; `otherwise` is behind all.

    Where one contradicts another the nearer one counts. Without a word on the most it is the usual.
    """
    usual: PriorityClass | None = None
    most: PriorityClass | None = None
    for grant in (*grants, Grant(otherwise)):
        if usual is None and grant.usual is not None:
            usual = grant.usual if most is None else lower(grant.usual, most)
        if most is None and grant.most is not None:
            most = grant.most if usual is None else min(grant.most, usual, key=_rank)
    assert usual is not None
    return Entitled(usual, most or usual)


def lower(one: PriorityClass, other: PriorityClass) -> PriorityClass:
    """Return the less important of two classes."""
    return max(one, other, key=_rank)


def spread(rank: int, classes: int, levels: int) -> int:
    """Return the level of the `rank`th (from 0) of so many classes: the first is 1, the last all.

    What lies between is spread evenly and rounded away from the first. A single class has none: 0.
    """
    if levels < 1 or classes < 2:
        return 0
    gaps = classes - 1
    return 1 + (2 * rank * (levels - 1) + gaps) // (2 * gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priorities:
    """The classes of one configuration, the most important first, and who may have which.

    `usual` is the class of callers of whom nothing is written. `tenants` has every tenant there is,
    `tier_of` the tier of those that have one. `levels` overrides, by model and name of the class,
    what a class means there: all of them or none. Unless `enforce`, nobody gets less than he asks
    for. Not `configured`, nothing is written at all: requests that ask for nothing are left alone,
    and all may ask.
    """

    classes: tuple[PriorityClass, ...] = CLASSES
    usual: PriorityClass = STANDARD
    tenants: Mapping[str, Grant] = field(default_factory=dict)
    tiers: Mapping[str, Grant] = field(default_factory=dict)
    tier_of: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    enforce: bool = True
    configured: bool = False
    _entitled: dict[tuple[str, str], Entitled] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def entitled(self, tenant: str, tier: str) -> Entitled:
        """Return what a tenant's callers may have.

        `tier` is "" for callers who say none: theirs is that of their tenant, if it has one.
        """
        if not self.configured:
            return Entitled(self.usual, self.classes[0])
        tier = tier or self.tier_of.get(tenant, "")
        found = self._entitled.get((tenant, tier))
        if found is None:  # tenants and tiers are those of the configuration: there are not many
            nearest = (self.tenants.get(tenant, _NOTHING), self.tiers.get(tier, _NOTHING))
            found = self._entitled[tenant, tier] = entitled(nearest, self.usual)
        return found

    def named(self, name: str) -> PriorityClass | None:
        """Return the class of this name."""
        return next((cls for cls in self.classes if cls.name == name), None)

    def level(self, cls: PriorityClass, model: str, queueing: Queueing) -> int:
        """Return the level of a class at a model, 0 where it has none.

        An ensemble has no levels itself, but hands the priority on to its steps: only what is
        written of it can say what that means there.
        """
        written = self.levels.get(model, _NO_LEVELS).get(cls.name)
        if written is None:
            return spread(cls.rank, len(self.classes), queueing.levels)
        if queueing.scheduler == ENSEMBLE:
            return written
        return min(written, queueing.levels)

    def rank(
        self,
        asked: Asked,
        may: Entitled,
        model: str,
        queueing: Queueing = NO_QUEUES,
    ) -> Ranked:
        """Return what becomes of a request to a model."""
        objection = None
        wanted = may.usual
        if asked.name is not None:
            named = self.named(asked.name)
            wanted = named or wanted
            objection = None if named else Objection.UNKNOWN_CLASS
        level = self.level(wanted, model, queueing)
        if asked.level > queueing.levels > 0:
            objection, level = objection or Objection.OUT_OF_RANGE, 0
        elif asked.level and (queueing.levels or level):
            there = self._class_at(asked.level, may.usual, model, queueing)
            level = asked.level if asked.name is None else max(level, asked.level)
            wanted = there if asked.name is None else lower(wanted, there)
        least = self.level(may.most, model, queueing)
        if wanted.rank < may.most.rank or 0 < level < least:
            objection = objection or Objection.LOWERED
            if self.enforce:
                wanted, level = lower(wanted, may.most), level and max(level, least)
        return Ranked(wanted, level, wanted.queue_timeout_us, objection)

    def _class_at(
        self, level: int, usual: PriorityClass, model: str, queueing: Queueing
    ) -> PriorityClass:
        """Return the class that a level stands for: the usual one, or the first not before it."""
        if self.level(usual, model, queueing) == level:
            return usual
        for cls in self.classes:
            if self.level(cls, model, queueing) >= level:
                return cls
        return self.classes[-1]


_NOTHING = Grant()
_NO_LEVELS: Mapping[str, int] = {}


def _rank(cls: PriorityClass) -> int:
    return cls.rank
