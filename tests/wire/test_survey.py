"""Addresses are told to belong to one process, or to several, from their statistics."""

import asyncio
import itertools
import time
from typing import Any

import pytest

from gateway.upstream.diagnose import diagnose
from gateway.upstream.findings import Finding, Target
from gateway.upstream.survey import survey
from tests.fakes import ports
from tests.fakes.model import FakeModel, model_config
from tests.fakes.proxy import HOST, TcpProxy
from tests.fakes.triton import FakeTriton


class CountingTriton(FakeTriton):
    """A scripted Triton whose models have taken some time, and take more with every question."""

    spent_ns = 0

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        reply = await super().ModelStatistics(request, context)
        self.spent_ns += 1
        for row in reply.model_stats:
            row.inference_stats.success.ns = self.spent_ns
        return reply


def counting(spent_ns: int) -> CountingTriton:
    fake = CountingTriton(FakeModel(model_config("one")))
    fake.spent_ns = spent_ns
    return fake


async def examine(one: int | None = None, **addresses: str) -> list[Finding]:
    """Survey these servers; version `one` of the model `one` is pinned as its default."""
    targets = {name: Target(address) for name, address in addresses.items()}
    found = await asyncio.gather(*(diagnose(t, clock=time.monotonic) for t in targets.values()))
    return await survey(
        targets,
        dict(zip(targets, found, strict=True)),
        clock=time.monotonic,
        default_versions={"one": one} if one else {},
    )


async def test_one_process_behind_two_addresses_is_found() -> None:
    async with counting(1000) as one, counting(900_000) as other:
        proxy = TcpProxy()
        await proxy.start(one.proxy.port)
        found = await examine(a=one.address, b=f"{HOST}:{proxy.port}", c=other.address)
        await proxy.close()
    [finding] = found
    assert finding.code == "same-process"
    assert finding.message.startswith("a and b are one Triton")


async def test_several_processes_behind_one_address_are_found() -> None:
    async with counting(1000) as one, counting(2000) as other:
        turns = itertools.cycle((one, other))

        async def balance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port = next(turns).proxy.port
            answers, target = await asyncio.open_connection(HOST, port)
            await asyncio.wait(
                [_pump(reader, target), _pump(answers, writer)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            target.transport.abort()

        async with ports.listening(balance) as address:
            [finding] = await examine(a=address)
    assert finding.code == "several-servers"


async def test_a_model_that_is_loaded_meanwhile_does_not_make_two_of_one() -> None:
    async with counting(1000) as one:
        target = {"a": Target(one.address)}
        found = {"a": await diagnose(target["a"], clock=time.monotonic)}
        one.models["late"] = FakeModel(model_config("late"))
        assert await survey(target, found, clock=time.monotonic) == []


@pytest.mark.parametrize(("pinned", "codes"), [(1, []), (9, ["default-version"])])
async def test_a_pinned_version_is_looked_for_on_all_servers(pinned: int, codes: list[str]) -> None:
    async with counting(1000) as one:
        found = await examine(one=pinned, a=one.address, b=f"{HOST}:1")
    assert [finding.code for finding in found] == codes


async def test_where_no_server_answers_no_version_is_missed() -> None:
    assert await examine(one=9, a=f"{HOST}:1") == []


async def test_server_that_cannot_be_reached_is_left_out() -> None:
    async with counting(1000) as one:
        assert await examine(a=one.address, b=f"{HOST}:1") == []


def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> "asyncio.Task[None]":
    async def pump() -> None:
        while data := await reader.read(65536):
            writer.write(data)

    return asyncio.get_running_loop().create_task(pump())
