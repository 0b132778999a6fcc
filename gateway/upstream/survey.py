"""What shows only when the servers of a fleet are seen side by side.

Finds models that differ between servers, one process behind two addresses, and several behind one.
Works on finished diagnoses, and reads the statistics of reachable servers twice more. Called by the
command line.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from gateway.faults import Fault
from gateway.ports import Clock
from gateway.upstream.findings import (
    Counters,
    Diagnosis,
    Finding,
    Severity,
    Signature,
    Target,
    one_line,
    warning,
)
from gateway.upstream.session import open_session
from routing.types import TensorSpec

SURVEY_TIMEOUT_S = 1.0
"""For each of the two readings."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """Who answered on one connection, and its cumulative times at that moment."""

    server_id: str
    counters: Counters


async def survey(
    targets: Mapping[str, Target],
    diagnoses: Mapping[str, Diagnosis],
    *,
    clock: Clock,
    timeout_s: float = SURVEY_TIMEOUT_S,
) -> list[Finding]:
    """Return what is wrong between the servers; takes at most twice `timeout_s` for 16 servers.

    The diagnoses hold the first reading of each server's statistics; all of them must be finished.
    Then every server is read again, and then once more, each time on a new connection.
    """
    found = [*different_signatures(diagnoses)]
    first = {
        name: Reading(diagnosis.server_id, diagnosis.counters)
        for name, diagnosis in diagnoses.items()
        if diagnosis.counters
    }
    second = await _read_all(first, targets, clock, timeout_s)
    third = await _read_all(second, targets, clock, timeout_s)
    readings = {name: (first[name], second[name], third[name]) for name in third}
    hiding = [name for name, three in readings.items() if hides_several(three)]
    found += map(_hiding, hiding)
    alone = {name: three for name, three in readings.items() if name not in hiding}
    found += map(_same_process, same_processes(alone))
    return found


# --- models that differ


def different_signatures(diagnoses: Mapping[str, Diagnosis]) -> Iterator[Finding]:
    """Yield the servers on which a model's version differs from what most servers have."""
    by_key: dict[tuple[str, str], dict[str, Signature]] = {}
    for name, diagnosis in diagnoses.items():
        for key, signature in diagnosis.signatures.items():
            by_key.setdefault(key, {})[name] = signature
    for key, signatures in sorted(by_key.items()):
        usual = Counter(signatures.values()).most_common(1)[0][0]
        like = [name for name, signature in signatures.items() if signature == usual]
        for name, signature in signatures.items():
            if signature != usual:
                yield _differs(key, name, list(_differences(usual, signature)), like)


def _differences(usual: Signature, other: Signature) -> Iterator[tuple[Severity, str]]:
    for kind, mine, theirs in (
        ("inputs", other.spec.inputs, usual.spec.inputs),
        ("outputs", other.spec.outputs, usual.spec.outputs),
    ):
        if mine != theirs:
            yield Severity.ERROR, f"{kind} {_shown(mine)} instead of {_shown(theirs)}"
    for kind, this, that in (
        ("max_batch_size", other.spec.max_batch_size, usual.spec.max_batch_size),
        ("scheduling", other.scheduling, usual.scheduling),
        ("decoupled", other.spec.decoupled, usual.spec.decoupled),
    ):
        if this != that:
            yield Severity.WARNING, f"{kind} {this} instead of {that}".lower()


def _shown(tensors: Iterable[TensorSpec]) -> str:
    return one_line(
        ", ".join(
            f"{tensor.name} {tensor.datatype}[{','.join(map(str, tensor.dims))}]"
            for tensor in tensors
        )
        or "none"
    )


def _differs(
    key: tuple[str, str],
    server: str,
    differences: Sequence[tuple[Severity, str]],
    like: Sequence[str],
) -> Finding:
    model, version = map(one_line, key)
    severities = {severity for severity, _ in differences}
    texts = "; ".join(text for _, text in differences)
    return Finding(
        Severity.ERROR if Severity.ERROR in severities else Severity.WARNING,
        "different-model",
        f"model '{model}' version {version} on {server} differs from {', '.join(like)}: {texts}",
        "put the same model on all servers, or give the different one another name or version",
    )


# --- who is who


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
