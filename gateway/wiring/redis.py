"""The Redis that gateways share.

Imported only where one is configured: its client library takes 5 MB of each process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.stores import Redis as RedisConfig
from config.stores import RedisTls, split_redis_url
from gateway.stores.redis_client import RedisTarget, make_client
from gateway.stores.redis_connection import RedisConnection, RedisLimits
from gateway.wiring.clock import CLOCK, Environ


def redis_connection(
    settings: RedisConfig,
    environ: Environ,
    *,
    told_up: Callable[..., Any],
    told_down: Callable[..., Any],
) -> RedisConnection:
    """Build what asks Redis; nothing is connected yet. Raises ValueError for a missing secret."""
    return RedisConnection(
        make_client(
            _redis_target(settings, environ),
            timeout_s=settings.connect_timeout_s,
            max_connections=settings.max_connections,
        ),
        limits=RedisLimits(settings.timeout_s, settings.max_connections),
        namespace=settings.namespace,
        clock=CLOCK,
        told_up=told_up,
        told_down=told_down,
    )


def _redis_target(redis: RedisConfig, environ: Environ) -> RedisTarget:
    address = split_redis_url(redis.url)
    asking = redis.sentinel_password
    tls = redis.tls or RedisTls()
    return RedisTarget(
        kind=address.kind,
        nodes=address.nodes,
        tls=address.tls,
        service=address.service,
        db=address.db,
        username=redis.username,
        password=redis.password.reveal(environ) if redis.password else None,
        sentinel_password=asking.reveal(environ) if asking else None,
        ca_file=_name(tls.ca_file),
        cert_file=_name(tls.cert_file),
        key_file=_name(tls.key_file),
    )


def _name(path: Path | None) -> str | None:
    return str(path) if path else None
