"""What is kept in Redis has a version: gateways of several releases share one.

`recorded/schema-1.json` is what gateways of schema 1 have written. This and every later gateway
that writes schema 1 has to go on reading it, and to write what those read.
"""

import time
import uuid
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from gateway.limits.limiter import Limiter
from gateway.sequence_ids import pin_key
from gateway.stores.quotas import RedisQuotas
from gateway.stores.redis import RedisStore
from gateway.stores.redis_connection import SCHEMA_VERSION, RedisConnection
from gateway.switchboard import Switchboard
from gateway.switches import Feature, Switches
from routing.limits import Per
from routing.sequences import Pin
from tests.clients import infer, tensor
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.limits.building import at_a_time, rate, wanted
from tests.pipeline.scripted import Clock
from tests.redis_server import RedisServer
from tests.serving import serving, until
from tests.stores.conftest import connected
from tests.stores.recording import comparable, found, left_s, put, recorded, same
from tests.tenants import KEYS, bearer, hashed

SLOW = rate(1 / 30, 1, "slow")
EACH = rate(1 / 3600, 1, "each", per=Per.TENANT_MODEL)
SEATS = at_a_time(3, "seats")
PIN = Pin("counter", 2, "a", "0006447d2b0e4a80a1b2c3d4")
LOST = Pin("stateful", 1, "-", "0006447d2b0e4a80a1b2c3d5")
ME, OTHER = "5f0c6c0ea7e04a6d8c8a2d7f3b1e9a44", "0d5b9f8e1c7a4b3d9e2f6a8c4d1b7e55"
ENTRIES = recorded(SCHEMA_VERSION)


