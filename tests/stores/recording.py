"""What gateways have written into Redis, as it was recorded: how it gets there and out again."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.redis_server import RedisServer

RECORDED = Path(__file__).parent / "recorded"
_ROOM_S = 20.0
"""How much later than recorded a time may be read: the machine may be busy."""


def recorded(version: int) -> list[dict[str, Any]]:
    """Return the entries of a version of the schema."""
    entries: list[dict[str, Any]] = json.loads((RECORDED / f"schema-{version}.json").read_text())
    return entries


def put(server: RedisServer, prefix: str, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write entries as the gateway that they were recorded from did."""
    now_us = _now_us(server)
    for entry in entries:
        key, left_ms = f"{prefix}{entry['key']}", round(entry["left_s"] * 1000)
        if "zset" in entry:
            for member, score in entry["zset"].items():
                server.ask("ZADD", key, now_us // 1000 + score["now_ms_plus"], member)
            server.ask("PEXPIRE", key, left_ms)
        else:
            server.ask("SET", key, _text(entry, now_us), "PX", left_ms)


def found(server: RedisServer, prefix: str) -> dict[str, Any]:
    """Return what is in Redis in the form of entries, by key, but for `about` and `left_s`."""
    now_us = _now_us(server)
    keys = server.ask("KEYS", f"{prefix}*")
    assert isinstance(keys, list)
    return {key.removeprefix(prefix): _found(server, key, now_us) for key in keys}


def comparable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as `found` would, if nothing has changed since."""
    return {name: entry[name] for name in ("string", "json", "zset") if name in entry}


def same(one: Any, other: Any) -> bool:
    """Whether entries are the same but for the time that has passed, and for random names."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() <= {"now_us_plus", "now_ms_plus"}:
            unit = 1e-6 if "now_us_plus" in one else 1e-3
            (expected,), (left,) = one.values(), other.values()
            return one.keys() == other.keys() and 0 <= (expected - left) * unit < _ROOM_S
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def _text(entry: Mapping[str, Any], now_us: int) -> str:
    if "json" in entry:
        return json.dumps(entry["json"])
    text = entry["string"]
    if isinstance(text, dict):
        return f"{now_us + text['now_us_plus']}{text.get('behind', '')}"
    return str(text)


def _found(server: RedisServer, key: str, now_us: int) -> dict[str, Any]:
    if server.ask("TYPE", key) == "zset":
        names = server.ask("ZRANGE", key, 0, -1)
        assert isinstance(names, list)
        ends_ms = {name: int(float(str(server.ask("ZSCORE", key, name)))) for name in names}
        return {
            "zset": {name: {"now_ms_plus": ms - now_us // 1000} for name, ms in ends_ms.items()}
        }
    text = str(server.ask("GET", key))
    if text.startswith("{"):
        return {"json": json.loads(text)}
    return {"string": {"now_us_plus": int(text) - now_us} if text.isdigit() else text}


def _now_us(server: RedisServer) -> int:
    said = server.ask("TIME")
    assert isinstance(said, (list, tuple))
    return int(said[0]) * 1_000_000 + int(said[1])


def left_s(server: RedisServer, key: str) -> float:
    """Return for how long a key stays."""
    said = server.ask("PTTL", key)
    assert isinstance(said, int)
    return said / 1000
