"""A TCP proxy that can freeze, delay, cut and refuse connections, to stand before any server.

Everything is done to the client's side: a cut connection is reset (RST), a frozen proxy accepts and
passes nothing on, a stopped one refuses while its port stays reserved.
"""

import asyncio
import contextlib
import socket
import ssl
import struct

HOST = "127.0.0.1"
CHUNK_BYTES = 65536
ACCEPT_STEPS = 3  # of the loop, until an accepted connection is handed over
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class TcpProxy:
    """Forwards `port` to a target; `accepted` counts the connections made so far."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        """Speak TLS with clients; the target never does."""
        self.port = 0
        self.accepted = 0
        self.delay_s = 0.0
        """How long every piece is held back before it is passed on, both ways."""
        self._target_port = 0
        self._listener: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None
        self._flowing = asyncio.Event()
        self._clients: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._clients)

    @property
    def connections(self) -> list[int]:
        """The local ports from which the open connections are passed on, for `cut`."""
        return list(self._clients)

    async def start(self, target_port: int) -> None:
        """Listen on a free port, or again on the one it had."""
        self._target_port = target_port
        self._flowing.set()
        self._leave_port()
        self._listener = await asyncio.start_server(self._accept, HOST, self.port, ssl=self.tls)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset every connection and refuse new ones, until `start`."""
        if self._listener is not None:
            await self._finish_accepting(self._listener)
            self._listener.close()
            self._listener = None
            self._keep_port()
        self.cut_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the sockets to be closed

    async def close(self) -> None:
        """Stop and give the port back."""
        await self.stop()
        self._leave_port()

    def refuse(self) -> None:
        """Refuse new connections, and keep those that are open."""
        assert self._listener is not None
        self._listener.close()
        self._listener = None
        self._keep_port()

    def freeze(self) -> None:
        """Accept and read, but pass nothing on in either direction."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flowing.set()

    def cut(self, source_port: int) -> None:
        """Reset the client whose forwarded connection comes from this local port."""
        client = self._clients.pop(source_port, None)
        if client is not None:
            with contextlib.suppress(OSError):  # where the client has closed it already
                sock = client.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.transport.abort()

    def cut_all(self) -> None:
        """Reset every client; new ones are welcome."""
        for source_port in list(self._clients):
            self.cut(source_port)

    async def _finish_accepting(self, listener: asyncio.Server) -> None:
        # asyncio (3.11) forgets a connection whose listener closes while it is being accepted.
        asyncio.get_running_loop().remove_reader(listener.sockets[0].fileno())
        for _ in range(ACCEPT_STEPS):
            await asyncio.sleep(0)

    def _keep_port(self) -> None:
        self._placeholder = socket.socket()  # bound but not listening: connections are refused
        self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._placeholder.bind((HOST, self.port))

    def _leave_port(self) -> None:
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._forward(reader, client))
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # by `stop`, which does not wait for anything to be sent
                client.transport.abort()
            else:
                client.close()

        task.add_done_callback(ended)

    async def _forward(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, target = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            return
        source_port = target.get_extra_info("sockname")[1]
        self._clients[source_port] = client
        try:
            await asyncio.gather(self._pump(reader, target), self._pump(answers, client))
        finally:
            self._clients.pop(source_port, None)
            target.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
