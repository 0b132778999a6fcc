"""Keeps a diagnosis of every server at hand while the gateway runs.

Each server is examined after the start and whenever it went down or came back; the fleet is
surveyed from time to time. What is found stands in the fleet view and once in the log, in the words
of `triton-gateway check --live`. Only whether model control is exposed is left to that command: to
find out, it has to ask the server to unload something.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from gateway.ports import Clock, Fleet
from gateway.upstream.diagnose import diagnose
from gateway.upstream.findings import Diagnosis, Finding, Severity, Target
from gateway.upstream.survey import survey

_LOOK_INTERVAL_S = 5.0
_SURVEY_INTERVAL_S = 600.0


class Doctor:
    """Examines servers in the background. `log` is called once for each new finding."""

    def __init__(
        self,
        fleet: Callable[[], Fleet],
        *,
        log: Callable[..., Any],
        clock: Clock,
    ) -> None:
        self._targets: dict[str, Target] = {}
        self._fleet = fleet
        self._log = log
        self._clock = clock
        self._examined_up: dict[str, bool] = {}
        self._diagnoses: dict[str, Diagnosis] = {}
        self._between: list[Finding] = []
        self._told: set[tuple[str, Finding]] = set()

    def add(self, name: str, target: Target) -> None:
        """Examine this server, too."""
        self._targets[name] = target

    def forget(self, name: str) -> None:
        """Examine a server no more, and forget what was found."""
        self._targets.pop(name, None)
        self._examined_up.pop(name, None)
        self._diagnoses.pop(name, None)

    async def watch(self) -> None:
        """Examine for ever."""
        surveyed_s = float("-inf")
        while True:
            for name in self._changed():
                await self._examine(name)
            if self._clock() - surveyed_s >= _SURVEY_INTERVAL_S:
                surveyed_s = self._clock()
                await self._survey()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def take_over(self, before: "Doctor", kept: Collection[str]) -> None:
        """Take over what `before` found out about the `kept` servers, and what it told already."""
        for name in kept:
            same = self._targets[name] == before._targets[name]
            if same and name in before._examined_up:
                self._examined_up[name] = before._examined_up[name]
                self._diagnoses[name] = before._diagnoses[name]
        self._between = before._between
        self._told = before._told

    def findings(self) -> list[dict[str, str]]:
        """Return what is wrong now: server ("" for the fleet), severity, message and fix."""
        return [
            {
                "server": name,
                "severity": finding.severity.value,
                "code": finding.code,
                "message": finding.message,
                "fix": finding.fix,
            }
            for name, finding in self._all()
        ]

    def _all(self) -> list[tuple[str, Finding]]:
        found = [(name, f) for name, d in sorted(self._diagnoses.items()) for f in d.findings]
        return found + [("", finding) for finding in self._between]

    def _changed(self) -> list[str]:
        servers = self._fleet().snapshot.servers
        return [name for name, row in servers.items() if self._examined_up.get(name) is not row.up]

    async def _examine(self, name: str) -> None:
        row, target = self._fleet().snapshot.servers.get(name), self._targets.get(name)
        if row is None or target is None:  # it has left since
            return
        found = await diagnose(target, clock=self._clock, ask_control=False)
        if self._targets.get(name) is target:
            self._examined_up[name] = row.up
            self._diagnoses[name] = found
            self._tell()

    async def _survey(self) -> None:
        self._between = await survey(dict(self._targets), dict(self._diagnoses), clock=self._clock)
        self._tell()

    def _tell(self) -> None:
        now = set(self._all())
        for name, finding in sorted(now - self._told, key=lambda told: (told[0], told[1].code)):
            if finding.severity is not Severity.INFO:
                self._log(
                    "finding",
                    server=name or None,
                    severity=finding.severity.value,
                    code=finding.code,
                    message=finding.message,
                    fix=finding.fix,
                )
        self._told = now
