"""Asks all sources of servers for as long as the gateway runs.

Decides when a source that failed is asked again, and which go on when others are configured. What
an answer means is decided by its `Feed`.
Built by wiring, started and stopped by the lifecycle.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.discovery.feed import Feed
from gateway.discovery.source import SourceFailed
from gateway.members import Members, S
from gateway.ports import SourceStatus
from gateway.tasks import spawn, stop

_REVIEW_INTERVAL_S = 1.0
_JITTER = 0.2

_log = logging.getLogger(__name__)


class Section(Protocol):
    """What an operator says of a source: equal values mean that nothing changed."""

    @property
    def name(self) -> str:
        """What the source is called."""


C = TypeVar("C", bound=Section)


@dataclass(slots=True)
class _Followed(Generic[C, S]):
    section: C
    feed: Feed[S]
    task: asyncio.Task[None] | None = None


class Discovery(Generic[C, S]):
    """Follows the sources; see `gateway.ports.Membership`.

    `new_feed` makes the feed of a source. `log` is called once for each new finding, `random`
    yields floats in [0, 1).
    """

    def __init__(
        self,
        members: Members[S],
        *,
        new_feed: Callable[[C], Feed[S]],
        random: Callable[[], float],
        log: Callable[..., Any],
    ) -> None:
        self._members = members
        self._new_feed = new_feed
        self._random = random
        self._log = log
        self._followed: dict[str, _Followed[C, S]] = {}
        self._told: set[str] = set()
        self._reviewing: asyncio.Task[None] | None = None

    def follow(self, sections: Iterable[C]) -> None:
        """Ask these sources from now on, and no others. Those that did not change go on."""
        before, self._followed = self._followed, {}
        for section in sections:
            known = before.get(section.name)
            if known is None or known.section != section:
                known = _Followed(section, self._new_feed(section))
            self._followed[section.name] = known
        for gone in before.values():
            if gone.task is not None and self._followed.get(gone.section.name) is not gone:
                gone.task.cancel()
        if self._reviewing is not None:
            self._ask_all()

    def changed(self, sections: Iterable[C]) -> list[C]:
        """Return those of the sources that are not asked like this so far."""
        known = {name: followed.section for name, followed in self._followed.items()}
        return [section for section in sections if known.get(section.name) != section]

    def start(self) -> None:
        """Begin to ask."""
        self._reviewing = spawn(self._review(), name="review of the sources")
        self._ask_all()

    def _ask_all(self) -> None:
        for name, followed in self._followed.items():
            if followed.task is None:
                followed.task = spawn(self._follow(followed.feed), name=f"source {name}")

    async def first_answers(self) -> None:
        """Wait until every source has answered or failed once."""
        await asyncio.gather(*(feed.tried.wait() for feed in self._feeds()))

    async def stop(self) -> None:
        """Ask no more."""
        tasks = [followed.task for followed in self._followed.values()]
        await stop(*(task for task in [self._reviewing, *tasks] if task is not None))

    def source_of(self, server: str) -> str | None:
        """Return the source a server comes from."""
        return self._members.source_of(server)

    def sources(self) -> list[SourceStatus]:
        """Return how the sources do."""
        return [feed.status() for feed in self._feeds()]

    def findings(self) -> list[Mapping[str, str]]:
        """Return what is wrong with the sources, and how to mend it."""
        return [finding for feed in self._feeds() for finding in feed.findings()]

    def _feeds(self) -> list[Feed[S]]:
        return [followed.feed for followed in self._followed.values()]

    async def _follow(self, feed: Feed[S]) -> None:
        least_s, most_s = feed.source.retry_s
        wait_s = least_s
        while True:
            with self._failures(feed):
                async with contextlib.aclosing(feed.source.answers()) as answers:
                    async for answer in answers:
                        feed.accept(answer)
                        self._tell()
                        wait_s = least_s
            self._tell()
            await asyncio.sleep(wait_s * (1 + _JITTER * (2 * self._random() - 1)))
            wait_s = min(wait_s * 2, most_s)

    @contextlib.contextmanager
    def _failures(self, feed: Feed[S]) -> Iterator[None]:
        try:
            yield
        except SourceFailed as failure:
            feed.fail(str(failure))
        except Exception as error:  # whatever it is, the other sources and this one go on
            _log.exception("source %s", feed.name)
            feed.fail(f"{type(error).__name__}: {error}")

    async def _review(self) -> None:
        while True:
            await asyncio.sleep(_REVIEW_INTERVAL_S)
            for feed in self._feeds():
                feed.review()
            self._tell()

    def _tell(self) -> None:
        now = {finding["message"]: finding for finding in self.findings()}
        for message in now.keys() - self._told:
            self._log("finding", **{**now[message], "server": None})
        self._told = set(now)
