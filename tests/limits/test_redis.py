"""Limits in a Redis that is delayed, frozen, stopped, slow, and killed and back empty."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.limits.limiter import Limiter
from gateway.stores.quotas import RedisQuotas
from gateway.stores.redis_connection import RedisConnection
from routing.limits import OnFailure, Source
from tests.fakes.proxy import TcpProxy
from tests.limits.building import at_a_time, limiter, rate, wanted
from tests.redis_server import RedisServer
from tests.serving import until
from tests.stores.conftest import connected

BUDGET_S = 0.025
RECOVERY_S = 5.0
MANY = 12_000
"""Requests of the long form, in which short waits of a busy machine do not count."""


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy()
    await proxy.start(redis_server.port)
    yield proxy
    await proxy.close()


@contextlib.asynccontextmanager
async def limiting(
    port: int, *, timeout_s: float = BUDGET_S, connect_timeout_s: float = 0.2, **options: int
) -> AsyncIterator[tuple[Limiter, RedisConnection]]:
    """A limiter over a Redis that has answered."""
    connecting = connected(
        port, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s, **options
    )  # type: ignore[arg-type]
    async with connecting as connection:
        await connection.start()
        await until(lambda: connection.down_reason() is None)
        limits = limiter(RedisQuotas(connection), time.monotonic, down=connection.down_reason)
        yield limits, connection
        await limits.close()


async def test_callers_that_leave_spoil_nobodys_decision(proxy: TcpProxy) -> None:
    """400 callers of two tenants over one slow connection, every second one leaves half-way."""
    rule = rate(0.001, 1_000_000)
    tight = rate(0.001, 3, "tight")
    patient = {"timeout_s": 5.0, "connect_timeout_s": 5.0}  # a busy machine must not decide here
    async with limiting(proxy.port, **patient, max_connections=1) as (limits, _):
        proxy.delay_s = 0.01

        async def ask(tenant: str) -> bool:
            # The tight limit is the first tenant's only.
            rules = [rule, tight] if tenant == "a" else [rule]
            return (await limits.decide([wanted(r, tenant) for r in rules])).refused

        asking = []
        for number in range(400):
            tenant = "ab"[number // 2 % 2]
            asking.append((tenant, asyncio.create_task(ask(tenant))))
            if number % 2:
                asyncio.get_running_loop().call_later(0.005, asking[-1][1].cancel)
            if number % 10 == 0:
                await asyncio.sleep(0.002)
        results = await asyncio.gather(*(task for _, task in asking), return_exceptions=True)
        left = sum(isinstance(result, asyncio.CancelledError) for result in results)
        assert left > 100
        said = [(t, r) for (t, _), r in zip(asking, results, strict=True) if isinstance(r, bool)]
        assert not any(refused for tenant, refused in said if tenant == "b")
        proxy.delay_s = 0.0
        await until(lambda: sum(limits.sources.values()) == 400)
        used = {
            tenant: (await limits.peek([wanted(rule, tenant)]))[0].used // rule.cost_us(1) + 1
            for tenant in "ab"
        }
        # Without a refusal all rules of a request count; "tight" has refused the others of "a".
        assert used == {"a": 3, "b": 200}
        assert limits.decisions == {
            ("rate", "allowed"): 203,
            ("tight", "allowed"): 3,
            ("tight", "denied"): 197,
        }
        assert limits.sources["shared"] == 400


@pytest.mark.parametrize("requests", [300, pytest.param(MANY, marks=pytest.mark.accept)])
@pytest.mark.parametrize("fault", ["stopped", "frozen", "slow"])
async def test_an_outage_costs_few_requests_anything(
    proxy: TcpProxy, redis_server: RedisServer, fault: str, requests: int
) -> None:
    """Only the first ones wait: whether Redis is back is found out by nobody's request."""
    rules = {
        Source.LOCAL: rate(0.001, 30, "local"),
        Source.OPEN: rate(0.001, 1, "open", on_failure=OnFailure.OPEN),
        Source.CLOSED: rate(0.001, 100, "closed", on_failure=OnFailure.CLOSED),
    }
    async with limiting(proxy.port) as (limits, _):
        await break_it(proxy, fault)
        took_s: list[float] = []

        async def ask(source: Source) -> tuple[Source, bool]:
            began_s = time.monotonic()
            verdict = await limits.decide([wanted(rules[source])])
            took_s.append(time.monotonic() - began_s)
            return verdict.source, verdict.refused

        asking = []
        for number in range(requests):
            asking.append(asyncio.create_task(ask(list(rules)[number % 3])))
            await asyncio.sleep(0.005)
        answers = await asyncio.gather(*asking)
        waited = [each for each in took_s if each > 0.9 * BUDGET_S]
        others = sorted(took_s)[: requests - len(waited)]
        p99_s = statistics.quantiles(others, n=100)[98]
        print(f"{fault}: {len(waited)} of {requests} waited, the others p99 {p99_s * 1000:.2f} ms")
        assert len(waited) <= 20
        assert p99_s < 0.005 or requests < MANY
        by_source = {
            source: [refused for said, refused in answers if said is source] for source in rules
        }
        assert by_source[Source.LOCAL].count(False) == 30
        assert not any(by_source[Source.OPEN])
        assert all(by_source[Source.CLOSED])
        assert len(by_source[Source.OPEN]) == len(by_source[Source.CLOSED]) == requests // 3
        await mend(proxy, redis_server)
        began_s = time.monotonic()
        verdict = await limits.decide([wanted(rules[Source.OPEN], "new")])
        while verdict.source is not Source.SHARED:
            await asyncio.sleep(0.02)
            verdict = await limits.decide([wanted(rules[Source.OPEN], "new")])
        assert time.monotonic() - began_s < RECOVERY_S
        assert not verdict.refused
        assert (await limits.decide([wanted(rules[Source.OPEN], "new")])).refused


async def break_it(proxy: TcpProxy, fault: str) -> None:
    if fault == "frozen":
        proxy.freeze()
    elif fault == "slow":
        proxy.delay_s = 4 * BUDGET_S
    else:
        await proxy.stop()


async def mend(proxy: TcpProxy, server: RedisServer) -> None:
    proxy.thaw()
    proxy.delay_s = 0.0
    if proxy.open_connections == 0:
        await proxy.stop()
        await proxy.start(server.port)


async def test_a_redis_that_was_killed_and_is_back_empty_limits_again(tmp_path: Path) -> None:
    """Places that are held are known there again; of rates one more burst is let through."""
    seats, rule = at_a_time(3), rate(0.001, 2)
    with RedisServer(tmp_path) as server:
        async with limiting(server.port) as (limits, connection):
            held = [await limits.decide([wanted(seats)]) for _ in range(2)]
            assert not (await limits.decide([wanted(rule)])).refused
            server.stop()
            await until(lambda: connection.down_reason() is not None)
            during = await limits.decide([wanted(seats)])
            assert (during.refused, during.source) == (False, Source.LOCAL)
            server.start()
            began_s = time.monotonic()
            await until(lambda: connection.down_reason() is None)
            taken = 0
            while taken != 3:
                await asyncio.sleep(0.05)
                taken = (await limits.peek([wanted(seats)]))[0].used
                assert time.monotonic() - began_s < RECOVERY_S
            assert (await limits.decide([wanted(seats)])).refused
            verdicts = [await limits.decide([wanted(rule, "b")]) for _ in range(3)]
            assert [verdict.refused for verdict in verdicts] == [False, False, True]
            for verdict in (*held, during):
                limits.free(verdict)
            await asyncio.sleep(0.3)
            assert (await limits.peek([wanted(seats)]))[0].used == 0
