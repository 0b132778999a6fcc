"""Server-sent events, read as a browser or any SSE library reads them, and requests for them.

Of the format (WHATWG HTML, "Interpreting an event stream"): a field ends at its first colon, one
blank behind that is dropped, an empty line ends an event, what is behind the last one is none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from tests.clients import request

CLIENT_TIMEOUT_S = 5.0


class Parser:
    """Makes events of the bytes it is fed."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[str]:
        """Take some bytes and return the data of the events they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            if line:
                name, _, value = line.decode().partition(":")
                assert name == "data", f"only data was announced, not {line!r}"
                self._data.append(value.removeprefix(" "))
            elif self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events


async def documents(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the document of each event as it comes; raises what the client raises."""
    parser = Parser()
    async for data in response.content.iter_any():
        for event in parser.feed(data):
            yield json.loads(event)


class Reader:
    """Reads a stream with aiohttp, and keeps what came and how it ended."""

    def __init__(self, url: str, body: dict[str, Any], **headers: str) -> None:
        self._url = url
        self._body = body
        self._headers = headers
        self.events: list[Any] = []
        self.error: Exception | None = None

    async def run(self) -> None:
        """Read until the end, whichever it is."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(self._url, json=self._body, headers=self._headers) as response,
            ):
                assert response.status == 200
                async for document in documents(response):
                    self.events.append(document)
        except aiohttp.ClientError as error:
            self.error = error


async def ask(url: str, body: dict[str, Any], **headers: str) -> tuple[int, list[Any]]:
    """Ask for a stream and return its status and its events (of an error, its document)."""
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url, json=body, headers=headers) as response,
    ):
        if response.content_type == "text/event-stream":
            return response.status, [document async for document in documents(response)]
        return response.status, [json.loads(await response.read())]


def stream_url(url: str, model: str = "stream", route: str = "generate_stream") -> str:
    """Return the address of a generate route."""
    return f"{url}/v2/models/{model}/{route}"


def stream_request(body: dict[str, Any], version: str = "HTTP/1.1", **headers: str) -> bytes:
    """Write a request to generate_stream of the `stream` model."""
    data = request("POST", stream_url(""), json.dumps(body).encode(), headers)
    return data.replace(b"HTTP/1.1", version.encode(), 1)


def indices(events: list[Any]) -> list[int]:
    """Return the numbers of the answers; fails for anything else."""
    return [event["INDEX"] for event in events]
