"""Switches features off and on again: here, in the workers, and on all gateways that share a store.

One command a feature is in force, the last one, and only for its time. Each host keeps it in its
own file, and hosts that share a Redis bring each other to the same state through it: of two
commands the later counts. So one that was given while Redis was down reaches the others when it is
back, and a Redis that has lost its memory learns again what is in force. Called by
`gateway.steering`, which keeps the file; started with the process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.ports import Clock, Entry, LogEvent, SharedStore, StoreDown
from gateway.switches import MAX_S, Feature, Switch, Switches
from gateway.tasks import spawn, stop

FOLLOW_S = 2.0
"""How often is looked what other gateways were told."""
_REMEMBERED_S = 60.0
"""How much longer than what it ends the end of a switch is remembered."""
_STEP_S = 1e-6
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """A command, and when its time is over by the process's own clock."""

    switch: Switch
    ends_s: float


class Switchboard:
    """`switches` are those this process asks; `told` gets their ends whenever they change.

    `store` is None where nothing is shared. `wall_clock` returns seconds of the epoch.
    """

    def __init__(
        self,
        switches: Switches,
        store: SharedStore | None,
        *,
        told: Callable[[Mapping[str, float]], None],
        log: LogEvent,
        clock: Clock,
        wall_clock: Callable[[], float],
    ) -> None:
        self.shares = store is not None
        """Whether there are other gateways that follow."""
        self.keep: Callable[[], Awaitable[None]] = _keep_nothing
        """Is called when something has changed without a command given here; may raise OSError."""
        self._switches = switches
        self._store = store
        self._told = told
        self._log_event = log
        self._clock = clock
        self._wall_clock = wall_clock
        self._known: dict[Feature, _Known] = {}
        self._changed = False
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow other gateways, and to tell when something is over."""
        self._following = spawn(self._follow(), name="what is switched off")

    async def stop(self) -> None:
        """Follow nobody any more."""
        if self._following is not None:
            await stop(self._following)

    def restore(self, entries: Iterable[object]) -> None:
        """Take over what was kept, as far as it is not over. Raises ValueError."""
        for entry in entries:
            switch = Switch.of_entry(entry)
            left_s = switch.until_s - self._wall_clock()
            if left_s > 0:
                self._adopt(switch, left_s)
            elif switch.off:
                self._log_end(switch, by="the end of its time")

    def entries(self) -> list[dict[str, Any]]:
        """Return what has to be kept, as JSON objects."""
        return [self._written(known).entry() for _, known in sorted(self._known.items())]

    def view(self) -> list[dict[str, Any]]:
        """Return what is off now, for operators."""
        return [
            {
                "feature": feature,
                "by": known.switch.by,
                "reason": known.switch.reason,
                "since": _iso(known.switch.since_s),
                "until": _iso(self._written(known).until_s),
            }
            for feature, known in sorted(self._known.items())
            if self._switches.disabled(feature)
        ]

    async def disable(
        self, feature: Feature, for_s: float, reason: str, *, by: str
    ) -> tuple[str, str | None]:
        """Switch a feature off; what is off already, for the new time from now on.

        Returns until when as ISO 8601 text, and why the other gateways do not know of it: None if
        they do, or if there are none.
        """
        until = _iso(self._wall_clock() + for_s)
        return until, await self._command(feature, off=True, for_s=for_s, reason=reason, by=by)

    async def enable(self, feature: Feature, *, by: str) -> tuple[bool, str | None]:
        """Switch a feature on again; return whether it was off, and then as for `disable`."""
        problem = await self._meet()
        known = self._known.get(feature)
        if known is None or not known.switch.off:
            return False, problem
        left_s = known.ends_s - self._clock()
        remembered_s = max(0.0, left_s) + _REMEMBERED_S
        problem = await self._command(feature, off=False, for_s=remembered_s, reason="", by=by)
        return True, problem

    async def _command(
        self, feature: Feature, *, off: bool, for_s: float, reason: str, by: str
    ) -> str | None:
        await self._meet()
        since_s = self._wall_clock()
        known = self._known.get(feature)
        if known is not None:  # later than the last one, whosever clock that was given by
            since_s = max(since_s, known.switch.since_s + _STEP_S)
        switch = Switch(feature, off, by, reason, since_s, since_s + for_s)
        self._adopt(switch, for_s)
        return await self._meet()

    async def _follow(self) -> None:
        while True:
            await self.follow_once()
            await asyncio.sleep(FOLLOW_S)

    async def follow_once(self) -> None:
        """Learn what other gateways were told, and see what is over."""
        await self._meet()
        self._expire()
        if not self._changed:
            return
        self._changed = False
        try:
            await self.keep()
        except OSError as error:
            _log.warning("what is switched off cannot be kept over a restart: %s", error)

    async def _meet(self) -> str | None:
        """Bring this host and the store to the same state; return why that could not be done."""
        if self._store is None:
            return None
        try:
            there = await self._store.look([_key(feature) for feature in Feature])
            for feature, found in zip(Feature, there, strict=True):
                await self._meet_over(self._store, feature, found)
        except StoreDown as error:
            return str(error)
        return None

    async def _meet_over(self, store: SharedStore, feature: Feature, found: Entry | None) -> None:
        mine, theirs = self._known.get(feature), _read(feature, found)
        mine_s = mine.switch.since_s if mine else 0.0
        theirs_s = theirs.since_s if theirs else 0.0
        if theirs is not None and found is not None and theirs_s > mine_s:
            self._adopt(theirs, found.left_s)
            self._changed = True
        elif mine is not None and mine_s > theirs_s and mine.ends_s > self._clock():
            await store.claim(
                _key(feature),
                orjson.dumps(self._written(mine).entry()).decode(),
                ttl_s=mine.ends_s - self._clock(),
                instead_of=found.value if found else None,
            )

    def _adopt(self, switch: Switch, left_s: float) -> None:
        """Put a command in force for so long."""
        before = self._known.get(switch.feature)
        most_s = MAX_S if switch.off else MAX_S + _REMEMBERED_S
        known = _Known(switch, self._clock() + min(left_s, most_s))
        self._known[switch.feature] = known
        self._apply()
        if switch.off:
            self._log_event(
                "feature disabled",
                feature=switch.feature,
                by=switch.by,
                reason=switch.reason,
                until=_iso(self._written(known).until_s),
            )
        elif before is not None and before.switch.off:
            self._log_end(before.switch, by=switch.by)

    def _expire(self) -> None:
        for feature, known in list(self._known.items()):
            if known.ends_s <= self._clock():
                del self._known[feature]
                self._changed = True
                if known.switch.off:
                    self._log_end(known.switch, by="the end of its time")
        self._apply()

    def _apply(self) -> None:
        until_s: dict[str, float] = {
            feature: known.ends_s for feature, known in self._known.items() if known.switch.off
        }
        if until_s != self._switches.until_s:
            self._switches.until_s = until_s
            self._told(until_s)

    def _log_end(self, ended: Switch, *, by: str) -> None:
        self._log_event(
            "feature enabled",
            feature=ended.feature,
            by=by,
            was_disabled_by=ended.by,
            since=_iso(ended.since_s),
        )

    def _written(self, known: _Known) -> Switch:
        """Return a command with its end by this host's clock on the wall."""
        left_s = known.ends_s - self._clock()
        return replace(known.switch, until_s=self._wall_clock() + left_s)


def _key(feature: Feature) -> str:
    return f"disabled:{feature}"


def _read(feature: Feature, found: Entry | None) -> Switch | None:
    """Return what another gateway wrote; None for what this one does not understand."""
    if found is None:
        return None
    with contextlib.suppress(ValueError):
        switch = Switch.of_entry(orjson.loads(found.value))
        if switch.feature is feature:
            return switch
    return None


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


async def _keep_nothing() -> None:
    pass
