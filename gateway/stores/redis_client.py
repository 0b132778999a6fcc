"""redis-py for a single Redis, one behind Sentinels, and a Cluster, all without its retries.

Refuses to know when Redis counts as down and what is asked of it: `gateway.stores.redis_connection`
does. redis-py alone would try each command again for seconds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from redis.asyncio import Redis, Sentinel
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError

from gateway.stores.redis_connection import RedisClient, RedisScript


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Where Redis is and how to log in. `service` and `sentinel_password` are for Sentinels."""

    kind: Literal["single", "sentinel", "cluster"]
    nodes: Sequence[tuple[str, int]]
    tls: bool = False
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class _Client:
    def __init__(self, *clients: Any) -> None:
        self._client = clients[0]
        self._all = clients

    async def execute(self, *words: str | int) -> Any:
        return await self._client.execute_command(*words)

    async def run(self, script: RedisScript, *words: str | int) -> Any:
        try:
            return await self.execute("EVALSHA", script.sha, *words)
        except NoScriptError:
            return await self.execute("EVAL", script.text, *words)

    async def close(self) -> None:
        for client in self._all:
            await client.aclose()


class _Cluster(_Client):
    """A cluster, asked one thing at a time until it has answered.

    redis-py looks for the nodes with the first command and after each failure, and takes the
    connections away from commands that begin meanwhile (8.1).
    """

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._known = False
        self._looking = asyncio.Lock()

    async def execute(self, *words: str | int) -> Any:
        if self._known:
            return await self._execute(*words)
        async with self._looking:
            return await self._execute(*words)

    async def _execute(self, *words: str | int) -> Any:
        try:
            answer = await super().execute(*words)
        except NoScriptError:
            raise
        except Exception:
            self._known = False
            raise
        self._known = True
        return answer


def make_client(target: RedisTarget, *, timeout_s: float, max_connections: int) -> RedisClient:
    """Build the client of a target; nothing is connected before the first command.

    A connection that is not made, or does not answer, within `timeout_s` is closed.
    """
    transport = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_keepalive": True,
        "decode_responses": True,
        "protocol": 2,
        **_tls(target),
    }
    options = {
        **transport,
        "username": target.username,
        "password": target.password,
        "max_connections": max_connections,
        "retry": _no_retry(),
    }
    host, port = target.nodes[0]
    match target.kind:
        case "single":
            return _Client(Redis(host=host, port=port, db=target.db, **options))
        case "cluster":
            nodes = [ClusterNode(*node) for node in target.nodes]
            return _Cluster(RedisCluster(startup_nodes=nodes, **options))
        case "sentinel":
            asking = {**transport, "password": target.sentinel_password, "retry": _no_retry()}
            sentinel = Sentinel(  # type: ignore[no-untyped-call]
                list(target.nodes), sentinel_kwargs=asking
            )
            master = sentinel.master_for(target.service, db=target.db, **options)
            return _Client(master, sentinel)


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _tls(target: RedisTarget) -> dict[str, Any]:
    if not target.tls:
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": target.ca_file,
        "ssl_certfile": target.cert_file,
        "ssl_keyfile": target.key_file,
    }
