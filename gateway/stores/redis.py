"""The shared store in Redis: see `gateway.ports.SharedStore`.

One key an entry, a string with an expiry, under `RedisConnection.key`. GETEX needs Redis 6.2.
"""

from collections.abc import Sequence

from gateway.ports import Entry
from gateway.stores.redis_connection import RedisConnection, RedisScript

CLAIM = RedisScript(
    """\
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[3] then
  return held
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
)
FORGET = RedisScript(
    """\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
)
LOOK = RedisScript(
    """\
local found = {}
for index, key in ipairs(KEYS) do
  found[2 * index - 1] = redis.call('GET', key)
  found[2 * index] = redis.call('PTTL', key)
end
return found
"""
)


class RedisStore:
    """Keeps entries in the Redis of a connection. Values are never empty."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def claim(
        self, key: str, value: str, *, ttl_s: float, instead_of: str | None = None
    ) -> str:
        """Put a value where nothing, or a certain other value, is."""
        arguments = (value, _ms(ttl_s), instead_of or "")
        held = await self._connection.script(CLAIM, [self._connection.key(key)], arguments)
        return str(held)

    async def renew(self, key: str, *, ttl_s: float) -> str | None:
        """Return what is there and keep it for longer."""
        whole = self._connection.key(key)
        held = await self._connection.command("GETEX", whole, "PX", _ms(ttl_s))
        return None if held is None else str(held)

    async def forget(self, key: str, value: str) -> None:
        """Take a value away, if it is there."""
        await self._connection.script(FORGET, [self._connection.key(key)], [value])

    async def look(self, keys: Sequence[str]) -> list[Entry | None]:
        """Return what is at each key; what has no end is none of ours."""
        said = await self._connection.script(LOOK, [self._connection.key(key) for key in keys], [])
        pairs = zip(said[::2], said[1::2], strict=True)
        return [
            Entry(str(value), left_ms / 1000) if value is not None and left_ms > 0 else None
            for value, left_ms in pairs
        ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
