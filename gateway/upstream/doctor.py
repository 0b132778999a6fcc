"""Keeps a diagnosis of every server at hand while the gateway runs.

Each server is examined after the start and whenever it went down or came back. What the servers say
of their models is compared whenever it changed, which asks nobody; which process is behind which
address is asked after the same events as above, and from time to time. What is found stands in the
fleet view and once in the log, in the words of `triton-gateway check --live`. Only whether model
control is exposed is left to that command: to find out, it has to ask the server to unload
something.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from gateway.ports import Clock
from gateway.upstream.agreement import Version, different_signatures, missing_defaults
from gateway.upstream.describe import ModelBook
from gateway.upstream.diagnose import diagnose
from gateway.upstream.findings import Diagnosis, Finding, Severity, Target
from gateway.upstream.queue_advice import queue_findings
from gateway.upstream.survey import who_is_who
from routing.fleet import FleetSnapshot, FleetTable, ModelVersion
from routing.priorities import Priorities
from routing.queueing import Queueing

_LOOK_INTERVAL_S = 5.0
_SURVEY_INTERVAL_S = 600.0
_SURVEY_PAUSE_S = 30.0
"""A server that comes and goes must not have the whole fleet questioned all the time."""


class Doctor:
    """Examines servers in the background. `log` is called once for each new finding.

    `book` has what the servers say of their models, `priorities` what is configured of classes.
    """

    def __init__(
        self,
        table: FleetTable,
        book: ModelBook,
        *,
        priorities: Priorities,
        log: Callable[..., Any],
        clock: Clock,
    ) -> None:
        self._targets: dict[str, Target] = {}
        self._table = table
        self._book = book
        self._priorities = priorities
        self._log = log
        self._clock = clock
        self._examined_up: dict[str, bool] = {}
        self._diagnoses: dict[str, Diagnosis] = {}
        self._compared: FleetSnapshot | None = None
        self._models: list[Finding] = []
        self._queues: list[Finding] = []
        self._judged: FleetSnapshot | None = None
        self._judged_changes = 0
        self._processes: list[Finding] = []
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
        surveyed_s, due = float("-inf"), True
        while True:
            for name in self._changed():
                await self._examine(name)
                due = True
            self._compare()
            self._judge_queues()
            if self._clock() - surveyed_s >= (_SURVEY_PAUSE_S if due else _SURVEY_INTERVAL_S):
                surveyed_s, due = self._clock(), False
                await self._survey()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def take_over(self, before: "Doctor", kept: Collection[str]) -> None:
        """Take over what `before` found out about the `kept` servers, and what it told already."""
        for name in kept:
            same = self._targets[name] == before._targets[name]
            if same and name in before._examined_up:
                self._examined_up[name] = before._examined_up[name]
                self._diagnoses[name] = before._diagnoses[name]
        self._models, self._processes = before._models, before._processes
        self._queues = before._queues
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
        return found + [
            ("", finding) for finding in (*self._models, *self._queues, *self._processes)
        ]

    def _changed(self) -> list[str]:
        servers = self._table.snapshot.servers
        return [name for name, row in servers.items() if self._examined_up.get(name) is not row.up]

    async def _examine(self, name: str) -> None:
        row, target = self._table.snapshot.servers.get(name), self._targets.get(name)
        if row is None or target is None:  # it has left since
            return
        found = await diagnose(target, clock=self._clock, ask_control=False)
        if self._targets.get(name) is target:
            self._examined_up[name] = row.up
            self._diagnoses[name] = found
            self._tell()

    def _compare(self) -> None:
        snapshot = self._table.snapshot
        if snapshot is self._compared:
            return
        self._compared = snapshot
        signatures = {
            (key.model, str(key.version)): by_server
            for key, by_server in self._table.disagreements().items()
        }
        self._models = [*different_signatures(signatures)]
        if any(row.up for row in snapshot.servers.values()):  # otherwise nothing is known
            pinned = self._table.pinned_versions()
            expected = {model: _expected(snapshot, model) for model in pinned}
            self._models += missing_defaults(pinned, expected)
        self._tell()

    def _judge_queues(self) -> None:
        """Judge what models make of priorities; that may change without the rest of a model."""
        snapshot, changes = self._table.snapshot, self._book.changes
        if snapshot is self._judged and changes == self._judged_changes:
            return
        self._judged, self._judged_changes = snapshot, changes
        self._queues = []
        if self._priorities.configured:
            self._queues += queue_findings(self._priorities, self._known_queues())
        self._tell()

    def _known_queues(self) -> dict[Version, dict[str, Queueing]]:
        return {
            (model, str(version)): {
                server: queueing
                for server in route.servers
                if (queueing := self._book.queueing(server, ModelVersion(model, version)))
            }
            for model, known in self._table.snapshot.models.items()
            for version, route in known.versions.items()
        }

    async def _survey(self) -> None:
        up = {name for name, row in self._table.snapshot.servers.items() if row.up}
        targets = {name: target for name, target in self._targets.items() if name in up}
        self._processes = await who_is_who(targets, clock=self._clock)
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


def _expected(snapshot: FleetSnapshot, model: str) -> set[int]:
    """Return the versions of a model that some server has ready or is loading."""
    found = snapshot.models.get(model)
    versions = found.versions if found else {}
    return {
        version
        for version, route in versions.items()
        if route.servers or route.left_out or route.loading
    }
