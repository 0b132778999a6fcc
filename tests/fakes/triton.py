"""A scripted Triton: a real grpc.aio server on a real port, in the event loop of the test.

It answers like tritonserver as far as a gateway can tell (texts and codes are Triton's own), echoes
inference requests, and can be told at any time to be slow, wrong, silent or gone. A `TcpProxy`
stands before it, because a gRPC server cannot cut its own connections.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.model import Failure, FakeModel, wire_type
from tests.fakes.proxy import HOST, TcpProxy

KEPT_METADATA = 1000


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The server. Method names in `silent`, `delays_s` and `errors` are those of the service."""

    def __init__(
        self,
        *models: FakeModel,
        server_id: str = "fake",
        version: str = "2.58.0",
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.models = {model.config.name: model for model in models}
        self.server_id = server_id
        self.version = version
        self.credentials = credentials
        """Speak TLS with these."""
        self.live = True
        self.ready = True
        self.silent: set[str] = set()
        """Calls that never answer."""
        self.delays_s: dict[str, float] = {}
        self.errors: dict[str, Failure] = {}
        self.calls: Counter[str] = Counter()
        self.peers: set[str] = set()
        """One entry for each connection that carried a call."""
        self.metadata: deque[dict[str, str | bytes]] = deque(maxlen=KEPT_METADATA)
        """What came with the last inference requests."""
        self.last_request: Any = None
        self.infer_started = 0
        self.infer_finished = 0
        """Answered, with a result or an error."""
        self.infer_cancelled = 0
        self.proxy = TcpProxy()
        self._moved = asyncio.Event()
        self._server: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """`host:port`, the same over restarts."""
        return f"{HOST}:{self.proxy.port}"

    async def start(self) -> None:
        """Serve on a free port, or again on the one it had."""
        unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("receive", "send")]
        self._server = grpc.aio.server(options=unlimited)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        if self.credentials is None:
            port = self._server.add_insecure_port(f"{HOST}:0")
        else:
            port = self._server.add_secure_port(f"{HOST}:0", self.credentials)
        await self._server.start()
        await self.proxy.start(port)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Shut down like a server that drains: GOAWAY, then wait for calls up to `grace_s`."""
        await self._server.stop(grace_s)
        await self.proxy.stop()

    async def kill(self) -> None:
        """Vanish: every connection is reset in the middle of whatever it carries."""
        await self.proxy.stop()
        await self._server.stop(None)

    async def restart(self) -> None:
        """Vanish and come back on the same port."""
        await self.kill()
        await self.start()

    async def close(self) -> None:
        """Vanish for good."""
        await self.kill()
        await self.proxy.close()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until a condition on the counters of this server holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def _enter(self, method: str, context: Any) -> None:
        self.calls[method] += 1
        self.peers.add(context.peer())
        self._moved.set()
        if method in self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(self.delays_s.get(method, 0))
        if method in self.errors:
            await context.abort(*self.errors[method])

    async def _find(self, name: str, context: Any) -> FakeModel:
        if name not in self.models:
            text = f"Request for unknown model: '{name}' is not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return self.models[name]

    async def _choose(self, name: str, version: str, context: Any) -> tuple[FakeModel, str]:
        model = await self._find(name, context)
        choice = model.choose(version)
        if not isinstance(choice, str):
            await context.abort(*choice)
        return model, str(choice)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        await self._enter("ServerLive", context)
        return service_pb2.ServerLiveResponse(live=self.live)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        await self._enter("ServerReady", context)
        return service_pb2.ServerReadyResponse(ready=self.ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        await self._enter("ServerMetadata", context)
        return service_pb2.ServerMetadataResponse(
            name=self.server_id, version=self.version, extensions=["model_repository", "statistics"]
        )

    async def ModelReady(self, request: Any, context: Any) -> Any:
        await self._enter("ModelReady", context)
        model = self.models.get(request.name)
        ready = model is not None and isinstance(model.choose(request.version), str)
        return service_pb2.ModelReadyResponse(ready=ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        await self._enter("ModelMetadata", context)
        model, _ = await self._choose(request.name, request.version, context)
        batch = [-1] if model.config.max_batch_size else []

        def tensors(specs: Any) -> list[Any]:
            kind = service_pb2.ModelMetadataResponse.TensorMetadata
            return [
                kind(name=s.name, datatype=wire_type(s.data_type), shape=[*batch, *s.dims])
                for s in specs
            ]

        return service_pb2.ModelMetadataResponse(
            name=request.name,
            versions=model.ready_versions(),
            platform=model.config.backend,
            inputs=tensors(model.config.input),
            outputs=tensors(model.config.output),
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        await self._enter("ModelConfig", context)
        model, _ = await self._choose(request.name, request.version, context)
        return service_pb2.ModelConfigResponse(config=model.config)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        await self._enter("ModelStatistics", context)
        models = [await self._find(request.name, context)] if request.name else self.models.values()
        return service_pb2.ModelStatisticsResponse(
            model_stats=[
                model.statistics(version)
                for model in models
                for version in model.ready_versions()
                if request.version in ("", version)
            ]
        )

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        await self._enter("RepositoryIndex", context)
        kind = service_pb2.RepositoryIndexResponse.ModelIndex
        rows = [
            kind(name=name, version=version, state=state, reason=model.reasons.get(version, ""))
            for name, model in self.models.items()
            for version, state in model.states.items()
            if state == "READY" or not request.ready
        ]
        return service_pb2.RepositoryIndexResponse(models=rows)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        await self._enter("RepositoryModelLoad", context)
        model = await self._find(request.model_name, context)
        model.states = dict.fromkeys(model.states or {"1": ""}, "READY")
        return service_pb2.RepositoryModelLoadResponse()

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.infer_started += 1
        self.last_request = request
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            reply = await self._infer(request, context)
        except asyncio.CancelledError:
            self.infer_cancelled += 1
            self._moved.set()
            raise
        except BaseException:  # the AbortError of an error that was asked for
            self._finish()
            raise
        self._finish()
        return reply

    def _finish(self) -> None:
        self.infer_finished += 1
        self._moved.set()

    async def _infer(self, request: Any, context: Any) -> Any:
        await self._enter("ModelInfer", context)
        model, version = await self._choose(request.model_name, request.model_version, context)
        await asyncio.sleep(model.delay_s)
        if model.gate is not None:
            await model.gate.wait()
        if model.drop:
            self.proxy.cut(int(context.peer().rpartition(":")[2]))
            await asyncio.Event().wait()  # until the server notices
        if model.error is not None:
            await context.abort(*model.error)
        model.executions[version] += 1
        reply = (model.reply or model.echo)(request)
        reply.model_name, reply.model_version, reply.id = request.model_name, version, request.id
        return reply
