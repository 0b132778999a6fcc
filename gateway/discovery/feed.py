"""One source as the gateway believes it: its last good answer, what stays besides, how it does.

A source that fails keeps its last good answer. What an answer leaves out is judged by
`routing.retention`. Called by the runner, which does the waiting.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from gateway.discovery.source import Answer, Source
from gateway.members import Members, S
from gateway.names import listed
from gateway.ports import Clock, SourceStatus
from routing.retention import Retention, RetentionSettings

Finding = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Surroundings(Generic[S]):
    """What feeds need of the rest of the gateway.

    `answers` says whether a server answers its probes now, `unusable` why a server cannot be
    connected to as described, if so. `wall_clock` returns Unix time in seconds.
    """

    members: Members[S]
    answers: Callable[[str], bool]
    unusable: Callable[[S], str | None]
    clock: Clock
    wall_clock: Clock


class Feed(Generic[S]):
    """Keeps the servers of one source up to date in `Members`."""

    def __init__(
        self,
        name: str,
        source: Source[S],
        settings: RetentionSettings,
        around: Surroundings[S],
    ) -> None:
        self.name = name
        self.source = source
        self.tried = asyncio.Event()
        self._around = around
        self._retention = Retention(settings)
        self._named: Mapping[str, S] | None = None
        self._leaving: frozenset[str] = frozenset()
        self._unusable: Mapping[str, str] = {}
        self._problem: str | None = None
        self._answered_s: float | None = None

    def accept(self, answer: Answer[S]) -> None:
        """Take over an answer."""
        self._problem = answer.problem
        if answer.problem is None:
            self._answered_s = self._around.wall_clock()
        self._leaving = answer.leaving
        self._named = self._usable(answer)
        self.review()
        self.tried.set()

    def fail(self, problem: str) -> None:
        """Note that the source could not be asked; its last good answer stands."""
        self._problem = problem
        self.tried.set()

    def review(self) -> None:
        """Let those go that have been kept long enough, or do not answer any more."""
        if self._named is None:
            return
        members = self._around.members.of_source(self.name)
        kept = self._retention.review(
            members.keys() - self._leaving,
            self._named,
            answers=self._around.answers,
            now_s=self._around.clock(),
        )
        now = {name: s for name, s in members.items() if name in kept} | dict(self._named)
        if now != members:
            self._around.members.set_source(self.name, now.values())

    def status(self) -> SourceStatus:
        """Return how the source does."""
        return SourceStatus(
            name=self.name,
            up=self._problem is None and self.tried.is_set(),
            problem=self._problem,
            answered_s=self._answered_s,
            servers=len(self._around.members.of_source(self.name)),
            kept=sorted(self._around.members.of_source(self.name).keys() - (self._named or {})),
        )

    def findings(self) -> Iterator[Finding]:
        """Yield what an operator should know."""
        if self._problem is not None:
            yield self._failing(self._problem)
        if distrusted := sorted(self._retention.distrusted):
            yield self._finding(
                "discovery-distrusted",
                f"the source '{self.name}' no longer names {listed(distrusted)}: too many at once,"
                " so they stay in use for as long as they answer",
                "mend the source; if they are to go, stop them or cordon them",
            )
        if self._named is not None and not self._around.members.of_source(self.name):
            yield self._finding(
                "discovery-empty", f"the source '{self.name}' names no server", self.source.fix
            )
        for name, reason in self._unusable.items():
            yield self._finding(
                "discovery-unusable",
                f"{name} cannot be used: {reason}",
                "correct the secrets and TLS files that the source gives its servers",
            )
        for twice in self._around.members.twice():
            if twice.source == self.name:
                yield self._finding(
                    "discovery-double",
                    f"{twice.name} of the source '{self.name}' is left out: {twice.owner} of"
                    f" '{twice.owner_source}' has its name or address",
                    "let only one of the sources name this server",
                )

    def _failing(self, problem: str) -> Finding:
        stands = "its last good answer stands" if self._named is not None else "it has no servers"
        return self._finding(
            "discovery-failed",
            f"the source '{self.name}' fails, {stands}: {problem}",
            self.source.fix,
        )

    def _usable(self, answer: Answer[S]) -> dict[str, S]:
        """Return those of an answer that can be used; a change that cannot be is left out."""
        members = self._around.members.of_source(self.name)
        usable: dict[str, S] = {}
        unusable: dict[str, str] = {}
        for server in answer.servers:
            if server.name in answer.leaving:
                continue
            before = members.get(server.name)
            reason = None if server == before else self._around.unusable(server)
            if reason is None:
                usable[server.name] = server
                continue
            unusable[server.name] = reason
            if before is not None:
                usable[server.name] = before
        self._unusable = unusable
        return usable

    @staticmethod
    def _finding(code: str, message: str, fix: str) -> Finding:
        return {"server": "", "severity": "warning", "code": code, "message": message, "fix": fix}
