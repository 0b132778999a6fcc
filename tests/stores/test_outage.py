"""A Redis that is slow, silent or gone costs requests next to nothing and is used again at once."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from gateway.ports import StoreDown
from gateway.stores.redis import RedisStore
from gateway.stores.redis_connection import RedisConnection
from tests.certificates import Authority
from tests.fakes.proxy import TcpProxy
from tests.redis_server import RedisServer
from tests.stores.conftest import PATIENT_S, Log, connected

LONG_S = 60.0
BUDGET_S = 0.05


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    """Give a proxy in front of the Redis."""
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    yield proxy
    await proxy.close()


async def until(condition: object, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def fails(connection: RedisConnection) -> str:
    with pytest.raises(StoreDown) as caught:
        await connection.command("GET", connection.key("k"))
    return str(caught.value)


async def test_a_caller_that_leaves_never_gets_or_spoils_anothers_answer(proxy: TcpProxy) -> None:
    """Each command has its own key and value, on one connection; every second caller leaves."""
    async with connected(proxy.port, max_connections=1) as connection:
        store = RedisStore(connection)
        await store.claim("warm", "up", ttl_s=LONG_S)
        proxy.delay_s = 0.005
        asking = {
            f"{key}{number}": asyncio.create_task(
                store.claim(f"{key}{number}", f"{key}{number}", ttl_s=LONG_S)
            )
            for number in range(30)
            for key in "ab"
        }
        staying = {name: task for name, task in asking.items() if name.startswith("a")}
        for name, task in asking.items():
            if name not in staying:
                await asyncio.sleep(0.002)
                task.cancel()
        assert await asyncio.gather(*staying.values()) == list(staying)
        proxy.delay_s = 0.0
        for name in asking:  # what was on its way has arrived
            assert await store.renew(name, ttl_s=LONG_S) in (name, None)
        for name in staying:
            assert await store.renew(name, ttl_s=LONG_S) == name
        assert proxy.accepted == 1
        assert connection.failures == 0


@pytest.mark.parametrize("fault", ["frozen", "slow", "refused"])
async def test_after_three_failures_nobody_waits_until_it_is_back(
    proxy: TcpProxy, redis_server: RedisServer, fault: str
) -> None:
    log = Log()
    async with connected(proxy.port, timeout_s=BUDGET_S, connect_timeout_s=0.2, log=log) as it:
        await until_up(it)
        log.clear()
        if fault == "frozen":
            proxy.freeze()
        elif fault == "slow":
            proxy.delay_s = 3 * BUDGET_S
        elif fault == "refused":
            await proxy.stop()
        while not log:
            await asyncio.wait_for(attempt(it), PATIENT_S)
        assert log == ["store down"]
        assert it.down_reason()
        began_s, before = time.monotonic(), it.failures
        while (passed_s := time.monotonic() - began_s) < 1.5:
            for _ in range(50):
                await attempt(it)
            await asyncio.sleep(0.01)
        assert it.failures - before <= passed_s + 1  # one trial a second
        if fault == "refused":
            await proxy.start(redis_server.port)
        proxy.thaw()
        proxy.delay_s = 0.0
        await until(lambda: it.down_reason() is None)  # without any request
        assert log[-1] == "store up"
        await until_up(it)


async def until_up(connection: RedisConnection) -> None:
    """Start the watch over a connection if need be, and wait until it says that Redis is there."""
    if connection.down_reason() is not None:
        await connection.start()
        await until(lambda: connection.down_reason() is None)


async def attempt(connection: RedisConnection) -> None:
    with contextlib.suppress(StoreDown):
        await connection.command("GET", connection.key("k"))


async def test_a_connection_that_is_cut_costs_one_failure_at_the_most(proxy: TcpProxy) -> None:
    async with connected(proxy.port) as connection:
        store = RedisStore(connection)
        await store.claim("k", "x", ttl_s=LONG_S)
        for _ in range(5):
            before = connection.failures
            proxy.cut_all()
            await attempt(connection)
            assert await store.renew("k", ttl_s=LONG_S) == "x"
            assert connection.failures <= before + 1


async def test_a_late_answer_does_not_count_as_one(proxy: TcpProxy) -> None:
    """Otherwise every request would wait in vain for a Redis that is always a little late."""
    async with connected(proxy.port, timeout_s=BUDGET_S) as connection:
        await until_up(connection)
        proxy.delay_s = 2 * BUDGET_S
        for _ in range(3):
            assert "no answer within 50 ms" in await fails(connection)
            await asyncio.sleep(5 * BUDGET_S)
        began_s = time.monotonic()
        for _ in range(20):
            await fails(connection)
        assert time.monotonic() - began_s < 20 * BUDGET_S


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_is_held_up_is_no_fault_of_redis(
    redis_server: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The answer has come by the time somebody looks whether it is too late."""

    async def hold_up() -> None:
        async with connected(redis_server.port, timeout_s=BUDGET_S) as connection:
            await until_up(connection)
            for _ in range(5):
                asking = asyncio.create_task(connection.command("DEBUG", "SLEEP", "0.02"))
                for _ in range(20):
                    await asyncio.sleep(0)  # until it is sent
                assert not asking.done()
                time.sleep(2 * BUDGET_S)
                assert await asking == "OK"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(hold_up())


