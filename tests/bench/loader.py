"""A load generator for machines without wrk: one POST over and over, on keep-alive connections.

A program of its own, standard library only, so that its time is nobody else's. Prints one JSON
object in the form wrk.lua prints. Costs several times as much processor time as wrk does, which on
few cores shows in everybody's figures. Unlike wrk it waits for the answers it is still owed.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

END_OF_HEAD = b"\r\n\r\n"
ANSWER_TIMEOUT_S = 10


class Tally:
    """What all connections have counted together."""

    def __init__(self, seconds: float) -> None:
        self.started = time.perf_counter()
        self.until = self.started + seconds
        self.latencies_s: list[float] = []
        self.errors = 0

    def report(self) -> dict[str, float]:
        elapsed_s = time.perf_counter() - self.started
        cuts = statistics.quantiles(self.latencies_s or [0.0, 0.0], n=100, method="inclusive")
        return {
            "requests": len(self.latencies_s),
            "duration_us": elapsed_s * 1e6,
            "p50_us": cuts[49] * 1e6,
            "p99_us": cuts[98] * 1e6,
            "errors": self.errors,
        }


class Connection(asyncio.Protocol):
    """Sends the request, waits for the whole answer, and again until the time is over."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._request = request
        self._tally = tally
        self._received = bytearray()
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        status = _status_if_complete(self._received)
        if status is None:
            return
        now = time.perf_counter()
        self._tally.latencies_s.append(now - self._sent_at)
        self._tally.errors += not 200 <= status < 300
        self._received.clear()
        if now < self._tally.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.errors += exc is not None or time.perf_counter() < self._tally.until
        self.done.set_result(None)

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


def _status_if_complete(received: bytearray) -> int | None:
    end = received.find(END_OF_HEAD)
    if end < 0:
        return None
    head = bytes(received[:end]).lower()
    _, found, after = head.partition(b"\r\ncontent-length:")
    if found:
        wanted = end + len(END_OF_HEAD) + int(after.split(b"\r\n")[0])
        complete = len(received) >= wanted
    else:
        complete = received.endswith(b"0\r\n\r\n")  # the last chunk
    return int(head.split()[1]) if complete else None


async def run(host: str, port: int, request: bytes, connections: int, seconds: float) -> Tally:
    """Keep `connections` busy for `seconds`; return what was counted."""
    loop = asyncio.get_running_loop()
    tally = Tally(seconds)
    opened = [
        await loop.create_connection(lambda: Connection(request, tally), host, port)
        for _ in range(connections)
    ]
    answered = [protocol.done for _, protocol in opened]
    _, unanswered = await asyncio.wait(answered, timeout=seconds + ANSWER_TIMEOUT_S)
    tally.errors += len(unanswered)
    return tally


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description="POST one file over and over.")
    parser.add_argument("address", help="host:port")
    parser.add_argument("path")
    parser.add_argument("body", type=Path)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--header", action="append", default=[])
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    body = options.body.read_bytes()
    lines = [f"POST {options.path} HTTP/1.1", f"Host: {options.address}", *options.header]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode()
    request = head + END_OF_HEAD + body
    tally = asyncio.run(run(host, int(port), request, options.connections, options.seconds))
    print(json.dumps(tally.report()))


if __name__ == "__main__":
    main()
