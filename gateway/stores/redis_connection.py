"""One Redis, however it is set up, such that it can never hold up a request for long.

Decides how long is waited, when Redis counts as down, and what its keys look like; every store
kept in Redis asks through it. A command runs to its end even if its caller is gone: a connection
with an unread answer would give it to the next command. Whoever waits does so for `timeout_s` at
the most, and not at all while the breaker is open: whether Redis is back is found out by a check a
second, never by requests. Refuses to know what is stored.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Protocol

from gateway.ports import Clock, StoreDown
from gateway.tasks import spawn, stop
from routing.health.breaker import Breaker, BreakerSettings, Circuit

SCHEMA_VERSION = 1
"""Part of every key: gateways that keep something in another form do not meet there.

It stays as it is while older gateways can read what newer ones write: more fields of a JSON object,
more behind the NUL of a pin or behind the number of a rate, other texts as holders of places.
"""

CHECK_INTERVAL_S = 1.0
_BREAKER = BreakerSettings(
    consecutive_failures=3,
    min_requests=2**63,  # only failures in a row count
    open_min_s=0.0,  # every check is a trial
    open_max_s=0.0,
    close_after=1,
)
_FIRST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class RedisLimits:
    """How long requests wait for Redis, and how many commands run at a time."""

    timeout_s: float
    max_connections: int


@dataclass(frozen=True, slots=True)
class RedisScript:
    """A Lua script: atomic, and loaded by itself where Redis does not have it yet."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        """Work out the name Redis knows it by."""
        digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


class RedisClient(Protocol):
    """A connection pool to Redis; text comes back as str."""

    async def execute(self, *words: str | int) -> Any:
        """Send one command and wait for its answer. Raises RedisError."""

    async def run(self, script: RedisScript, *words: str | int) -> Any:
        """Run a script with what follows its text in EVAL. Raises RedisError."""

    async def close(self) -> None:
        """Close the connections."""


@dataclass(slots=True)
class _Asked:
    """One command under way, judged once: by its end, or by the one who waited too long."""

    judged: bool = False


class RedisConnection:
    """Sends commands and scripts; see `gateway.ports.StoreState` for what operators see.

    `told_up` and `told_down` are called with an event and its fields when that changes. Keys start
    with `{namespace}`, the hash tag that keeps them together in a cluster.
    """

    kind = "redis"

    def __init__(
        self,
        client: RedisClient,
        *,
        limits: RedisLimits,
        namespace: str,
        clock: Clock,
        told_up: Callable[..., Any],
        told_down: Callable[..., Any],
    ) -> None:
        self.failures = 0
        self._client = client
        self._limits = limits
        self._prefix = f"{{{namespace}}}:{SCHEMA_VERSION}:"
        self._clock = clock
        self._told_up = told_up
        self._told_down = told_down
        self._places = asyncio.Semaphore(limits.max_connections)
        self._breaker = Breaker(_BREAKER, lambda: 1.0)
        self._reason: str | None = "it has not answered yet"
        self._running: set[asyncio.Task[Any]] = set()
        self._checking: asyncio.Task[None] | None = None

    def down_reason(self) -> str | None:
        """Return what the last command failed with while the breaker is open, None if it is not."""
        return self._reason

    def key(self, name: str) -> str:
        """Return the whole key of `name`."""
        return self._prefix + name

    async def start(self) -> None:
        """Begin to ask Redis every second whether it is there."""
        self._checking = spawn(self._check(), name="watch over Redis")

    async def close(self) -> None:
        """Let go of everything."""
        if self._checking is not None:
            await stop(self._checking)
        await stop(*self._running)
        await self._client.close()

    async def command(self, *words: str | int, wait_s: float | None = None) -> Any:
        """Send one command and return its answer. Raises StoreDown.

        `wait_s` is for what no request waits for.
        """
        return await self._ask(lambda: self._client.execute(*words), wait_s)

    async def script(
        self,
        script: RedisScript,
        keys: Sequence[str],
        arguments: Sequence[str | int],
        *,
        wait_s: float | None = None,
    ) -> Any:
        """Run a script on `keys`, made by `key`, and return its answer. Raises StoreDown."""

        words = (len(keys), *keys, *arguments)
        return await self._ask(lambda: self._client.run(script, *words), wait_s)

    async def _ask(
        self, run: Callable[[], Awaitable[Any]], wait_s: float | None = None, *, trial: bool = False
    ) -> Any:
        self._admit(trial=trial)
        wait_s = self._limits.timeout_s if wait_s is None else wait_s
        asked = _Asked()
        task = spawn(self._run(run, asked), name="command to Redis")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Unlike a timeout, `wait` leaves the command alone, whatever becomes of its caller.
        await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            reason = f"no answer within {wait_s * 1000:g} ms"
            self._failed(asked, reason)
            raise StoreDown(reason)
        answer, failed = task.result()
        if failed is not None:
            raise StoreDown(failed)
        return answer

    def _admit(self, *, trial: bool) -> None:
        if self._breaker.circuit is Circuit.CLOSED:
            return
        if not (trial and self._breaker.probe_due(self._clock())):
            raise StoreDown(self._reason)
        self._breaker.begin_probe()

    async def _run(
        self, run: Callable[[], Awaitable[Any]], asked: _Asked
    ) -> tuple[Any, str | None]:
        try:
            async with self._places:
                answer = await run()
        except Exception as error:  # redis-py's errors have no common base
            reason = f"{type(error).__name__}: {error}"
            self._failed(asked, reason)
            return None, reason
        self._answered(asked)
        return answer, None

    def _answered(self, asked: _Asked) -> None:
        if asked.judged:  # late: whoever waited for it has counted it as a failure
            return
        asked.judged = True
        self._breaker.success(self._clock())
        if self._breaker.circuit is Circuit.CLOSED and self._reason is not None:
            self._reason = None
            self._told_up("store up", store=self.kind)

    def _failed(self, asked: _Asked, reason: str) -> None:
        if asked.judged:
            return
        asked.judged = True
        self.failures += 1
        now_s = self._clock()
        if self._breaker.failure(now_s):
            self._breaker.open(now_s)
            self._told_down("store down", store=self.kind, reason=reason)
        if self._breaker.circuit is not Circuit.CLOSED:
            self._reason = reason

    async def _check(self) -> None:
        """Keep a connection open, and notice without any requests that Redis is down or back."""
        key, wait_s = self.key("check"), _FIRST_WAIT_S
        while True:
            with contextlib.suppress(StoreDown):
                await self._ask(lambda: self._client.execute("EXISTS", key), wait_s, trial=True)
            wait_s = self._limits.timeout_s
            await asyncio.sleep(CHECK_INTERVAL_S)
