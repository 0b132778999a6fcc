"""A short-lived connection to one server, for a few questions within a limited time.

Keeps account of the time left and of what the server restricts. Never used for inference; called by
`diagnose`, `survey` and `discover`.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from gateway.faults import Fault, Kind
from gateway.ports import Clock
from gateway.upstream.channels import ChannelOptions, ChannelPool
from gateway.upstream.control import call_method
from gateway.upstream.findings import Counters, Target
from gateway.upstream.transport import Upstream

Reply = TypeVar("Reply", bound=Message)

_MAX_REPLY_BYTES = 64 * 1024 * 1024
_KEEPALIVE_S = 300.0  # never reached
_SHORTEST_S = 0.001
_RESTRICTED = re.compile(r"expecting header '([0-9A-Za-z_.-]+)'")
_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


class Session:
    """One connection to `target`, and until when it may be asked."""

    def __init__(self, target: Target, pool: ChannelPool, clock: Clock, timeout_s: float) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self.restricted: dict[str, set[str]] = {}
        """Metadata name the server wants a key under -> the calls that want it."""
        self.clock = clock
        self._end_s = clock() + timeout_s
        self._known = Upstream(name=target.grpc, pool=pool, metadata=target.metadata)
        self._stranger = Upstream(name=target.grpc, pool=pool)

    def share_s(self, share: float) -> float:
        """Return this share of the whole time in seconds, or what is left of it."""
        return max(_SHORTEST_S, min(share * self.timeout_s, self._end_s - self.clock()))

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The metadata names the server wants a key under and gets none."""
        sent = {name for name, _ in self.target.metadata}
        return tuple(sorted(self.restricted.keys() - sent))

    async def call(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        *,
        share: float = 1.0,
        stranger: bool = False,
    ) -> Reply:
        """Make a call, as a stranger without the target's metadata. Raises Fault."""
        upstream = self._stranger if stranger else self._known
        try:
            return await call_method(
                upstream, method, request, reply_type, timeout_s=self.share_s(share)
            )
        except Fault as fault:
            header = restricted_header(fault)
            if header is not None and not stranger:
                self.restricted.setdefault(header, set()).add(method)
            raise

    async def ask(self, method: str, request: Message, reply_type: type[Reply]) -> Reply | None:
        """Make a call whose failure means no more than "not known"."""
        try:
            return await self.call(method, request, reply_type)
        except Fault:
            return None

    async def metadata(self, *, share: float = 1.0) -> pb.ServerMetadataResponse:
        """Ask the server who it is. Raises Fault."""
        request = pb.ServerMetadataRequest()
        return await self.call("ServerMetadata", request, pb.ServerMetadataResponse, share=share)

    async def counters(self) -> Counters:
        """Read the cumulative times of everything that is ready. Raises Fault."""
        reply = await self.call(
            "ModelStatistics", pb.ModelStatisticsRequest(), pb.ModelStatisticsResponse
        )
        return {
            (row.name, row.version): tuple(
                getattr(row.inference_stats, name).ns for name in _DURATIONS
            )
            for row in reply.model_stats
        }


def restricted_header(fault: Fault) -> str | None:
    """Return the metadata name that a restricted call wants its key under (lower case)."""
    header = _RESTRICTED.search(fault.detail or "")
    return header[1].lower() if fault.kind is Kind.FORBIDDEN and header else None


@asynccontextmanager
async def open_session(target: Target, *, clock: Clock, timeout_s: float) -> AsyncIterator[Session]:
    """Open a connection of its own to the target for the length of a block."""
    options = ChannelOptions(
        channels=1,
        connect_timeout_s=timeout_s,
        reconnect_backoff_min_s=timeout_s,
        reconnect_backoff_max_s=timeout_s,
        keepalive_interval_s=_KEEPALIVE_S,
        max_reply_bytes=_MAX_REPLY_BYTES,
        tls=target.tls,
    )
    pool = ChannelPool(target.grpc, options)
    try:
        yield Session(target, pool, clock, timeout_s)
    finally:
        await pool.close()
