"""`/metrics/fleet` where servers misbehave: the page is there in time, with the others' series."""

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator

import pytest

from tests.fakes.ports import Answer, closing, listening, silent, triton_metrics, web_page
from tests.gateways import configuration
from tests.serving import Serving, fake_triton, no_diagnosis, serving_config

GOOD = 'nv_cpu_utilization{server="good"} 0'
LIMITS = {"scrape_timeout_s": 0.5, "max_metrics_page_bytes": 100_000}


@contextlib.asynccontextmanager
async def scraped(metrics: dict[str, str]) -> AsyncIterator[Serving]:
    """A gateway that takes each server's metrics from the given address."""
    async with contextlib.AsyncExitStack() as stack:
        config = configuration({}, ops=LIMITS)
        for name, address in metrics.items():
            fake = await stack.enter_async_context(fake_triton())
            config["servers"].append({"name": name, "grpc": fake.address, "metrics": address})
        stack.enter_context(no_diagnosis())  # which looks at these addresses, too
        yield await stack.enter_async_context(serving_config(config))


def sending(*pieces: bytes, pause_s: float = 0.0) -> Answer:
    """A server that answers with these bytes, whatever it is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
PACKED = gzip.compress(b"nv_packed 1\n")
BOMB = gzip.compress(b"nv_bomb 1\n" * 100_000)


def measured(body: bytes, *headers: bytes) -> Answer:
    lines = b"".join(header + b"\r\n" for header in headers)
    return sending(OK + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(silent, id="silent"),
        pytest.param(closing, id="closes"),
        pytest.param(web_page(), id="a web page with status 200"),
        pytest.param(sending(b"HTTP/1.1 500 Oops\r\n\r\nnv_x 1\n"), id="an error"),
        pytest.param(sending(b"\x00\x00\x18\x04" + bytes(14)), id="the gRPC port"),
        pytest.param(measured(b"nv_x 1\n" * 20_000), id="too large"),
        pytest.param(
            sending(OK + b"\r\n", *[b"nv_x 1\n"] * 100, pause_s=0.05), id="a byte now and then"
        ),
        pytest.param(
            sending(OK + b"Content-Length: 100\r\n\r\nnv_x 1\nnv_y 12"), id="cut off in a line"
        ),
        pytest.param(measured(BOMB, b"Content-Encoding: gzip"), id="a bomb"),
        pytest.param(measured(PACKED[:-9], b"Content-Encoding: gzip"), id="damaged gzip"),
    ],
)
async def test_one_bad_page_costs_the_others_nothing(bad: Answer) -> None:
    async with (
        listening(triton_metrics()) as good_address,
        listening(bad) as bad_address,
        scraped({"good": good_address, "bad": bad_address}) as gateway,
    ):
        began = time.monotonic()
        reply = await gateway.ops("/metrics/fleet")
        assert time.monotonic() - began < 5
        lines = reply.body.decode().splitlines()
        assert reply.status == 200
        assert GOOD in lines
        assert 'triton_gateway_fleet_scrape_up{server="good"} 1' in lines
        assert 'triton_gateway_fleet_scrape_up{server="bad"} 0' in lines
        assert not [line for line in lines if line.startswith("nv_") and 'server="bad"' in line]


async def test_a_page_may_be_compressed_and_need_not_say_how_long_it_is() -> None:
    async with (
        listening(measured(PACKED, b"Content-Encoding: gzip")) as packed,
        listening(sending(OK + b"\r\nnv_whole 1\nnv_cut 12")) as unmeasured,
        scraped({"packed": packed, "unmeasured": unmeasured}) as gateway,
    ):
        page = (await gateway.ops("/metrics/fleet")).body.decode()
        assert 'nv_packed{server="packed"} 1\n' in page
        assert 'nv_whole{server="unmeasured"} 1\n' in page
        assert "nv_cut" not in page  # it may be half a number


async def test_who_asks_at_the_same_time_shares_one_scrape() -> None:
    asked = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.1)
        await triton_metrics()(reader, writer)

    async with listening(slow) as address, scraped({"good": address}) as gateway:
        replies = await asyncio.gather(*(gateway.ops("/metrics/fleet") for _ in range(5)))
        assert asked == 1
        assert all(GOOD in reply.body.decode() for reply in replies)
