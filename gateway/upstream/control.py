"""The calls that are not inference: who a server is, what it holds and how it does.

Every one of them runs on a single thread of the server, shared with its health answers, so they
are made gently and never by a client's request alone (statistics excepted).
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from gateway.upstream.channels import Channel
from gateway.upstream.errors import to_fault
from gateway.upstream.http2.call import RpcError
from gateway.upstream.messages import M, parse
from gateway.upstream.proto_json import to_json_object
from gateway.upstream.transport import Upstream, not_confirmed, upstream_named


async def call_method(
    upstream: Upstream,
    method: str,
    request: Message,
    reply_type: type[M],
    *,
    timeout_s: float,
    channel: Channel | None = None,
) -> M:
    """Make one unary call that is not inference.

    Raises Fault; a server that does not answer within `timeout_s` is Kind.DEADLINE. (These calls
    take another path through the server than inference and may have a gRPC deadline on every
    version.)
    """
    channel = channel or upstream.pool.for_control()
    if channel is None:
        raise not_confirmed()
    ended = asyncio.Event()
    call = channel.call(
        method,
        [request.SerializeToString()],
        metadata=upstream.metadata,
        timeout_s=timeout_s,
        on_end=lambda _: ended.set(),
    )
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
    except TimeoutError:
        raise to_fault(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
    finally:
        call.cancel()
    try:
        reply = call.result()
    except RpcError as error:
        raise to_fault(error.code, error.details) from None
    return parse(reply_type, reply)


class StatisticsReader:
    """Reads statistics for the statistics routes; see `gateway.ports.StatisticsSource`."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self._upstreams = upstreams

    async def statistics(
        self, server: str, model: str, version: str, *, timeout_s: float
    ) -> list[dict[str, Any]]:
        """Return the rows of one server."""
        reply = await call_method(
            upstream_named(self._upstreams, server),
            "ModelStatistics",
            pb.ModelStatisticsRequest(name=model, version=version),
            pb.ModelStatisticsResponse,
            timeout_s=timeout_s,
        )
        return [to_json_object(row) for row in reply.model_stats]


class ModelCalls:
    """Loads and unloads models; see `gateway.ports.ModelControl`."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self._upstreams = upstreams

    async def load(
        self,
        server: str,
        model: str,
        *,
        config: str | None,
        files: Mapping[str, bytes],
        timeout_s: float,
    ) -> None:
        """Load or reload a model on one server; answered when it is ready there."""
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = config
        for name, content in files.items():
            request.parameters[name].bytes_param = content
        await call_method(
            upstream_named(self._upstreams, server),
            "RepositoryModelLoad",
            request,
            pb.RepositoryModelLoadResponse,
            timeout_s=timeout_s,
        )

    async def unload(
        self, server: str, model: str, *, with_dependents: bool, timeout_s: float
    ) -> None:
        """Begin to unload a model on one server."""
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = with_dependents
        await call_method(
            upstream_named(self._upstreams, server),
            "RepositoryModelUnload",
            request,
            pb.RepositoryModelUnloadResponse,
            timeout_s=timeout_s,
        )