async def test_a_connection_that_is_not_there_is_told_with_its_reason() -> None:
    async with connected(1) as connection:
        assert "Connect call failed" in await fails(connection)
        assert connection.failures == 1


async def test_more_commands_than_connections_take_turns(redis_server: RedisServer) -> None:
    async with connected(redis_server.port, max_connections=2) as connection:
        store = RedisStore(connection)
        claims = (store.claim(str(n), str(n), ttl_s=LONG_S) for n in range(100))
        assert await asyncio.gather(*claims) == [str(n) for n in range(100)]
        clients = str(redis_server.ask("CLIENT", "LIST")).splitlines()
        assert len(clients) <= 2 + 1


async def test_a_script_is_loaded_again_where_redis_has_forgotten_it(
    redis_server: RedisServer,
) -> None:
    async with connected(redis_server.port) as connection:
        store = RedisStore(connection)
        for value in "ab":
            redis_server.ask("SCRIPT", "FLUSH")
            assert await store.claim(value, value, ttl_s=LONG_S) == value


async def test_it_logs_in_and_never_shows_the_password(redis_server: RedisServer) -> None:
    redis_server.ask("ACL", "SETUSER", "gateway", "on", ">open-sesame", "~*", "+@all")
    try:
        login = {"username": "gateway", "password": "open-sesame"}
        async with connected(redis_server.port, **login) as connection:
            assert await connection.command("ACL", "WHOAMI") == "gateway"
        login["password"] = "wrong-word"
        async with connected(redis_server.port, **login) as connection:
            reason = await fails(connection)
        assert "password" in reason
        assert "wrong-word" not in reason
    finally:
        redis_server.ask("ACL", "DELUSER", "gateway")


async def test_over_tls_it_speaks_to_the_right_server_only(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, mine = authority.issue("server", server=True), authority.issue("client", server=False)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
    context.load_cert_chain(pair.cert, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED
    shown = {"cert_file": str(mine.cert), "key_file": str(mine.key)}
    proxy = TcpProxy(context)
    await proxy.start(redis_server.port)
    try:
        async with connected(
            proxy.port, tls=True, ca_file=str(authority.ca), **shown
        ) as connection:
            assert await RedisStore(connection).claim("k", "x", ttl_s=LONG_S) == "x"
        async with connected(proxy.port, tls=True, ca_file=str(stranger.ca), **shown) as connection:
            assert "certificate verify failed" in await fails(connection)
    finally:
        await proxy.close()
