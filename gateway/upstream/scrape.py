"""Fetches the metrics pages of the servers.

A page comes whole or not at all: half a page would be counters that went away. Whatever a server
does, the others' pages are there in time. Called by the ops listener through
`gateway.ports.MetricsPages`.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence

from gateway.ports import Clock, MetricsPage
from gateway.upstream.addresses import split_address
from gateway.upstream.plain_http import HttpAnswer, Silent, exchange, parsed

_PATH = "/metrics"


class MetricsScraper:
    """Scrapes each server at its metrics address; see `gateway.ports.MetricsPages`.

    `addresses` returns the current ones by server's name. Who asks while a round is under way
    shares it.
    """

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str]],
        *,
        timeout_s: float,
        max_page_bytes: int,
        clock: Clock,
    ) -> None:
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._max_page_bytes = max_page_bytes
        self._clock = clock
        self._round: asyncio.Future[list[MetricsPage]] | None = None

    async def pages(self) -> Sequence[MetricsPage]:
        """Return one page a server that has a metrics address."""
        under_way = self._round
        if under_way is None or under_way.done():
            targets = self._addresses().items()
            under_way = self._round = asyncio.gather(*(self._page(*target) for target in targets))
        return await asyncio.shield(under_way)

    async def _page(self, server: str, address: str) -> MetricsPage:
        began_s = self._clock()
        try:
            text, problem = await self._fetch(address), None
        except (OSError, Silent, _Unusable) as failure:
            text, problem = None, _told(failure)
        return MetricsPage(server, text, problem, self._clock() - began_s)

    async def _fetch(self, address: str) -> str:
        host, port = split_address(address)
        until = asyncio.get_running_loop().time() + self._timeout_s
        received = await exchange(host, port, _PATH, until=until, limit_bytes=self._max_page_bytes)
        if len(received.data) >= self._max_page_bytes:
            raise _Unusable(f"the page is larger than {self._max_page_bytes} bytes")
        if not received.ended:
            raise _Unusable(f"the page was not there after {self._timeout_s:g} s")
        answer = parsed(received.data)
        if answer.status != 200:
            raise _Unusable(f"answered with status {answer.status}, not with metrics")
        return _text(answer, self._unpacked(answer))

    def _unpacked(self, answer: HttpAnswer) -> bytes:
        if answer.encoding.lower() not in ("gzip", "x-gzip", "deflate"):
            return answer.body
        unpacker = zlib.decompressobj(wbits=47)  # either header
        try:
            page = unpacker.decompress(answer.body, self._max_page_bytes)
        except zlib.error:
            raise _Unusable("the page's compression is damaged") from None
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise _Unusable(f"the page is cut short or larger than {self._max_page_bytes} bytes")
        return page


class _Unusable(Exception):
    """An answer that is no metrics page."""


def _text(answer: HttpAnswer, page: bytes) -> str:
    text = page.decode(errors="replace")
    if answer.measured or text.endswith("\n"):
        return text
    # Ended by closing the connection, perhaps within the last line.
    return text.rpartition("\n")[0]


def _told(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return "no connection within the timeout"
    if isinstance(failure, Silent):
        return "connected, but no answer"
    if isinstance(failure, OSError):
        return failure.strerror or type(failure).__name__
    return str(failure)
