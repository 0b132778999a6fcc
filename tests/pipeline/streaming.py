"""Streams that follow a script, in a world whose clock only the script moves."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.codec.generate import GenerateDecoder
from gateway.codec.types import InferCall, InferReply, OutputTensor
from gateway.faults import Fault
from gateway.pipeline import ReceivedInfer
from gateway.streams import Events, Streams
from routing.types import ModelSpec, TensorSpec
from tests.pipeline.scripted import Clock, World

DECOUPLED = ModelSpec(
    "m",
    1,
    inputs=(TensorSpec("IN", "INT32", (-1,)),),
    outputs=(TensorSpec("OUT", "INT32", (1,)),),
    decoupled=True,
)


BODY = b'{"IN": [1]}'


@dataclass(frozen=True)
class Ends:
    """The stream is ended by the server or the connection."""

    fault: Fault


@dataclass(frozen=True)
class Pause:
    """Time passes before the next event."""

    after_s: float


@dataclass(frozen=True)
class Hangs:
    """Nothing comes any more."""


Event = Hangs | int | Fault | InferReply | Ends | Pause
"""A number is an answer with that number, a fault the model's error."""

GARBLED = InferReply("m", "1", [OutputTensor("OUT", "INT32", (1,), b"?")])


class ScriptedStream:
    """One stream on one server; it ends when its script does."""

    def __init__(self, server: str, script: tuple[Event, ...], clock: Clock) -> None:
        self.server = server
        self.ended = False
        self.abandoned = False
        self.asked = 0
        self.waits_s: list[float] = []
        self._script = deque(script)
        self._clock = clock
        self._on_end: Callable[[], None] | None = None

    async def next(self, timeout_s: float) -> InferReply | Fault | None:
        await asyncio.sleep(0)
        self.asked += 1
        self.waits_s.append(timeout_s)
        while self._script:
            event = self._script.popleft()
            match event:
                case Pause(after_s) if after_s >= timeout_s:
                    self._clock.now_s += timeout_s
                    raise TimeoutError
                case Pause(after_s):
                    self._clock.now_s += after_s
                case Hangs():
                    await asyncio.Event().wait()
                case Ends(fault):
                    self.ended = True
                    raise fault
                case Fault() | InferReply():
                    return event
                case int():
                    raw = struct.pack("<i", event)
                    return InferReply("m", "1", [OutputTensor("OUT", "INT32", (1,), raw)])
        self.ended = True
        return None

    def abandon(self, on_end: Callable[[], None]) -> bool:
        self.abandoned = True
        self._on_end = on_end
        return False

    def end(self) -> None:
        """End an abandoned stream on the wire."""
        assert self._on_end is not None
        self._on_end()


class StreamWorld(World):
    """A world with a model that may answer any number of times."""

    def __init__(
        self, *scripts: tuple[Event, ...], spec: ModelSpec = DECOUPLED, **fields: Any
    ) -> None:
        super().__init__(spec=spec, runs_on=False, **fields)
        self.headers: dict[str, str] = {}
        self.opened: list[ScriptedStream] = []
        self._scripts = deque(scripts)
        self.transport.open_stream = self._open  # type: ignore[attr-defined]
        self.streams = Streams(self.pipeline, self.transport, GenerateDecoder())  # type: ignore[arg-type]

    def _open(self, server: str, call: InferCall) -> ScriptedStream:
        self.transport.infer_calls.append(call)
        stream = ScriptedStream(server, self._scripts.popleft(), self.clock)
        self.opened.append(stream)
        return stream

    @property
    def asked(self) -> list[str]:
        """The servers that were asked, in order."""
        return [stream.server for stream in self.opened]

    async def generate(self, *, body: bytes = BODY, **asked: Any) -> bytes:
        return await self.streams.generate(self.new_exchange(**asked), self._request(body))

    async def generate_stream(self, *, body: bytes = BODY, **asked: Any) -> Events:
        return await self.streams.generate_stream(self.new_exchange(**asked), self._request(body))

    def _request(self, body: bytes) -> ReceivedInfer:
        given = (("traceparent", "t"),)
        return ReceivedInfer("m", None, body, "", None, [], self.headers.get, given)


async def everything(events: Events) -> list[bytes | Fault]:
    """Read all events and let go."""
    try:
        found = []
        while (event := await events.next()) is not None:
            found.append(event)
        return found
    finally:
        events.close()
