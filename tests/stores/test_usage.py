"""The months do what `gateway.ports.UsageStore` says, in memory, in a file and in Redis."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.ports import StoreDown, UsageStore
from gateway.stores.state_file import USAGE, StateFile
from gateway.stores.usage import LONGEST_MONTH_S, WRITER_S, MemoryUsage, RedisUsage
from gateway.usage.accountant import Accountant
from gateway.usage.counting import Used
from routing.usage import Amounts, Flush
from tests.fakes.proxy import TcpProxy
from tests.redis_server import RedisServer, redis_cluster
from tests.serving import until
from tests.stores.conftest import connected

ALL = Amounts(1, 2, 3, 4, 5, 2**60)
PAIR = ("acme", "resnet50")


def flush(number: int = 1, *, writer: str = "w", month: str = "2026-11", **amounts: int) -> Flush:
    return Flush(writer, number, {month: {PAIR: Amounts(**amounts)}})


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[UsageStore]:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        async with connected(server.port) as connection:
            yield RedisUsage(connection, months=13)
        return
    path = tmp_path / "usage.json" if request.param == "file" else None
    yield MemoryUsage(StateFile(path, USAGE), months=13, log=print)


async def test_amounts_add_up_by_month_tenant_and_model(store: UsageStore) -> None:
    odd = {("acme", "a/b c:ä"): ALL, ("b", "m"): Amounts(requests=1)}
    await store.add(Flush("w", 1, {"2026-11": odd, "2026-12": {PAIR: ALL}}))
    await store.add(Flush("v", 1, {"2026-11": {("b", "m"): Amounts(requests=2, compute_us=9)}}))
    assert await store.month("2026-11") == {
        ("acme", "a/b c:ä"): ALL,
        ("b", "m"): Amounts(requests=3, compute_us=9),
    }
    assert await store.month("2026-12") == {PAIR: ALL}
    assert await store.month("2026-10") == {}


async def test_a_flush_that_comes_again_adds_nothing(store: UsageStore) -> None:
    for number in (1, 1, 2, 1, 2, 3):
        await store.add(flush(number, requests=1))
    await store.add(flush(1, writer="other", requests=1))
    assert await store.month("2026-11") == {PAIR: Amounts(requests=4)}


async def test_whole_numbers_stay_whole(store: UsageStore) -> None:
    await store.add(flush(1, compute_us=2**62))
    await store.add(flush(2, compute_us=1))
    assert (await store.month("2026-11"))[PAIR].compute_us == 2**62 + 1


async def test_many_writers_at_once(store: UsageStore) -> None:
    writers = [f"w{number}" for number in range(20)]
    await asyncio.gather(
        *(store.add(flush(1, writer=writer, requests=1, rows=2)) for writer in writers)
    )
    assert await store.month("2026-11") == {PAIR: Amounts(requests=20, rows=40)}


# --- Redis alone


async def test_in_redis_a_month_ends_by_itself_and_so_does_a_writer(
    redis_server: RedisServer,
) -> None:
    name = uuid.uuid4().hex
    async with connected(redis_server.port, namespace=name) as connection:
        await RedisUsage(connection, months=2).add(flush(7, requests=1))
    key = f"{{{name}}}:1:usage:2026-11"
    assert redis_server.ask("HGETALL", key) == {"acme/resnet50/requests": "1"}
    assert redis_server.ask("TTL", key) in range(2 * LONGEST_MONTH_S - 60, 2 * LONGEST_MONTH_S + 1)
    writer = f"{{{name}}}:1:usage:by:w"
    assert redis_server.ask("GET", writer) == "7"
    assert redis_server.ask("TTL", writer) in range(WRITER_S - 60, WRITER_S + 1)


async def test_in_redis_a_flush_is_one_command(redis_server: RedisServer) -> None:
    def commands() -> int:
        stats: Any = redis_server.ask("INFO", "commandstats")
        return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])

    async with connected(redis_server.port) as connection:
        store = RedisUsage(connection, months=2)
        await store.add(flush(1, requests=1))
        before = commands()
        totals = {("acme", f"m{number}"): ALL for number in range(500)}
        await store.add(Flush("w", 2, {"2026-11": totals, "2026-12": totals}))
        assert commands() == before + 1
        assert len(await store.month("2026-12")) == 500


async def test_what_is_not_known_here_is_left_alone(redis_server: RedisServer) -> None:
    name = uuid.uuid4().hex
    async with connected(redis_server.port, namespace=name) as connection:
        store = RedisUsage(connection, months=2)
        await store.add(flush(1, requests=1))
        redis_server.ask("HSET", f"{{{name}}}:1:usage:2026-11", "acme/resnet50/novelty", 5)
        assert await store.month("2026-11") == {PAIR: Amounts(requests=1)}


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    """Give a proxy in front of the Redis."""
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    yield proxy
    await proxy.close()


@contextlib.asynccontextmanager
async def accounts(port: int, namespace: str) -> AsyncIterator[Accountant]:
    """An accountant over a Redis that is asked every second whether it is there."""
    connecting = connected(port, timeout_s=0.05, connect_timeout_s=0.1, namespace=namespace)
    async with connecting as connection:
        await connection.start()
        await until(lambda: connection.down_reason() is None)
        yield Accountant(
            RedisUsage(connection, months=13),
            taken=lambda: None,
            me=uuid.uuid4().hex,
            is_known=lambda _: True,
            interval_s=0.05,
            clock=time.monotonic,
            wall_clock=lambda: 1_790_000_000.0,
            log=print,
        )


async def kept(port: int, namespace: str) -> int:
    """Return the requests that are in Redis."""
    async with connected(port, namespace=namespace) as connection:
        totals = await RedisUsage(connection, months=13).month("2026-09")
    return sum(amounts.requests for amounts in totals.values())


async def test_a_flush_whose_answer_is_lost_is_added_once(
    proxy: TcpProxy, redis_server: RedisServer
) -> None:
    name = uuid.uuid4().hex
    async with accounts(proxy.port, name) as accountant:
        accountant.take(Used({PAIR: Amounts(requests=3)}))
        proxy.delay_s = 0.3  # the command arrives, the answer comes when nobody waits any more
        with pytest.raises(StoreDown):
            await accountant.flush()
        while not await kept(redis_server.port, name):
            await asyncio.sleep(0.02)
        proxy.delay_s = 0.0
        accountant.take(Used({PAIR: Amounts(requests=4)}))
        async with asyncio.timeout(10):
            while await kept(redis_server.port, name) != 7:
                with contextlib.suppress(StoreDown):
                    await accountant.flush()
                await asyncio.sleep(0.05)
        await accountant.flush()
        assert await kept(redis_server.port, name) == 7


async def test_nothing_is_lost_while_redis_comes_and_goes(
    proxy: TcpProxy, redis_server: RedisServer
) -> None:
    name, told = uuid.uuid4().hex, 0
    async with accounts(proxy.port, name) as one, accounts(proxy.port, name) as other:
        for each in (one, other):
            each.start()
        for turn in range(6):
            (proxy.cut_all, proxy.freeze, proxy.thaw)[turn % 3]()
            for _ in range(10):
                for each in (one, other):
                    each.take(Used({PAIR: Amounts(requests=1)}))
                    told += 1
                await asyncio.sleep(0.02)
        await proxy.stop()
        one.take(Used({PAIR: Amounts(requests=1)}))
        await asyncio.sleep(0.2)
        await proxy.start(redis_server.port)
        for each in (one, other):
            await each.close()
    assert await kept(redis_server.port, name) == told + 1


@pytest.mark.accept
async def test_in_a_cluster_a_flush_and_its_writer_are_on_one_node(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as nodes:
        async with connected(nodes[1].port, kind="cluster") as connection:
            store = RedisUsage(connection, months=2)
            for number in (1, 1, 2):
                await store.add(
                    Flush("w", number, {"2026-11": {PAIR: ALL}, "2026-12": {PAIR: ALL}})
                )
            assert (await store.month("2026-12"))[PAIR].rows == 2 * ALL.rows


# --- memory and file alone


async def test_the_last_months_are_kept(tmp_path: Path) -> None:
    store = MemoryUsage(StateFile(None, USAGE), months=2, log=print)
    for number, month in enumerate(("2026-11", "2027-01", "2026-12"), 1):
        await store.add(flush(number, month=month, requests=number))
    found = [await store.month(month) for month in ("2026-11", "2026-12", "2027-01")]
    assert found == [{}, {PAIR: Amounts(requests=3)}, {PAIR: Amounts(requests=2)}]
    assert store.kind == "memory"


async def test_a_file_outlasts_the_process(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    before = MemoryUsage(StateFile(path, USAGE), months=13, log=print)
    before.restore()
    await before.add(Flush("w", 1, {"2026-11": {PAIR: ALL}}))
    await before.add(flush(2, month="2026-12", requests=1))
    after = MemoryUsage(StateFile(path, USAGE), months=13, log=print)
    after.restore()
    assert after.kind == "file"
    assert await after.month("2026-11") == {PAIR: ALL}
    await after.add(flush(1, writer="after", month="2026-12", requests=1))
    assert await after.month("2026-12") == {PAIR: Amounts(requests=2)}


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"^usage\.state_file: .*usage\.json: not JSON"):
        MemoryUsage(StateFile(path, USAGE), months=13, log=print).restore()


async def test_a_file_is_written_when_something_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    store = MemoryUsage(StateFile(path, USAGE), months=13, log=print)
    await store.add(flush(1, requests=1))
    path.unlink()
    await store.add(flush(1, requests=1))
    assert not path.exists()


class SlowDisk(StateFile):
    """A file whose writes take a moment, and never two at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, USAGE)
        self.writes = self._writing = 0

    def write(self, state: Mapping[str, Any]) -> None:
        self._writing += 1
        assert self._writing == 1
        time.sleep(0.1)
        super().write(state)
        self._writing -= 1
        self.writes += 1


async def test_a_write_whose_caller_has_gone_is_over_before_the_next(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path / "usage.json")
    store = MemoryUsage(disk, months=13, log=print)
    leaving = asyncio.create_task(store.add(flush(1, requests=1)))
    await asyncio.sleep(0.02)
    leaving.cancel()
    await store.add(flush(1, requests=1))
    await store.add(flush(2, requests=1))
    assert disk.writes == 2
    assert disk.read()["usage"][0]["requests"] == 2


async def test_a_disk_that_cannot_be_written_is_told_and_made_up_for(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "folder"
    path = folder / "usage.json"
    store = MemoryUsage(StateFile(path, USAGE), months=13, log=lambda e, **_: told.append(e))
    await store.add(flush(1, requests=1))
    assert told == ["usage cannot be kept over a restart"]
    folder.mkdir()
    await store.add(flush(2, requests=1))
    after = MemoryUsage(StateFile(path, USAGE), months=13, log=print)
    after.restore()
    assert await after.month("2026-11") == {PAIR: Amounts(requests=2)}
