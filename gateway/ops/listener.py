"""The ops listener: /healthz and /readyz for probes, the rest for operators.

Reading: /metrics, /metrics/fleet (the servers' own metrics, merged), /fleet, /servers/NAME,
/explain, /limits/TENANT, /usage, /config/plan, /operations/ID, /workers. Steering, by POST:
/servers/NAME/cordon and /uncordon, /models/NAME/block and /unblock, /breakers/reset,
/limits/TENANT/reset, /features/FEATURE/disable (`?duration=30m&reason=...`) and /enable,
/config/reload, /restart. Changing servers, by POST: /models/NAME/load and
/unload, with bodies as in Triton's API and `?server=`, once or more; they are answered when they
have begun. Who asked is taken from the header X-Actor. With a key set, everything but the two
health routes needs `Authorization: Bearer <key>`. Refusals are JSON: `error` for people, `code` for
programs.
"""

import asyncio
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.codec.control_request import parse_load, parse_unload
from gateway.control import ModelDesk
from gateway.faults import Fault
from gateway.names import UnknownName
from gateway.operations import Order
from gateway.ops.exposition import TEXT_FORMAT, fleet_page
from gateway.ops.fleet_view import fleet_view, server_view
from gateway.ports import ConfigDesk, ConfigRefused, CurrentView, Host, Membership, StoreDown
from gateway.steering import MAX_VERSION, SteeringDesk
from gateway.switches import check_reason, parse_duration
from gateway.usage.accountant import Accountant
from routing.steering import Block

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_MAX_ACTOR_LENGTH = 100
_MAX_BODY_BYTES = 256 * 1024 * 1024  # a load may carry the files of a model
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OpsListener:
    """Serves the operators' routes on a bound socket. `usage` is None where it is not counted."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        host: Host,
        view: CurrentView,
        membership: Membership,
        desk: SteeringDesk,
        config: ConfigDesk,
        models: ModelDesk,
        usage: Accountant | None,
        not_ready_reason: Callable[[], str | None],
        key: Callable[[], str | None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = sock
        self._host = host
        self._view = view
        self._membership = membership
        self._desk = desk
        self._config = config
        self._models = models
        self._usage = usage
        self._not_ready_reason = not_ready_reason
        self._key = key
        self._tls = tls
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begin to answer."""
        app = web.Application(
            middlewares=[self._authenticate, _refusals], client_max_size=_MAX_BODY_BYTES
        )
        app.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/metrics/fleet", self._fleet_metrics),
                web.get("/fleet", self._fleet_view),
                web.get("/servers/{server}", self._server),
                web.get("/explain", self._explain),
                web.get("/workers", self._workers),
                web.post("/restart", self._restart),
                web.post("/servers/{server}/cordon", self._cordon),
                web.post("/servers/{server}/uncordon", self._uncordon),
                web.post("/models/{model}/block", self._block),
                web.post("/models/{model}/unblock", self._unblock),
                web.post("/breakers/reset", self._reset_breakers),
                web.post("/features/{feature}/disable", self._disable),
                web.post("/features/{feature}/enable", self._enable),
                web.get("/limits/{tenant}", self._limits),
                web.post("/limits/{tenant}/reset", self._reset_limits),
                web.get("/usage", self._usage_view),
                web.get("/config/plan", self._plan),
                web.post("/config/reload", self._reload),
                web.post("/models/{model}/load", self._load),
                web.post("/models/{model}/unload", self._unload),
                web.get("/operations/{operation}", self._operation),
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
        key = self._key()
        if key is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, b"Bearer " + key.encode()):
                needed = "this needs the header 'Authorization: Bearer <ops key>'"
                return _refusal(needed, "unauthenticated", status=401)
        if request.method == "POST" and _is_from_another_site(request):
            return _refusal("commands are not taken from web pages", "cross_site", status=403)
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
            body=await self._host.metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _fleet_metrics(self, _: web.Request) -> web.Response:
        pages = await self._view().pages.pages()
        text = await asyncio.to_thread(fleet_page, pages)
        return web.Response(body=text.encode(), headers={"Content-Type": TEXT_FORMAT})

    async def _fleet_view(self, _: web.Request) -> web.Response:
        await self._host.refresh()
        return _json(
            {
                "not_ready_reason": self._not_ready_reason(),
                **fleet_view(self._view(), self._membership),
                "steering": self._desk.view(),
                "config": self._config.view(),
                "model_control": await self._models.view(),
                "workers": self._host.workers()["workers"],
            }
        )

    async def _server(self, request: web.Request) -> web.Response:
        name = request.match_info["server"]
        await self._host.refresh()
        view = self._view()
        servers = view.fleet.snapshot.servers
        if name not in servers:
            raise UnknownName.among("server", name, servers)
        return _json(server_view(servers[name], view, self._membership))

    async def _explain(self, request: web.Request) -> web.Response:
        request_id = request.query.get("request_id")
        if request_id is not None:
            return _json(await self._host.explain_request(request_id))
        model = request.query.get("model")
        if not model:
            raise ValueError("name a model or a request_id")
        return _json(
            await self._host.explain_model(model, _version(request), request.query.get("tenant"))
        )

    async def _workers(self, _: web.Request) -> web.Response:
        await self._host.refresh()
        return _json(self._host.workers())

    async def _restart(self, _: web.Request) -> web.Response:
        self._host.restart()
        return _json({"started": True, "warnings": []})

    async def _cordon(self, request: web.Request) -> web.Response:
        return _json(await self._desk.cordon(request.match_info["server"], by=_actor(request)))

    async def _uncordon(self, request: web.Request) -> web.Response:
        return _json(await self._desk.uncordon(request.match_info["server"], by=_actor(request)))

    async def _block(self, request: web.Request) -> web.Response:
        return _json(await self._desk.block(_block(request), by=_actor(request)))

    async def _unblock(self, request: web.Request) -> web.Response:
        return _json(await self._desk.unblock(_block(request), by=_actor(request)))

    async def _reset_breakers(self, request: web.Request) -> web.Response:
        query = request.query
        await self._host.refresh()
        done = await self._desk.reset_breakers(
            query.get("server"), query.get("model"), _version(request), by=_actor(request)
        )
        return _json(done)

    async def _disable(self, request: web.Request) -> web.Response:
        query = request.query
        if "duration" not in query:
            raise ValueError("say for how long, as in ?duration=30m; at most 24h")
        for_s, reason = parse_duration(query["duration"]), check_reason(query.get("reason", ""))
        feature = request.match_info["feature"]
        return _json(await self._desk.disable(feature, for_s, reason, by=_actor(request)))

    async def _enable(self, request: web.Request) -> web.Response:
        return _json(await self._desk.enable(request.match_info["feature"], by=_actor(request)))

    async def _limits(self, request: web.Request) -> web.Response:
        return _json(await self._view().limits.show(request.match_info["tenant"]))

    async def _reset_limits(self, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        return _json(await self._view().limits.reset(tenant, by=_actor(request)))

    async def _usage_view(self, request: web.Request) -> web.Response:
        if self._usage is None:
            raise ValueError("usage is not counted here: `usage.enabled` is false")
        await self._host.refresh()
        query = request.query
        return _json(await self._usage.view(query.get("month"), query.get("tenant")))

    async def _plan(self, _: web.Request) -> web.Response:
        return _json(await self._config.plan())

    async def _reload(self, request: web.Request) -> web.Response:
        return _json(await self._config.reload(by=_actor(request)))

    async def _load(self, request: web.Request) -> web.Response:
        given = parse_load(await request.read())
        model, servers = request.match_info["model"], _servers(request)
        order = Order("load", model, servers, config=given.config, files=given.files)
        return _json(await self._models.start(order, by=_actor(request)))

    async def _unload(self, request: web.Request) -> web.Response:
        model, servers = request.match_info["model"], _servers(request)
        with_dependents = parse_unload(await request.read())
        order = Order("unload", model, servers, with_dependents=with_dependents)
        return _json(await self._models.start(order, by=_actor(request)))

    async def _operation(self, request: web.Request) -> web.Response:
        return _json(await self._models.operation(request.match_info["operation"]))


@web.middleware
async def _refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except UnknownName as error:
        return _refusal(str(error), "unknown_name", status=404)
    except ConfigRefused as error:
        return _refusal(str(error), "refused", status=422, problems=error.problems)
    except StoreDown as error:
        return _refusal(f"the shared store is down: {error}", "store_down", status=503)
    except (ValueError, Fault) as error:
        return _refusal(str(error), "invalid", status=400)


def _is_from_another_site(request: web.Request) -> bool:
    """Whether a web page of somebody else makes an operator's browser send this (CSRF)."""
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.host


def _block(request: web.Request) -> Block:
    return Block(request.match_info["model"], _version(request), request.query.get("server"))


def _servers(request: web.Request) -> tuple[str, ...]:
    return tuple(request.query.getall("server", []))


def _version(request: web.Request) -> int | None:
    text = request.query.get("version")
    if text is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_VERSION))
    if not (is_number and 1 <= int(text) <= MAX_VERSION):
        raise ValueError(f"version '{text[:20]}' is not a version number")
    return int(text)


def _actor(request: web.Request) -> str:
    where = request.remote or "unknown"
    named = request.headers.get("X-Actor", "")[:_MAX_ACTOR_LENGTH]
    return f"{named} from {where}" if named and named.isprintable() else where


def _refusal(error: str, code: str, *, status: int, **more: object) -> web.Response:
    return _json({"error": error, "code": code, **more}, status=status)


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps(value, option=orjson.OPT_INDENT_2),
        headers={"Content-Type": "application/json"},
    )
