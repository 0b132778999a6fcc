"""Connections of a process that does not probe: confirmed, checked, replaced."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from gateway.upstream.channels import ChannelOptions, ChannelPool
from gateway.upstream.keeper import ChannelKeeper, Kept
from gateway.upstream.transport import Upstream
from routing.fleet import FleetTable
from routing.types import Server
from tests.fakes.triton import FakeTriton
from tests.serving import until

OPTIONS = ChannelOptions(
    channels=2,
    connect_timeout_s=1.0,
    reconnect_backoff_min_s=0.05,
    reconnect_backoff_max_s=0.05,
    keepalive_interval_s=300.0,
    max_reply_bytes=2**20,
)


class Keeping:
    """A keeper for one server, and the table it looks at."""

    def __init__(self, address: str, expect: str | None) -> None:
        self.pool = ChannelPool(address, OPTIONS, identity_matters=expect is not None)
        self.table = FleetTable([Server("a")], quorum=0.5, recently_ready_s=1.0)
        self.up()
        self.last_reply_s = time.monotonic()
        kept = Kept(Upstream("a", self.pool), lambda: self.last_reply_s, expect)
        self.keeper = ChannelKeeper(
            {"a": kept},
            snapshot=lambda: self.table.snapshot,
            timeout_s=0.2,
            clock=time.monotonic,
        )

    def up(self) -> None:
        self.table.server_up("a", server_id="x", triton_version="2.58.0", now_s=0.0)


@contextlib.asynccontextmanager
async def keeping(address: str, expect: str | None = None) -> AsyncIterator[Keeping]:
    made = Keeping(address, expect)
    try:
        yield made
    finally:
        await made.keeper.stop()
        await made.pool.close()


async def test_it_connects_to_servers_that_are_up(fake: FakeTriton) -> None:
    async with keeping(fake.address) as made:
        await made.keeper.connect()
        assert [channel.state() for channel in made.pool.channels] == ["ready", "ready"]
        assert not fake.calls


async def test_a_server_that_is_not_there_does_not_hold_it_up() -> None:
    async with keeping("127.0.0.1:9") as made:
        await made.keeper.connect()
        assert "ready" not in {channel.state() for channel in made.pool.channels}


async def test_connections_are_confirmed_where_that_matters(fake: FakeTriton) -> None:
    async with keeping(fake.address, "fake") as made:
        assert made.pool.least_busy() is None
        await made.keeper.connect()
        assert all(channel.confirmed for channel in made.pool.channels)
        assert fake.calls["ServerMetadata"] == 2


async def test_a_stranger_is_never_confirmed(fake: FakeTriton) -> None:
    async with keeping(fake.address, "another") as made:
        await made.keeper.connect()
        assert made.pool.least_busy() is None


async def test_a_connection_made_anew_is_confirmed_anew(fake: FakeTriton) -> None:
    async with keeping(fake.address, "fake") as made:
        await made.keeper.connect()
        made.keeper.start()
        await fake.kill()
        await until(lambda: made.pool.least_busy() is None)
        await fake.start()
        made.keeper.wake()
        await until(lambda: made.pool.least_busy() is not None)


async def test_connections_that_answer_cost_no_call(fake: FakeTriton) -> None:
    async with keeping(fake.address) as made:
        await made.keeper.connect()
        made.keeper.start()
        for _ in range(3):
            made.keeper.wake()
            await asyncio.sleep(0.01)
        assert not fake.calls


async def test_connections_of_a_server_that_was_seen_silent_are_replaced(fake: FakeTriton) -> None:
    async with keeping(fake.address) as made:
        await made.keeper.connect()
        before = list(made.pool.channels)
        fake.proxy.freeze()
        made.table.server_down("a", "silent", now_s=1.0)
        made.keeper.start()

        def replaced() -> bool:
            made.keeper.wake()
            return not set(before) & set(made.pool.channels)

        await until(replaced)
        fake.proxy.thaw()


async def test_a_call_that_takes_long_has_its_connection_checked_and_kept(
    fake: FakeTriton,
) -> None:
    async with keeping(fake.address) as made:
        await made.keeper.connect()
        (channel, _) = before = list(made.pool.channels)
        channel.in_flight = 1
        made.last_reply_s -= 60.0
        made.keeper.start()
        await fake.until(lambda: fake.calls["ServerLive"] == 1)
        for _ in range(3):
            made.keeper.wake()
            await asyncio.sleep(0.01)
        assert fake.calls["ServerLive"] == 1
        assert list(made.pool.channels) == before
        channel.in_flight = 0
