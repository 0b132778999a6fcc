"""The trace and log settings of the fleet: changed on every server, read as one.

What the servers agree on is the answer; where they do not, it is what most of them say, together
with the names of those that say something else. Called by the edge.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.fanout import SharedRounds, holders, unavailable
from gateway.faults import Fault
from gateway.operations import Outcome
from gateway.ports import Clock, Fleet, SettingsCalls

Read = Callable[[str], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings as most servers have them, and which servers have others or did not answer."""

    document: Mapping[str, Any]
    differing: Sequence[str]
    unanswered: Sequence[str]


class SettingsFailed(Exception):
    """A change was not made everywhere; `outcomes` has one entry for each server."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


class SettingsDesk:
    """Reads and changes settings. `log` is told of changes.

    Callers that read the same at the same time share one round of calls.
    """

    def __init__(
        self,
        fleet: Fleet,
        calls: SettingsCalls,
        *,
        timeout_s: float,
        log: Callable[..., Any],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._calls = calls
        self._timeout_s = timeout_s
        self._log = log
        self._clock = clock
        self._rounds: SharedRounds[FleetSettings] = SharedRounds()

    async def read_trace(self, model: str) -> FleetSettings:
        """Return the trace settings of a model, or of the servers with an empty name.

        Raises Fault.
        """
        servers = self._servers(model)
        return await self._rounds.share(
            ("trace", model), lambda: self._read(servers, lambda name: self._trace(name, model, {}))
        )

    async def read_log(self) -> FleetSettings:
        """Return the log settings. Raises Fault."""
        servers = self._servers("")
        return await self._rounds.share(
            ("log", ""), lambda: self._read(servers, lambda name: self._logging(name, {}))
        )

    async def change_trace(
        self, model: str, values: Mapping[str, Sequence[str]], *, by: str
    ) -> FleetSettings:
        """Change trace settings, on every server, or on those that hold the model.

        Raises SettingsFailed, and Fault for a model that is not there and a fleet without servers.
        """
        servers = self._servers(model) if model else self._all()
        self._log("trace settings", model=model or None, values=values, by=by)
        return await self._change(servers, lambda name: self._trace(name, model, values))

    async def change_log(self, values: Mapping[str, bool | int | str], *, by: str) -> FleetSettings:
        """Change log settings on every server. Raises SettingsFailed, and Fault without servers."""
        servers = self._all()
        self._log("log settings", values=values, by=by)
        return await self._change(servers, lambda name: self._logging(name, values))

    async def _trace(
        self, server: str, model: str, values: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        return await self._calls.trace(server, model, values, timeout_s=self._timeout_s)

    async def _logging(self, server: str, values: Mapping[str, bool | int | str]) -> dict[str, Any]:
        return await self._calls.log(server, values, timeout_s=self._timeout_s)

    def _servers(self, model: str) -> Sequence[str]:
        snapshot = self._fleet.snapshot
        found = holders(snapshot, model, None, self._clock())
        servers = [name for name in found if not snapshot.servers[name].leaving]
        if not servers:
            raise unavailable("no server of the fleet answers at the moment")
        return servers

    def _all(self) -> Sequence[str]:
        servers = self._fleet.snapshot.staying()
        if not servers:
            raise unavailable("the fleet has no servers at the moment")
        return servers

    async def _read(self, servers: Sequence[str], read: Read) -> FleetSettings:
        answers, faults = await _ask(servers, read)
        if not answers:
            raise next(iter(faults.values()))
        return merge(answers, unanswered=list(faults))

    async def _change(self, servers: Sequence[str], change: Read) -> FleetSettings:
        answers, faults = await _ask(servers, change)
        if faults:
            raise SettingsFailed([_outcome(name, faults.get(name)) for name in servers])
        return merge(answers, unanswered=())


def merge(answers: Mapping[str, Mapping[str, Any]], *, unanswered: Sequence[str]) -> FleetSettings:
    """Return what most servers say; of equally many the one that the first server says."""
    texts = {
        name: orjson.dumps(said, option=orjson.OPT_SORT_KEYS) for name, said in answers.items()
    }
    ((chosen, _),) = Counter(texts.values()).most_common(1)
    differing = [name for name, text in texts.items() if text != chosen]
    document = next(said for name, said in answers.items() if texts[name] == chosen)
    return FleetSettings(document, differing, unanswered)


async def _ask(
    servers: Sequence[str], ask: Read
) -> tuple[dict[str, dict[str, Any]], dict[str, Fault]]:
    said = await asyncio.gather(*map(ask, servers), return_exceptions=True)
    answers: dict[str, dict[str, Any]] = {}
    faults: dict[str, Fault] = {}
    for name, answer in zip(servers, said, strict=True):
        if isinstance(answer, Fault):
            faults[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[name] = answer
    return answers, faults


def _outcome(server: str, fault: Fault | None) -> Outcome:
    return Outcome(server) if fault is None else Outcome(server, fault.kind, fault.message)
