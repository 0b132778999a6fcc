"""What shows only when the servers of a fleet are seen side by side.

Finds models that differ between servers, one process behind two addresses, and several behind one.
`survey` works on diagnoses that were just made, for the command line; `who_is_who` is the part that
asks the servers, which a running gateway wants from time to time.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from gateway.faults import Fault
from gateway.ports import Clock
from gateway.upstream.agreement import Version, different_signatures, missing_defaults
from gateway.upstream.findings import Counters, Diagnosis, Finding, Target, warning
from gateway.upstream.queue_advice import queue_findings
from gateway.upstream.session import open_session
from routing.priorities import Priorities
from routing.queueing import Queueing
from routing.types import ModelSpec

SURVEY_TIMEOUT_S = 1.0
"""For each of the two readings."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """Who answered on one connection, and its cumulative times at that moment."""

    server_id: str
    counters: Counters


Readings = Mapping[str, tuple[Reading, Reading, Reading]]


async def survey(
    targets: Mapping[str, Target],
    diagnoses: Mapping[str, Diagnosis],
    *,
    clock: Clock,
    timeout_s: float = SURVEY_TIMEOUT_S,
    default_versions: Mapping[str, int] | None = None,
    priorities: Priorities | None = None,
) -> list[Finding]:
    """Return what is wrong between the servers; mostly takes twice `timeout_s` for 16 servers.

    The diagnoses hold the first reading of each server's statistics; all of them must be finished.
    `default_versions` are those the configuration pins, by model, `priorities` what it says of
    priority classes.
    """
    found = [*different_signatures(_signatures(diagnoses))]
    if any(diagnosis.models_ready is not None for diagnosis in diagnoses.values()):
        found += missing_defaults(default_versions or {}, _ready(diagnoses))
    if priorities is not None:
        found += queue_findings(priorities, _queues(diagnoses))
    first = {
        name: Reading(diagnosis.server_id, diagnosis.counters)
        for name, diagnosis in diagnoses.items()
        if diagnosis.counters
    }
    return found + await who_is_who(targets, first, clock=clock, timeout_s=timeout_s)


def _signatures(diagnoses: Mapping[str, Diagnosis]) -> dict[Version, dict[str, ModelSpec]]:
    found: dict[Version, dict[str, ModelSpec]] = {}
    for name, diagnosis in diagnoses.items():
        for key, spec in diagnosis.signatures.items():
            found.setdefault(key, {})[name] = spec
    return found


def _queues(diagnoses: Mapping[str, Diagnosis]) -> dict[Version, dict[str, Queueing]]:
    found: dict[Version, dict[str, Queueing]] = {}
    for name, diagnosis in diagnoses.items():
        for key, queueing in diagnosis.queues.items():
            found.setdefault(key, {})[name] = queueing
    return found


def _ready(diagnoses: Mapping[str, Diagnosis]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for diagnosis in diagnoses.values():
        for model, version in diagnosis.counters:
            if version.isdecimal():
                found.setdefault(model, set()).add(int(version))
    return found


async def who_is_who(
    targets: Mapping[str, Target],
    first: Mapping[str, Reading] | None = None,
    *,
    clock: Clock,
    timeout_s: float = SURVEY_TIMEOUT_S,
) -> list[Finding]:
    """Return which addresses lead to one process, and which to several.

    Every server is read twice after the `first` readings, which must be fresh, each time on a new
    connection; without them it is read three times. Where several seem to answer it is read three
    times more, since a model that comes or goes at that moment looks the same.
    """

    async def three_of(names: Iterable[str], first: Mapping[str, Reading] | None) -> Readings:
        first = first if first is not None else await _read_all(names, targets, clock, timeout_s)
        second = await _read_all(first, targets, clock, timeout_s)
        third = await _read_all(second, targets, clock, timeout_s)
        return {name: (first[name], second[name], third[name]) for name in third}

    readings = await three_of(targets, first)
    odd = [name for name, three in readings.items() if hides_several(three)]
    again = await three_of(odd, None) if odd else {}
    steady = {name: three for name, three in readings.items() if name not in odd}
    return [
        *(_hiding(name) for name, three in again.items() if hides_several(three)),
        *map(_same_process, same_processes(steady)),
    ]


async def _read_all(
    names: Iterable[str], targets: Mapping[str, Target], clock: Clock, timeout_s: float
) -> dict[str, Reading]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> Reading | None:
        async with (
            limit,
            open_session(targets[name], clock=clock, timeout_s=timeout_s) as session,
        ):
            try:
                said = await session.metadata()
                return Reading(said.name, await session.counters())
            except Fault:
                return None

    wanted = list(names)
    readings = await asyncio.gather(*map(one, wanted))
    return {
        name: reading for name, reading in zip(wanted, readings, strict=True) if reading is not None
    }


def hides_several(readings: Sequence[Reading]) -> bool:
    """Whether readings of one address, in order of time, cannot come from one process.

    One process keeps its name, and its models from one moment to the next, and its cumulative
    times never go back.
    """
    if len({(reading.server_id, frozenset(reading.counters)) for reading in readings}) > 1:
        return True
    return any(
        not _may_follow(earlier.counters, later.counters) for earlier, later in pairwise(readings)
    )


def same_processes(readings: Mapping[str, Sequence[Reading]]) -> list[tuple[str, ...]]:
    """Return groups of addresses that one process answers on.

    `readings` holds three of each address, all first ones being older than all second ones, and
    these older than all third ones. Times in nanoseconds that lie between those of another address
    read before and after, for every model, are the same times. Idle servers cannot be told apart.
    """
    groups: list[set[str]] = []
    for one, other in combinations(readings, 2):
        if not _is_between(readings[one][0], readings[other][1], readings[one][2]):
            continue
        touched = [group for group in groups if group & {one, other}]
        groups = [group for group in groups if group not in touched]
        groups.append({one, other}.union(*touched))
    return [tuple(name for name in readings if name in group) for group in groups]


def _is_between(before: Reading, now: Reading, after: Reading) -> bool:
    return (
        before.server_id == now.server_id == after.server_id
        and before.counters.keys() == now.counters.keys()
        and any(any(times) for times in before.counters.values())
        and _may_follow(before.counters, now.counters)
        and _may_follow(now.counters, after.counters)
    )


def _may_follow(earlier: Counters, later: Counters) -> bool:
    """Whether no time has gone back. Models that came or went in between say nothing."""
    return all(
        a <= b
        for key in earlier.keys() & later.keys()
        for a, b in zip(earlier[key], later[key], strict=True)
    )


def _hiding(server: str) -> Finding:
    return warning(
        "several-servers",
        f"several servers seem to hide behind the address of {server}: their statistics differ from"
        " connection to connection",
        "give each server an address of its own; the gateway cannot balance what it does not see",
    )


def _same_process(servers: Sequence[str]) -> Finding:
    return warning(
        "same-process",
        f"{' and '.join(servers)} are one Triton behind several addresses: their statistics are"
        " equal to the nanosecond",
        "keep one of them; twice in the list it gets twice its share of the work",
    )
