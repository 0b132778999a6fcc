"""Open-loop load: requests leave on the clock, however slow or wrong the answers are.

A closed loop would send less the worse the service is, and so hide what these tests are about.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tests.clients import infer

RATE_PER_S = 200.0
WINDOW_S = 1.0
EVEN_SHARE = 0.6
"""A server has its share again with this much of an equal one: four deviations in a window."""
ANSWER_TIMEOUT_S = 90.0
POLL_S = 0.05


@dataclass(frozen=True)
class Ask:
    """One kind of request, with a name to find its answers again."""

    kind: str
    data: bytes

    @classmethod
    def of(cls, model: str, *, kind: str = "", **tensor: Any) -> Self:
        """Ask a model with one input, given by name, datatype, shape and data."""
        body = json.dumps({"inputs": [tensor]}).encode()
        return cls(kind or model, infer(model, body, Connection="close"))


WHOAMI = Ask.of("whoami", name="IN", datatype="INT32", shape=[1], data=[0])
"""Answered with the id of the server, the version and the process."""


def sleep(ms: int) -> Ask:
    """Ask the `sleep` model for so many milliseconds."""
    return Ask.of("sleep", name="MS", datatype="INT32", shape=[1], data=[ms])


def echo(model: str = "echo") -> Ask:
    """Ask a model of the scripted Triton."""
    return Ask.of(model, name="IN", datatype="FP32", shape=[1], data=[1.5])


@dataclass
class Asked:
    """One request; times in seconds of the loop. Status 0 means no answer at all."""

    kind: str
    sent_s: float
    answered_s: float = float("inf")
    status: int = 0
    body: bytes = b""

    @property
    def failed(self) -> bool:
        return self.status != 200

    @property
    def who(self) -> tuple[str, int]:
        """The server and the version that answered; for `WHOAMI` only."""
        server, version, _ = json.loads(self.body)["outputs"][0]["data"]
        return server, int(version)

    def __repr__(self) -> str:
        return f"{self.kind} at {self.sent_s:.3f} s: {self.status} {self.body[:300]!r}"


class Load:
    """Sends the kinds of requests in turn, `rate_per_s` together, while its block runs."""

    def __init__(self, port: int, kinds: Sequence[Ask], *, rate_per_s: float = RATE_PER_S) -> None:
        self._port = port
        self._kinds = kinds
        self._rate_per_s = rate_per_s
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self.asked: list[Asked] = []

    async def __aenter__(self) -> Self:
        self._running = self._loop.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        assert self._running is not None
        await self._running

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def failures(self, *kinds: str) -> list[Asked]:
        """Return what was answered with anything but a result (of some kinds only)."""
        return [a for a in self.of(*kinds) if a.failed and a.answered_s < float("inf")]

    def of(self, *kinds: str, since_s: float = 0.0, until_s: float = float("inf")) -> list[Asked]:
        """Return the requests sent in a span of time (of some kinds only)."""
        return [
            a
            for a in self.asked
            if since_s <= a.sent_s < until_s and (not kinds or a.kind in kinds)
        ]

    def answered_by(self, since_s: float, until_s: float = float("inf")) -> Counter[str]:
        """Count the answers to `WHOAMI` in a span of time, by server."""
        answered = [a for a in self.of("whoami") if since_s <= a.answered_s < until_s]
        return Counter(a.who[0] for a in answered if not a.failed)

    def in_flight(self, since_s: float, until_s: float, *kinds: str) -> list[Asked]:
        """Return what was under way at any moment of a span of time."""
        return [a for a in self.of(*kinds, until_s=until_s) if a.answered_s > since_s]

    async def sent(self, count: int) -> None:
        """Wait until so many more requests were sent."""
        wanted = len(self.asked) + count
        await self.until(lambda: len(self.asked) >= wanted, within_s=60.0)

    async def until(self, condition: Callable[[], bool], *, within_s: float) -> float:
        """Wait until a condition holds; return how long it took."""
        begun_s = self.now_s
        while not condition():
            assert self.now_s - begun_s < within_s, f"not so after {within_s} s"
            await asyncio.sleep(POLL_S)
        return self.now_s - begun_s

    async def even(self, servers: Iterable[str], *, within_s: float = 10.0) -> float:
        """Wait until each server gets about an equal share of `WHOAMI`; return how long."""
        names = tuple(servers)
        begun_s = self.now_s
        counts: Counter[str] = Counter()

        def is_even() -> bool:
            nonlocal counts
            if self.now_s - begun_s < WINDOW_S:
                return False
            counts = self.answered_by(self.now_s - WINDOW_S)
            least = EVEN_SHARE * counts.total() / len(names)
            return counts.total() > 0 and all(counts[name] >= least for name in names)

        try:
            return await self.until(is_even, within_s=within_s + WINDOW_S)
        except AssertionError:
            raise AssertionError(f"uneven after {within_s} s: {dict(counts)}") from None

    async def _run(self) -> None:
        begun_s = self.now_s
        async with asyncio.TaskGroup() as group:
            number = 0
            while not self._stopping:
                await asyncio.sleep(begun_s + number / self._rate_per_s - self.now_s)
                group.create_task(self._ask(self._kinds[number % len(self._kinds)]))
                number += 1

    async def _ask(self, ask: Ask) -> None:
        asked = Asked(ask.kind, self.now_s)
        self.asked.append(asked)
        asked.status, asked.body = await exchange(self._port, ask.data)
        asked.answered_s = self.now_s


async def exchange(port: int, data: bytes) -> tuple[int, bytes]:
    """Send one request that asks to close the connection; return status and body."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body
