"""Servers whose repository is slow to list: every call but inference waits meanwhile."""

import asyncio
from pathlib import Path

import pytest
import tritonclient.grpc.aio as grpcclient

from tests.chaos.fakes import NarrowTriton, gateway_before, narrow
from tests.chaos.fleet import server_rows
from tests.chaos.load import Load, echo

QUICK = {"statistics_interval_s": 0.5, "statistics_timeout_s": 0.5}


async def list_repository(fake: NarrowTriton) -> None:
    """Be somebody else who lists the repository."""
    async with grpcclient.InferenceServerClient(fake.address) as client:
        await client.get_model_repository_index()


@pytest.mark.parametrize(
    ("list_s", "lists", "fleet"),
    [
        # With the quick probes three of them take 3 s; two lists one after the other take longer.
        pytest.param(2.0, 1, QUICK, id="short"),
        pytest.param(4.0, 10, {"index_interval_s": 5.0}, id="long", marks=pytest.mark.accept),
    ],
)
async def test_a_slow_repository_ejects_nobody(
    folder: Path, list_s: float, lists: int, fleet: dict[str, float]
) -> None:
    fakes = [narrow(name) for name in ("a", "b", "c")]
    for fake in fakes:
        fake.delays_s["RepositoryIndex"] = list_s
    async with gateway_before(fakes, folder, fleet=fleet) as gateway:
        async with Load(gateway.api_port, [echo()]) as load:
            for _ in range(lists):
                await asyncio.gather(*(list_repository(fake) for fake in fakes))
            rows = await asyncio.to_thread(server_rows, gateway)
        assert load.failures() == []
        assert all(row["up"] for row in rows.values()), rows
        assert (await asyncio.to_thread(gateway.fleet))["breakers"] == []
        assert [event for event in gateway.events() if event["event"] == "server down"] == []
    assert all(fake.asked["echo"] > len(load.asked) / 5 for fake in fakes)
    assert all(fake.calls["RepositoryIndex"] > lists for fake in fakes)
