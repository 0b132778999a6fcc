"""Servers that are the endpoints of a Kubernetes service: list once, then watch.

A watch that ends or breaks goes on where it was; one whose place is too old (410 Gone) begins with
a new list. Needs the extra `kubernetes`, whose library is loaded at the first question. Called by
the runner.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import aiohttp

from gateway.discovery.endpoint_slices import EndpointSlices, Expired
from gateway.discovery.source import Answer, MakeServer, S_co, SourceFailed

_REQUEST_TIMEOUT_S = 10.0
_WATCH_S = 240
_WATCH_SLACK_S = 15.0
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Which service, how its port is called, and how the cluster is reached.

    Without `kubeconfig` the service account of the gateway's own pod is used. `pause_s` is waited
    before a watch that has ended is taken up again.
    """

    namespace: str
    service: str
    port: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    pause_s: float = 1.0


class KubernetesSource(Generic[S_co]):
    """Watches EndpointSlices; see `gateway.discovery.source.Source`."""

    def __init__(self, settings: KubernetesSettings, make: MakeServer[S_co]) -> None:
        self._settings = settings
        self._make = make
        self.retry_s = (settings.pause_s, 30 * settings.pause_s)
        self.fix = (
            "let the gateway's service account list and watch endpointslices (discovery.k8s.io) in"
            f" the namespace '{settings.namespace}', and check the name of the service"
        )

    async def answers(self) -> AsyncGenerator[Answer[S_co], None]:
        """Yield the endpoints, and again each time they change."""
        async with _client(self._settings) as api:
            while True:
                slices = EndpointSlices(self._settings.port)
                await self._list(api, slices)
                yield self._answer(slices)
                with contextlib.suppress(Expired):
                    async with contextlib.aclosing(self._changes(api, slices)) as changes:
                        async for _ in changes:
                            yield self._answer(slices)
                await asyncio.sleep(self._settings.pause_s)

    def _answer(self, slices: EndpointSlices) -> Answer[S_co]:
        servers = []
        leaving = set()
        for endpoint in slices.endpoints():
            server = self._make(endpoint.host, endpoint.port, endpoint.zone)
            servers.append(server)
            if endpoint.terminating:
                leaving.add(server.name)
        return Answer(servers, frozenset(leaving))

    async def _list(self, api: Any, slices: EndpointSlices) -> None:
        async with self._ask(api, timeout=_REQUEST_TIMEOUT_S) as reply:
            with _failures():
                slices.replace(json.loads(await reply.read()))

    async def _changes(self, api: Any, slices: EndpointSlices) -> AsyncGenerator[None, None]:
        """Watch for ever, from the version of `slices` on. Raises Expired."""
        while True:
            async with self._ask(
                api,
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=slices.version,
                timeout_seconds=_WATCH_S,
                timeout=(_REQUEST_TIMEOUT_S, _WATCH_S + _WATCH_SLACK_S),
            ) as reply:
                with contextlib.suppress(aiohttp.ClientError, OSError):  # cut: go on from there
                    async for line in _lines(reply):
                        with _failures():
                            changed = slices.apply(json.loads(line))
                        if changed:
                            yield
            await asyncio.sleep(self._settings.pause_s)

    @contextlib.asynccontextmanager
    async def _ask(
        self, api: Any, *, timeout: Any, **parameters: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for the slices of the service. Raises SourceFailed and Expired."""
        with _failures():
            reply: aiohttp.ClientResponse = await api.list_namespaced_endpoint_slice(
                self._settings.namespace,
                label_selector=f"kubernetes.io/service-name={self._settings.service}",
                _preload_content=False,
                _request_timeout=timeout,
                **parameters,
            )
            try:
                if reply.status == 410:
                    raise Expired
                if reply.status != 200:
                    raise SourceFailed(await _refusal(reply))
            except BaseException:
                reply.close()
                raise
        try:
            yield reply
        finally:
            reply.close()


@contextlib.asynccontextmanager
async def _client(settings: KubernetesSettings) -> AsyncIterator[Any]:
    from kubernetes_asyncio import client, config  # noqa: PLC0415 - optional, slow to load

    options = client.Configuration()
    try:
        if settings.kubeconfig is None:
            config.load_incluster_config(client_configuration=options)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(
                config_file=str(settings.kubeconfig),
                context=settings.context,
                client_configuration=options,
                persist_config=False,
            )
    except Exception as error:  # the library trusts the file, and trips over what is wrong in it
        said = str(error) or type(error).__name__
        raise SourceFailed(f"the way to the cluster is not known: {said}") from None
    async with client.ApiClient(options) as connection:
        yield client.DiscoveryV1Api(connection)


@contextlib.contextmanager
def _failures() -> Any:
    """Tell what goes wrong on the way to the cluster, or in what it says, as SourceFailed."""
    try:
        yield
    except TimeoutError:
        raise SourceFailed("the API server does not answer in time") from None
    except (aiohttp.ClientError, OSError) as error:
        raise SourceFailed(f"the API server cannot be reached: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceFailed(f"the API server's answer is not understood: {error!r}") from None


async def _refusal(reply: aiohttp.ClientResponse) -> str:
    text = await reply.text(errors="replace")
    try:
        said = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        said = text
    return f"the API server answers {reply.status}: {str(said)[:_SHOWN_CHARACTERS]}"


async def _lines(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a body, however long they are; one without its end is left out."""
    parts = b""
    async for chunk in reply.content.iter_any():
        *whole, parts = (parts + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
