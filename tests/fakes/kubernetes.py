"""A scripted Kubernetes API server: the EndpointSlices of one namespace, to list and to watch."""

import asyncio
import json
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

HOST = "127.0.0.1"
PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    """Return an endpoint as it stands in a slice."""
    return {"addresses": [address], "conditions": {"ready": True, **conditions}, "zone": "z1"}


def endpoint_slice(
    name: str,
    *endpoints: dict[str, Any],
    service: str = "triton",
    family: str = "IPv4",
    ports: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Return an EndpointSlice; one without endpoints has null, as the API gives it."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints) or None,
        "ports": [
            {"name": name, "port": port, "protocol": "TCP"}
            for name, port in (ports or {"grpc": 8001}).items()
        ],
    }


class FakeKubernetes:
    """The server. `expired` makes the next watches answer 410, `refusal` every request that."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.expired = 0
        self.expired_in_stream = 0
        self.refusal: tuple[int, str] | None = None
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self._watches: list[asyncio.Queue[bytes | None]] = []
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        assert self._runner is not None
        await self._runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        """Write the file that leads to this server."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{HOST}:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": "let-me-in"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    @property
    def watched(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    @property
    def lists(self) -> int:
        """How many lists were asked for."""
        return sum("watch" not in request for request in self.requests)

    def put(self, item: dict[str, Any]) -> None:
        """Add or change a slice."""
        name = item["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = self._versioned(item)
        self.send({"type": kind, "object": self.slices[name]})

    def delete(self, name: str) -> None:
        """Remove a slice."""
        self.send({"type": "DELETED", "object": self._versioned(self.slices.pop(name))})

    def bookmark(self) -> None:
        """Tell the watchers how far they are."""
        self.version += 10
        item = {"metadata": {"resourceVersion": str(self.version)}}
        self.send({"type": "BOOKMARK", "object": item})

    def send(self, event: dict[str, Any] | bytes) -> None:
        """Send an event, or any bytes, to all watchers."""
        line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        for watch in self._watches:
            watch.put_nowait(line)

    def cut(self) -> None:
        """Break the connections of all watchers."""
        for watch in self._watches:
            watch.put_nowait(None)

    def _versioned(self, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        return {**item, "metadata": metadata}

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.refusal is not None:
            status, message = self.refusal
            return web.json_response({"kind": "Status", "message": message}, status=status)
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request)
        wanted = request.query["labelSelector"].removeprefix("kubernetes.io/service-name=")
        items = [
            item
            for item in self.slices.values()
            if item["metadata"]["labels"]["kubernetes.io/service-name"] == wanted
        ]
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"metadata": metadata, "items": items or None})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.expired:
            self.expired -= 1
            return web.json_response({"message": "too old resource version"}, status=410)
        answer = web.StreamResponse()
        answer.content_type = "application/json"
        await answer.prepare(request)
        if self.expired_in_stream:
            self.expired_in_stream -= 1
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watches.append(lines)
        try:
            while (line := await lines.get()) is not None:
                await answer.write(line)
        finally:
            self._watches.remove(lines)
        assert request.transport is not None
        request.transport.abort()
        return answer
