"""Runs the probes of the commands that look at real servers.

Decides how many run at once, and tells on standard error who is slow.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import typer

from config.models import Config
from gateway.cli.sources import discover
from gateway.tasks import spawn, stop
from gateway.upstream.diagnose import diagnose
from gateway.upstream.findings import Diagnosis, Finding, Severity, Target
from gateway.upstream.survey import survey
from gateway.wiring import CLOCK, priorities_of, target_of

T = TypeVar("T")

_AT_ONCE = 16
_PATIENCE_S = 1.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Examined:
    """What was looked at, what was found at each server, and what concerns several of them."""

    targets: Mapping[str, Target]
    diagnoses: Mapping[str, Diagnosis]
    fleet: Sequence[Finding]


def examine(config: Config, environ: Mapping[str, str]) -> Examined:
    """Ask every source of servers once, and probe all servers; the secrets must be there."""

    async def whole() -> Examined:
        targets = {server.name: target_of(server, environ) for server in config.servers}
        found, wrong = await discover(config.discovery, environ, taken=targets)
        targets |= found
        diagnoses = await at_once(targets, lambda name: diagnose(targets[name], clock=CLOCK))
        between = await survey(
            targets,
            diagnoses,
            clock=CLOCK,
            default_versions=_pinned(config),
            priorities=priorities_of(config),
        )
        return Examined(targets, diagnoses, [*wrong, *between])

    return run(whole)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` in an event loop."""

    async def main() -> T:
        return await work()

    return asyncio.run(main())


async def at_once(names: Iterable[str], work: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Do `work` for each name, 16 at once; after a second, say on whom is waited."""
    waiting = dict.fromkeys(names)
    found: dict[str, T] = {}
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> None:
        async with limit:
            found[name] = await work(name)
        del waiting[name]

    order = list(waiting)
    progress = spawn(_tell(waiting), name="progress")
    try:
        await asyncio.gather(*map(one, order))
    finally:
        await stop(progress)
    return {name: found[name] for name in order}


def count(findings: Iterable[Finding], severity: Severity) -> int:
    """Count the findings of one severity."""
    return sum(finding.severity is severity for finding in findings)


async def _tell(waiting: Mapping[str, None]) -> None:
    while True:
        await asyncio.sleep(_PATIENCE_S)
        names = ", ".join(list(waiting)[:_SHOWN])
        more = f" and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
        typer.echo(f"waiting for {names}{more} ...", err=True)


def _pinned(config: Config) -> dict[str, int]:
    """Return the default versions the configuration pins, by model."""
    return {
        name: policy.default_version
        for name, policy in config.models.items()
        if policy.default_version is not None
    }