def newer(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as a newer gateway might write it: with more in it."""
    if "json" in entry:
        return {**entry, "json": {**entry["json"], "tenants": ["acme"], "form": 2}}
    if "zset" in entry:
        return {**entry, "zset": {f"{name};weight=2": end for name, end in entry["zset"].items()}}
    if isinstance(entry["string"], dict):
        return {**entry, "string": {**entry["string"], "behind": ";by=a newer gateway"}}
    return {**entry, "string": f"{entry['string']}\0zone=b weight=2"}


@pytest.fixture(params=["as recorded", "with more in it"])
def entries(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return ENTRIES if request.param == "as recorded" else [newer(entry) for entry in ENTRIES]


def limiter(connection: RedisConnection, me: str = "mine") -> Limiter:
    return Limiter(RedisQuotas(connection), me=me, down=lambda: None, clock=time.monotonic)


def switchboard(connection: RedisConnection, clock: Clock, wall_s: float = 1e9) -> Switchboard:
    def nothing(*_: object, **__: object) -> None:
        pass

    return Switchboard(
        Switches(clock),
        RedisStore(connection),
        told=nothing,
        log=nothing,
        clock=clock,
        wall_clock=lambda: wall_s + clock.now_s,
    )


def prefix(namespace: str, version: int = SCHEMA_VERSION) -> str:
    return f"{{{namespace}}}:{version}:"


# --- read


async def test_pins_are_read(redis_server: RedisServer, entries: list[dict[str, Any]]) -> None:
    name = uuid.uuid4().hex
    put(redis_server, prefix(name), entries)
    async with connected(redis_server.port, namespace=name) as connection:
        store = RedisStore(connection)
        text = await store.renew(pin_key("acme", "counter", "", 7), ttl_s=90)
        assert text is not None
        assert Pin.of_text(text) == PIN
        lost = await store.renew(pin_key("anonymous", "stateful", "1", "job 5"), ttl_s=90)
        assert lost is not None
        assert (Pin.of_text(lost), Pin.of_text(lost).is_lost) == (LOST, True)
        # What names the old value finds it, and what is written instead keeps what was there.
        assert Pin.of_text(text).text() == text
        mark = Pin.of_text(text).lost().text()
        assert mark.partition("\0")[2] == text.partition("\0")[2]
        key = pin_key("acme", "counter", "", 7)
        assert await store.claim(key, mark, ttl_s=90, instead_of=Pin.of_text(text).text()) == mark


async def test_quotas_are_read(redis_server: RedisServer, entries: list[dict[str, Any]]) -> None:
    name = uuid.uuid4().hex
    put(redis_server, prefix(name), entries)
    async with connected(redis_server.port, namespace=name) as connection:
        limits = limiter(connection)
        slow, seats = wanted(SLOW, "acme"), wanted(SEATS, "acme")
        each = wanted(EACH, "acme:eu", model="counter")
        used = [counted.used for counted in await limits.peek([slow, each, seats])]
        assert 10_000_000 < used[0] <= 30_000_000
        assert 3500_000_000 < used[1] <= 3600_000_000
        assert used[2] == 2
        assert (await limits.decide([slow])).refused
        assert not (await limits.decide([seats])).refused
        assert (await limits.decide([seats])).refused
        limits.refund(await limits.decide([wanted(EACH, "acme:eu", model="other")]))
        await limits._store.give_back({each.key: 3600_000_000})
        assert not (await limits.decide([each])).refused
        await limits._held._look()
        assert limits.gateways == 3
        await limits.close()


async def test_switches_are_read(redis_server: RedisServer, entries: list[dict[str, Any]]) -> None:
    name = uuid.uuid4().hex
    put(redis_server, prefix(name), entries)
    async with connected(redis_server.port, namespace=name) as connection:
        clock = Clock()
        board = switchboard(connection, clock)
        await board.follow_once()
        (row,) = board.view()
        assert (row["feature"], row["by"]) == ("limits", "ann@desk from 10.0.0.7")
        assert row["reason"] == "acme is locked out"
        assert board.entries()[0]["feature"] == "auth"  # remembered as switched on again
        clock.now_s += 1700
        assert [each["feature"] for each in board.view()] == ["limits"]
        clock.now_s += 100
        assert board.view() == []


# --- written


async def test_what_is_written_now_is_what_was_recorded(redis_server: RedisServer) -> None:
    """A difference here is one that older gateways meet: see SCHEMA_VERSION."""
    name = uuid.uuid4().hex
    async with connected(redis_server.port, namespace=name) as connection:
        store = RedisStore(connection)
        await store.claim(pin_key("acme", "counter", "", 7), PIN.text(), ttl_s=90)
        lost = Pin("stateful", 1, "b", LOST.begun).lost()
        await store.claim(pin_key("anonymous", "stateful", "1", "job 5"), lost.text(), ttl_s=90)
        one, other = limiter(connection, ME), limiter(connection, OTHER)
        await one.decide([wanted(SLOW, "acme")])
        await one.decide([wanted(EACH, "acme:eu", model="counter")])
        one._holders = 16
        for _ in range(2):
            await one.decide([wanted(SEATS, "acme")])
        for each in (one, other):
            await each._held._look()
        clock = Clock()
        board = switchboard(connection, clock, 1764541870.125 - clock.now_s)
        by, reason = "ann@desk from 10.0.0.7", "acme is locked out"
        await board.disable(Feature.LIMITS, 1800, reason, by=by)
        clock = Clock()
        board = switchboard(connection, clock, 1764541870.5 - clock.now_s)
        await board.disable(Feature.AUTH, 150, "", by=by)
        clock.now_s += 10
        await board.enable(Feature.AUTH, by="bob@desk from 10.0.0.8")
        written = found(redis_server, prefix(name))
        assert written.keys() == {entry["key"] for entry in ENTRIES}
        for entry in ENTRIES:
            assert same(comparable(entry), written[entry["key"]]), written[entry["key"]]
            left = left_s(redis_server, prefix(name) + entry["key"])
            assert entry["left_s"] - 20 < left <= entry["left_s"] + 0.1
        for each in (one, other):
            await each.close()


# --- beside others


@pytest.mark.parametrize("version", [0, 2])
async def test_what_has_another_version_is_neither_read_nor_touched(
    redis_server: RedisServer, version: int
) -> None:
    """The other version keeps lists at the very names where this one keeps everything."""
    name = uuid.uuid4().hex
    keys = [f"{prefix(name, version)}{entry['key']}" for entry in ENTRIES]
    for key in keys:
        redis_server.ask("RPUSH", key, "in", "another form")
        redis_server.ask("PEXPIRE", key, 600_000)
    async with connected(redis_server.port, namespace=name) as connection:
        store, limits, board = RedisStore(connection), limiter(connection), None
        key = pin_key("acme", "counter", "", 7)
        assert await store.renew(key, ttl_s=90) is None
        assert await store.claim(key, PIN.text(), ttl_s=90) == PIN.text()
        await store.forget(key, PIN.text())
        for rule, tenant in ((SLOW, "acme"), (EACH, "acme:eu"), (SEATS, "acme")):
            one = wanted(rule, tenant, model="counter")
            verdict = await limits.decide([one])
            assert (verdict.refused, verdict.source.value) == (False, "shared")
            limits.refund(verdict)
            limits.free(verdict)
            await limits.reset([one.key])
        await limits._held._look()
        assert limits.gateways == 1
        board = switchboard(connection, Clock())
        assert (await board.disable(Feature.LIMITS, 60, "", by="ann"))[1] is None
        assert await board.enable(Feature.LIMITS, by="ann") == (True, None)
        await limits.close()
        assert connection.failures == 0
    for key in keys:
        assert redis_server.ask("LRANGE", key, 0, -1) == ["in", "another form"]
        assert 500 < left_s(redis_server, key) <= 600


async def test_a_gateway_goes_on_with_what_an_older_one_began(redis_server: RedisServer) -> None:
    """Sequences, used-up limits and what is switched off, over HTTP."""
    name = uuid.uuid4().hex
    put(redis_server, prefix(name), [e for e in ENTRIES if e["key"] != "disabled:limits"])
    idle = model_config_pb2.ModelSequenceBatching(max_sequence_idle_microseconds=60_000_000)
    counter = FakeModel(model_config("counter", sequence_batching=idle))
    counter.states = {"2": "READY"}
    parts = {
        "limits": {"slow": {"per_minute": 2, "burst": 1, "models": ["echo"]}},
        "auth": {"mode": "observe"},
        "tenants": {"acme": {"keys": [hashed("a")]}},
        "redis": {"url": redis_server.url, "namespace": name, "timeout_s": 5.0},
    }
    step = tensor(1.0)[:-1] + b',"parameters":{"sequence_id":%d}}'
    acme = bearer(KEYS["a"])
    async with (
        FakeTriton(counter, FakeModel(model_config("echo")), server_id="a") as a,
        FakeTriton(counter, server_id="b") as b,
        serving({"a": a, "b": b}, **parts) as gateway,
    ):
        await until(lambda: gateway.cores.current.view.store.down_reason() is None)
        assert (await gateway.ask(infer("counter", step % 7, **acme))).status == 200
        assert (await gateway.ask(infer("counter", step % 8, **acme))).status == 400
        assert (a.infer_started, b.infer_started) == (1, 0)
        assert (await gateway.infer("echo", **acme)).status == 429
        put(redis_server, prefix(name), [e for e in ENTRIES if e["key"] == "disabled:limits"])
        await until(lambda: bool(gateway.events("feature disabled")))
        assert (await gateway.infer("echo", **acme)).status == 200
