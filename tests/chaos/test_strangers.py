"""Servers that are not what they were taken for."""

import asyncio
from pathlib import Path

from tests.chaos.fakes import NarrowTriton, gateway_before, narrow
from tests.chaos.fleet import server_rows, version_row
from tests.chaos.load import Load, echo
from tests.fakes.model import FakeModel, model_config
from tests.gateways import GatewayProcess, configuration

QUICK = {"statistics_interval_s": 0.2}


async def test_another_signature_is_left_out_and_named(folder: Path) -> None:
    fakes = [narrow(name, "echo", "other") for name in ("a", "b", "c")]
    fakes[0].models["echo"] = FakeModel(model_config("echo", inputs=[("IN", "FP64", [-1])]))
    async with gateway_before(fakes, folder, fleet=QUICK) as gateway:
        async with Load(gateway.api_port, [echo("echo"), echo("other")]) as load:
            await load.sent(160)
        row = version_row(gateway, "echo")
        assert row["servers"] == ["b", "c"]
        assert row["left_out"] == {"a": "its signature differs from the majority's in inputs"}
        assert version_row(gateway, "other")["servers"] == ["a", "b", "c"]
        assert load.failures() == []
    assert fakes[0].asked["echo"] == 0
    assert fakes[0].asked["other"] > 15


async def test_a_stranger_at_a_known_address_gets_nothing_and_is_named(folder: Path) -> None:
    async with narrow("a") as a, narrow("b") as b, narrow("c") as c:
        fakes = {"a": a, "b": b, "c": c}
        config = configuration({name: f.address for name, f in fakes.items()}, fleet=QUICK)
        for row in config["servers"]:
            row["expect"] = row["name"]
        gateway = GatewayProcess(config, folder)
        try:
            await asyncio.to_thread(gateway.start)
            async with Load(gateway.api_port, [echo()]) as load:
                await load.sent(50)
                await change_owner(a)
                before = a.asked["echo"]
                await load.sent(200)
                rows = await asyncio.to_thread(server_rows, gateway)
                assert a.asked["echo"] == before
                await a.kill()
                a.server_id = "a"
                await a.start()
                await load.until(lambda: a.asked["echo"] > before + 5, within_s=5.0)
            assert load.failures() == []
        finally:
            await asyncio.to_thread(gateway.stop)
    assert not rows["a"]["up"]
    said = "another server answers here: its id is 'somebody', expected 'a'"
    assert rows["a"]["reason"] == said
    assert rows["b"]["up"]


async def change_owner(fake: NarrowTriton) -> None:
    """Let somebody else's server take the address over."""
    await fake.kill()
    fake.server_id = "somebody"
    await fake.start()
