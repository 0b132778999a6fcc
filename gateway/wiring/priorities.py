"""The priority classes of a configuration, and who may have which."""

import math

from config.models import Config
from config.priorities import MayRank, Priority
from config.priorities import PriorityClass as ClassConfig
from gateway.exchange import ANONYMOUS
from routing.classes import CLASSES, PriorityClass
from routing.priorities import Grant, Priorities

_LAST_CEILING = 0.7


def priorities_of(config: Config) -> Priorities:
    """Build them."""
    settings = config.priority or Priority()
    classes = {cls.name: cls for cls in _classes(settings.classes)}
    levels = {
        name: policy.priority_levels
        for name, policy in config.models.items()
        if policy.priority_levels
    }
    spoken = [*config.tenants.values(), *config.tiers.values()]
    return Priorities(
        classes=tuple(classes.values()),
        usual=classes[settings.default],
        tenants={
            ANONYMOUS: Grant(),
            **{name: _grant(tenant, classes) for name, tenant in config.tenants.items()},
        },
        tiers={name: _grant(tier, classes) for name, tier in config.tiers.items()},
        tier_of={name: tenant.tier for name, tenant in config.tenants.items() if tenant.tier},
        levels=levels,
        enforce=settings.mode == "enforce",
        configured=config.priority is not None or bool(levels) or any(map(_says, spoken)),
    )


def _classes(written: tuple[ClassConfig, ...]) -> tuple[PriorityClass, ...]:
    if not written:
        return CLASSES
    found: list[PriorityClass] = []
    for rank, cls in enumerate(written):
        most = found[-1].ceiling if found else 1.0
        evenly = 1.0 - (1.0 - _LAST_CEILING) * rank / max(1, len(written) - 1)
        ceiling = min(most, evenly) if cls.ceiling is None else cls.ceiling
        timeout_us = math.ceil((cls.queue_timeout_s or 0.0) * 1e6)
        found.append(PriorityClass(cls.name, rank, ceiling, timeout_us))
    return tuple(found)


def _says(somebody: MayRank) -> bool:
    return somebody.priority_class is not None or somebody.max_priority_class is not None


def _grant(somebody: MayRank, classes: dict[str, PriorityClass]) -> Grant:
    return Grant(
        classes.get(somebody.priority_class or ""), classes.get(somebody.max_priority_class or "")
    )
