"""The link between the supervisor and one worker: typed messages over an inherited socket.

Decides how messages are framed, and how one side calls a named service of the other. Refuses to
know what the messages mean: `on_message` and the services are given. Both ends are processes of
this gateway, so pickle is safe. Used by `supervisor` and `worker`.
"""

import asyncio
import contextlib
import itertools
import pickle
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tasks import spawn

_LENGTH_BYTES = 4
_MOST_WAITING_BYTES = 256 * 1024 * 1024

Service = Callable[..., Awaitable[Any]]
"""What the other side may call by name; its arguments and its result are pickled."""


class LinkClosed(ConnectionError):
    """The other process is gone, or was given up."""


class RemoteError(Exception):
    """A service failed with an error that cannot travel; the text says which."""


@dataclass(frozen=True, slots=True)
class _Ask:
    number: int
    service: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    result: Any
    error: Exception | None


def pack(message: object) -> bytes:
    """Return the message as it travels; one packed message may be sent over many links."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Link:
    """One end of a link. `on_message` gets what the other side tells, in order."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_message: Callable[[Any], None],
        services: Mapping[str, Service],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_message = on_message
        self._services = services
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        *,
        on_message: Callable[[Any], None],
        services: Mapping[str, Service],
    ) -> "Link":
        """Take over one end of a socket pair."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, on_message=on_message, services=services)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closed

    def tell(self, message: object) -> None:
        """Send a message; nothing happens if the other side is gone."""
        self.send(pack(message))

    def send(self, packed: bytes) -> None:
        """Send what `pack` returned. A side that takes nothing any more is given up."""
        if self._closed:
            return
        transport = self._writer.transport
        if transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            self.close()
            return
        transport.write(packed)

    async def ask(self, service: str, *arguments: object, timeout_s: float) -> Any:
        """Call a service of the other side and return its result.

        Raises TimeoutError, LinkClosed, and whatever the service raised (RemoteError if that cannot
        travel).
        """
        if self._closed:
            raise LinkClosed
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell(_Ask(number, service, arguments))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Take messages until the other side is gone."""
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                self._take(pickle.loads(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close this end; questions under way fail."""
        self._closed = True
        self._writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(LinkClosed())

    async def finish(self) -> None:
        """Close this end when everything that was sent has gone out."""
        self.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _take(self, message: object) -> None:
        match message:
            case _Ask():
                spawn(self._answer(message), name=f"link: {message.service}")
            case _Answer():
                self._answered(message)
            case _:
                self._on_message(message)

    def _answered(self, message: _Answer) -> None:
        answer = self._asked.get(message.number)
        if answer is None or answer.done():  # it came too late
            return
        if message.error is not None:
            answer.set_exception(message.error)
        else:
            answer.set_result(message.result)

    async def _answer(self, asked: _Ask) -> None:
        service = self._services.get(asked.service)
        try:
            if service is None:
                raise RemoteError(f"there is no service '{asked.service}'")
            result = await service(*asked.arguments)
        except Exception as error:
            self.tell(_Answer(asked.number, None, _travelling(error)))
        else:
            self.tell(_Answer(asked.number, result, None))


def _travelling(error: Exception) -> Exception:
    """Return an error that arrives at the other side as what it is, or the text of it."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) else RemoteError(f"{type(error).__name__}: {error}")
