"""Servers from a file that something else writes.

The file is looked at from time to time and taken over as a whole or not at all: while it is gone,
half-written or wrong, the source fails. Knows no format: wiring gives the function that reads one.
"""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Generic

from gateway.discovery.source import Answer, ReadServers, S_co, SourceFailed

MAX_BYTES = 1_048_576
_SHOWN_CHARACTERS = 500


class FileSource(Generic[S_co]):
    """Watches one file; see `gateway.discovery.source.Source`."""

    def __init__(self, path: Path, read: ReadServers[S_co], *, interval_s: float) -> None:
        self._path = path
        self._read = read
        self._interval_s = interval_s
        self.retry_s = (interval_s, interval_s)
        self.fix = f"write a good file to '{path}', in one step: write another one and rename it"

    async def answers(self) -> AsyncGenerator[Answer[S_co], None]:
        """Yield what is in the file, and again when that has changed."""
        before: bytes | None = None
        while True:
            # Comparing contents needs no trust in clocks and file systems, and costs little.
            data = await asyncio.to_thread(self._content)
            if data != before:
                yield Answer(await asyncio.to_thread(self._servers, data))
                before = data
            await asyncio.sleep(self._interval_s)

    def _content(self) -> bytes:
        try:
            with self._path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            raise SourceFailed(
                f"'{self._path}' cannot be read: {error.strerror or error}"
            ) from None
        if len(data) > MAX_BYTES:
            raise SourceFailed(f"'{self._path}' is larger than {MAX_BYTES} bytes")
        return data

    def _servers(self, data: bytes) -> "tuple[S_co, ...]":
        try:
            return tuple(self._read(data))
        except ValueError as error:
            raise SourceFailed(str(error)[:_SHOWN_CHARACTERS]) from None
