"""The ops listener: /healthz and /readyz for probes, /metrics and /fleet for operators.

With a key set, everything but the two health routes needs `Authorization: Bearer <key>`.
"""

import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gateway.ops.fleet_view import fleet_view
from gateway.ports import Channels, Fleet
from routing.pool import Pool

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OpsListener:
    """Serves the operators' routes on a bound socket."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        registry: CollectorRegistry,
        fleet: Fleet,
        pool: Pool,
        channels: Channels,
        not_ready_reason: Callable[[], str | None],
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = sock
        self._registry = registry
        self._fleet = fleet
        self._pool = pool
        self._channels = channels
        self._not_ready_reason = not_ready_reason
        self._key = key
        self._tls = tls
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begin to answer."""
        app = web.Application(middlewares=[self._authenticate])
        app.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/fleet", self._fleet_view),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """Stop answering."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._key is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, b"Bearer " + self._key.encode()):
                return _json(
                    {"error": "this needs the header 'Authorization: Bearer <ops key>'"},
                    status=401,
                )
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _ready(self, _: web.Request) -> web.Response:
        reason = self._not_ready_reason()
        if reason is not None:
            return _json({"ready": False, "reason": reason}, status=503)
        return _json({"ready": True})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _fleet_view(self, _: web.Request) -> web.Response:
        return _json(fleet_view(self._fleet, self._pool, self._channels))


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps(value, option=orjson.OPT_INDENT_2),
        headers={"Content-Type": "application/json"},
    )
