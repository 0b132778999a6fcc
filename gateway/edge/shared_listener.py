"""Accepting connections on sockets that the supervisor owns and several workers may accept on.

The supervisor keeps the sockets open, so a worker can stop accepting without a connection being
lost: what waits on the socket is taken by the worker that follows. Built by wiring.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence, Set
from typing import cast

from gateway.edge.api import Api
from gateway.edge.listener import HttpLimits, Listener, Protocol
from gateway.tasks import spawn

_AT_ONCE = 64
_PAUSE_S = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = logging.getLogger(__name__)


class SharedListener(Listener):
    """A listener on number `slot` of the host's `sockets`, and on others when it is told to."""

    def __init__(
        self,
        current: Callable[[], Api],
        sockets: Sequence[socket.socket],
        slot: int,
        *,
        cut_off: Callable[[], None],
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(current, sockets[slot], cut_off=cut_off, limits=limits, tls=tls)
        self._sockets = sockets
        self._slot = slot
        self._wanted: frozenset[int] = frozenset()
        self._reading: set[int] = set()
        self._arriving = 0

    @property
    def connections(self) -> int:
        """How many connections are open, or about to be."""
        return self._arriving + (len(self._server.connections) if self._server else 0)

    async def start(self) -> None:
        """Begin to accept connections."""
        self._server = self._make_server()
        self.accept_for(frozenset())

    def accept_for(self, slots: Set[int]) -> None:
        """Accept on the own socket and on those of these slots, and on no others."""
        self._wanted = frozenset({self._slot, *slots})
        self._listen()

    def stop_accepting(self) -> None:
        """Take what is waiting, and then no more; open connections stay."""
        for slot in self._wanted:
            self._accept(slot)
        self._wanted = frozenset()
        self._listen()
        for sock in self._sockets:
            sock.close()

    def close_idle(self) -> None:
        """Close the connections on which no request is under way."""
        for connection in list(self._server.connections) if self._server else ():
            cast(Protocol, connection).close_if_idle()

    def _accept(self, slot: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._sockets[slot].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("no connection can be accepted now: %s", error)
                self._pause(slot)
                return
            connection.setblocking(False)
            self._arriving += 1
            spawn(self._serve(connection), name="a new connection")

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for slot in self._reading - self._wanted:
            loop.remove_reader(self._sockets[slot])
        for slot in self._wanted - self._reading:
            loop.add_reader(self._sockets[slot], self._accept, slot)
        self._reading = set(self._wanted)

    def _pause(self, slot: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sockets[slot])
        self._reading.discard(slot)
        loop.call_later(_PAUSE_S, self._listen)

    async def _serve(self, connection: socket.socket) -> None:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        # What goes wrong here (a TLS handshake, a client that has left) is the client's affair.
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await loop.connect_accepted_socket(self._server, connection, ssl=self._tls)
        finally:
            self._arriving -= 1
