"""Watches one server: is it there, who is it, and what does it have ready.

Presence comes from ModelStatistics, which lists what is ready and touches no directory. The
repository index, which reads the repository on the same single thread that answers health calls,
is asked rarely, on its own time budget, and its failure means "unknown". A server that answers
inference is alive whatever its probes say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tritonclient.grpc import service_pb2 as pb

from gateway.faults import Fault, Kind
from gateway.ports import Clock
from gateway.upstream.channels import Channel
from gateway.upstream.control import call_method
from gateway.upstream.describe import ModelBook, describe
from gateway.upstream.onlookers import Onlookers
from gateway.upstream.transport import Upstream
from gateway.upstream.waits import WaitsReader
from routing.admission.limits import WaitsNews
from routing.fleet import FleetTable, ModelRow, ModelVersion
from routing.shares import Executed
from routing.types import State

_DESCRIBE_AT_ONCE = 4
_INDEX_SHARE = 0.1  # at most this share of a server's control thread goes to the index
_EAGER_INDEX_S = 1.0
_JITTER = 0.2
_SILENT_CHANNEL_PROBES = 2
_EAGER_INTERVAL_S = 0.5
_EAGER_AFTER_UP_S = 60.0
_EXITING_MIN_S = 5.0
_EXITING_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """When and how servers are probed; times in seconds."""

    statistics_interval_s: float
    statistics_timeout_s: float
    index_interval_s: float
    index_timeout_s: float
    silent_probes: int


@dataclass(frozen=True, slots=True)
class Announce:
    """What the prober tells the log: state changes only."""

    up: Callable[..., None]
    down: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Assignment:
    """How a prober is to probe, and who is told what it finds.

    `last_reply_s` returns when the server last answered inference. `executed` is told what the
    server counts of each version, None where nobody wants it. `on_return` is called when the
    server is back after it was down, `on_start` when it may have been started anew: it is up and
    was not, or a connection to it was lost in between. `on_waits` is told how its models
    did since the last answer, see `WaitsReader.news`; None if nobody wants to know.
    """

    settings: ProbeSettings
    table: FleetTable
    book: ModelBook
    announce: Announce
    last_reply_s: Callable[[], float]
    executed: Callable[[Mapping[ModelVersion, Executed]], None] | None
    on_return: Callable[[], None]
    on_start: Callable[[], None]
    on_waits: Callable[[WaitsNews], None] | None = None


class ServerProber:
    """Probes one server for as long as it runs and keeps the fleet table up to date."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        expect: str | None,
        assignment: Assignment,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        self._upstream = upstream
        self._name = upstream.name
        self._expect = expect
        self.assignment = assignment
        self._clock = clock
        self._random = random
        self._identified = False
        self._server_id = ""
        self._reloaded: list[ModelVersion] = []
        self._was_up: bool | None = None
        self._up_since_s = float("-inf")
        self._silent = 0
        self._exiting_s = 0.0
        self._exiting_until_s = float("-inf")
        self._indexing = False
        self._counts: dict[ModelVersion, int] = {}
        self._waits = WaitsReader()
        self._retired = False
        self._wake = asyncio.Event()
        self._wake_index = asyncio.Event()
        self._changes = 0  # commands under way that change what the server holds
        self._changed: set[str] = set()  # models whose descriptions are out of date
        self._onlookers = Onlookers(self.wake)
        self._is_settled = True
        self._losses = 0
        self._was_cut = False  # a connection was lost since the last good probe
        self.passed_once = asyncio.Event()

    def wake(self) -> None:
        """Probe now instead of at the next interval."""
        self._wake.set()

    def retire(self) -> None:
        """Tell nobody anything any more, and let nobody wait: the server has left the fleet."""
        self._retired = True
        self.passed_once.set()
        self._onlookers.close()

    def unreachable(self, reason: str) -> None:
        """Take the server out: a request found that no connection can be made. Probe it now."""
        if self._retired:
            return
        self._note_down(reason)
        self.wake()

    def exiting(self, reason: str) -> None:
        """Take the server out: a request was told that it is going down.

        It may go on answering probes, and would come and go with every request. So it stays out
        until it was seen to have ended, or for 5 s; each time it says so again, twice as long, up
        to a minute.
        """
        now_s = self._clock()
        if now_s >= self._exiting_until_s:
            self._exiting_s = min(max(2 * self._exiting_s, _EXITING_MIN_S), _EXITING_MAX_S)
            self._exiting_until_s = now_s + self._exiting_s
        self._note_down(reason)

    def _has_ended(self) -> None:
        """Note that whoever answers from now on is a new process."""
        self._exiting_s, self._exiting_until_s = 0.0, float("-inf")

    @asynccontextmanager
    async def changing(self, model: str) -> AsyncIterator[None]:
        """Watch the server closely while it is changed; see `gateway.ports.FleetProbe`."""
        self._changes += 1
        self._wake_index.set()
        try:
            yield
        finally:
            self._changes -= 1
            self._changed.add(model)
            self._wake_index.set()
            await self._onlookers.wait()

    async def watch_presence(self) -> None:
        """Probe presence and readiness for ever."""
        try:
            while True:
                self._onlookers.begin()
                await self._pass()
                self.passed_once.set()
                self._onlookers.end()
                if not self._onlookers.some_wait:
                    self._wake.clear()
                    await self._pause(self._wake, self._interval_s())
        finally:
            self._onlookers.close()

    async def watch_index(self) -> None:
        """Read states and reasons from the repository index for ever."""
        await self.passed_once.wait()
        while True:
            began_s = self._clock()
            self._wake_index.clear()
            self._indexing = True
            try:
                await self._read_index()
            except Fault:
                pass  # "unknown": what the last index said stands
            finally:
                self._indexing = False
            took_s = self._clock() - began_s
            await self._pause(
                self._wake_index, max(self._index_interval_s(), took_s / _INDEX_SHARE)
            )

    def _interval_s(self) -> float:
        # A server that is down, or has just come up and may still be loading, is watched closely.
        usual_s = self.assignment.settings.statistics_interval_s
        settled = self._was_up and self._clock() - self._up_since_s > _EAGER_AFTER_UP_S
        return usual_s if settled else min(usual_s, _EAGER_INTERVAL_S)

    def _index_interval_s(self) -> float:
        # What is being loaded or unloaded is watched closely.
        usual_s = self.assignment.settings.index_interval_s
        return min(usual_s, _EAGER_INDEX_S) if self._changes or not self._is_settled else usual_s

    async def _pause(self, wake: asyncio.Event, interval_s: float) -> None:
        try:
            async with asyncio.timeout(self._spread(interval_s)):
                await wake.wait()
        except TimeoutError:
            pass

    def _spread(self, interval_s: float) -> float:
        # Jitter keeps the probes of a fleet, and of several gateways, apart.
        return interval_s * (1 + _JITTER * (2 * self._random() - 1))

    def _note_cuts(self) -> None:
        losses = sum(channel.losses for channel in self._upstream.pool.channels)
        self._was_cut = self._was_cut or losses != self._losses
        self._losses = losses

    async def _pass(self) -> None:
        self._note_cuts()
        channel = self._upstream.pool.next_for_probe()
        asked_s = self._clock()
        try:
            await self._identify(channel)
            ready = await self._read_statistics(channel)
            await self._describe(ready)
        except Fault as fault:
            self._failed(channel, fault)
            return
        channel.silent = self._silent = 0
        now_s = self._clock()
        self.assignment.book.keep_only(self._name, ready)
        self._tell_waits()
        self.assignment.table.observe_ready(self._name, ready, asked_s=asked_s, now_s=now_s)
        if now_s >= self._exiting_until_s:
            self._note_up(now_s)

    async def _identify(self, channel: Channel) -> None:
        """Ask who the server is: after every failure, and on each connection if that matters."""
        if self._expect is None:
            if not self._identified:
                await self._ask_identity(channel)
            return
        for each in self._upstream.pool.able_to_connect():
            if not each.confirmed:
                await self._ask_identity(each)
                each.confirmed = True

    async def _ask_identity(self, channel: Channel) -> None:
        said = await call_method(
            self._upstream,
            "ServerMetadata",
            pb.ServerMetadataRequest(),
            pb.ServerMetadataResponse,
            timeout_s=self.assignment.settings.statistics_timeout_s,
            channel=channel,
        )
        if self._expect is not None and said.name != self._expect:
            raise Fault.unsupported(
                f"another server answers here: its id is '{said.name}', expected '{self._expect}'"
            )
        self._upstream.learn_version(said.version)
        self._server_id = said.name
        self.assignment.book.learn_extensions(self._name, said.extensions)
        self._identified = True

    async def _read_statistics(self, channel: Channel) -> frozenset[ModelVersion]:
        reply = await call_method(
            self._upstream,
            "ModelStatistics",
            pb.ModelStatisticsRequest(),
            pb.ModelStatisticsResponse,
            timeout_s=self.assignment.settings.statistics_timeout_s,
            channel=channel,
        )
        rows = {
            ModelVersion(row.name, int(row.version)): row
            for row in reply.model_stats
            if row.version.isdecimal()
        }
        if self.assignment.executed is not None:
            self.assignment.executed({key: _executed(row) for key, row in rows.items()})
        counts = {key: row.inference_count for key, row in rows.items()}
        if self.assignment.on_waits is not None:
            self._waits.read(reply.model_stats)
        # Counts that went back mean a reload: the version may look different now.
        self._reloaded = [key for key, count in counts.items() if count < self._counts.get(key, 0)]
        self._counts = counts
        if self._reloaded:
            self._has_ended()
        return frozenset(counts)

    def _tell_waits(self) -> None:
        if self.assignment.on_waits is not None:
            news = self._waits.news(partial(self.assignment.book.shape, self._name))
            if news:
                self.assignment.on_waits(news)

    async def _describe(self, ready: frozenset[ModelVersion]) -> None:
        changed, self._changed = self._changed, set()
        missing = self.assignment.table.missing_specs(self._name, ready)
        again = sorted(key for key in ready if key.model in changed)
        wanted = dict.fromkeys((*missing, *self._reloaded, *again))
        limit = asyncio.Semaphore(_DESCRIBE_AT_ONCE)
        try:
            await asyncio.gather(*(self._describe_one(key, limit) for key in wanted))
        except BaseException:
            self._changed |= changed
            raise

    async def _describe_one(self, key: ModelVersion, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                found = await describe(
                    self._upstream, key, timeout_s=self.assignment.settings.index_timeout_s
                )
            except Fault as fault:
                if fault.kind in (Kind.UNREACHABLE, Kind.BROKEN):
                    raise
                return  # unloaded meanwhile, or restricted: served without a known signature
        self.assignment.book.learn(self._name, key, found)
        self.assignment.table.learn_spec(self._name, found.spec, now_s=self._clock())

    async def _read_index(self) -> None:
        reply = await call_method(
            self._upstream,
            "RepositoryIndex",
            pb.RepositoryIndexRequest(),
            pb.RepositoryIndexResponse,
            timeout_s=self.assignment.settings.index_timeout_s,
        )
        rows: dict[ModelVersion, ModelRow] = {}
        unloaded = set()
        for entry in reply.models:
            if entry.version.isdecimal():
                state = State.__members__.get(entry.state, State.UNKNOWN)
                rows[ModelVersion(entry.name, int(entry.version))] = ModelRow(state, entry.reason)
            else:
                unloaded.add(entry.name)
        moving = (State.LOADING, State.UNLOADING)
        self._is_settled = not any(row.state in moving for row in rows.values())
        self.assignment.table.observe_index(self._name, rows, unloaded, now_s=self._clock())

    def _failed(self, channel: Channel, fault: Fault) -> None:
        if fault.kind is Kind.DEADLINE:
            self._silence(channel)
            return
        self._silent = 0
        if fault.kind in (Kind.UNREACHABLE, Kind.BROKEN):
            self._has_ended()
        self._note_down(explain(fault))

    def _silence(self, channel: Channel) -> None:
        channel.silent += 1
        if channel.silent >= _SILENT_CHANNEL_PROBES:
            self._replace((channel,))
        heard_s = self._clock() - self.assignment.last_reply_s()
        allowed = self.assignment.settings.silent_probes
        if self._indexing or heard_s <= allowed * self.assignment.settings.statistics_interval_s:
            return
        self._silent += 1
        if self._silent >= allowed or self._was_up is None:
            self._note_down("no answer to its probes within the timeout")
            self._replace(tuple(self._upstream.pool.channels))

    def _replace(self, channels: Sequence[Channel]) -> None:
        for channel in channels:
            self._upstream.give_up_detached(channel)
            self._upstream.pool.replace(channel)

    def _note_up(self, now_s: float) -> None:
        self.assignment.table.server_up(
            self._name,
            server_id=self._server_id,
            triton_version=self._upstream.triton_version,
            now_s=now_s,
        )
        if self._was_up is False:
            self.assignment.on_return()
        may_be_new = self._was_cut or self._was_up is not True
        self._was_cut = False
        if self._was_up is not True:
            self._was_up = True
            self._up_since_s = now_s
            self.assignment.announce.up(
                server=self._name,
                triton_version=self._upstream.triton_version,
                cancel_safe=self._upstream.cancel_safe,
                models=len(self._counts),
            )
        if may_be_new:
            self.assignment.on_start()

    def _note_down(self, reason: str) -> None:
        self._identified = False
        self.assignment.table.server_down(self._name, reason, now_s=self._clock())
        for channel in self._upstream.pool.channels:
            if channel.state() != "ready":  # calls on a living connection still end by themselves
                self._upstream.give_up_detached(channel)
        if self._was_up is not False:
            self._was_up = False
            self.assignment.announce.down(server=self._name, reason=reason)


def _executed(row: pb.ModelStatistics) -> Executed:
    """Return what was executed of a version.

    The time is that of the batches: `inference_stats` counts a batch once for each request in it
    (seen on 2.51). Answers from the cache are counted as rows, since nobody knows whose they were.
    """
    compute_ns = sum(batch.compute_infer.ns for batch in row.batch_stats)
    rows = row.inference_count + row.inference_stats.cache_hit.count
    return Executed(rows, compute_ns // 1000)


def explain(fault: Fault) -> str:
    """Return why a probe failed, for operators: with what the gRPC library said."""
    if fault.detail and fault.detail != fault.message:
        return f"{fault.message} ({fault.detail})"
    return fault.message
