"""Clients that send or read slowly, and a gateway that goes down before they have their answer."""

import asyncio
import json
import signal
from pathlib import Path

from gateway.edge.receive import READ_BUFFER_BYTES
from tests.clients import Connection, infer, request, tensor
from tests.fakes.triton import FakeTriton
from tests.serving import serving, until
from tests.wire.test_process import exit_code, process, started

LARGE_FLOATS = 4_000_000


async def test_the_clients_time_runs_while_its_body_arrives(fake: FakeTriton) -> None:
    """A trickle renews the wait between two pieces, but not the time for the whole request."""
    async with serving({"a": fake}) as gateway, await Connection.open(gateway.port) as client:
        began_s = asyncio.get_running_loop().time()
        body = tensor(1.5)
        client.send(infer(X_Request_Timeout_Ms="300")[: -len(body)])
        for _ in range(5):
            client.send(body[:1])
            await asyncio.sleep(0.05)
        reply = await client.reply()
        assert reply.status == 504
        assert reply.error == "the deadline of the request has passed"
        assert 0.3 <= asyncio.get_running_loop().time() - began_s < 2
        assert fake.infer_started == 0


async def test_a_client_that_stops_reading_is_cut_off(fake: FakeTriton) -> None:
    """Its answer would stay in memory for ever."""
    async with (
        serving({"a": fake}, api={"body_timeout_s": 0.2}) as gateway,
        await Connection.open(gateway.port, receive_buffer_bytes=4096) as client,
    ):
        inputs = [
            {
                "name": "IN",
                "datatype": "FP32",
                "shape": [LARGE_FLOATS],
                "parameters": {"binary_data_size": 4 * LARGE_FLOATS},
            }
        ]
        asked = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        head = json.dumps(asked).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        body = head + bytes(4 * LARGE_FLOATS)
        client.send(request("POST", "/v2/models/echo/infer", body, length))
        await until(lambda: gateway.api.in_flight == 1)
        await until(lambda: gateway.idle)
        assert gateway.events("request")[-1]["outcome"] == "client_gone"
        assert gateway.tracebacks == []


async def test_what_the_grace_time_cuts_off_is_told(fake: FakeTriton, tmp_path: Path) -> None:
    """The gateway is to blame, not the client."""
    gateway = process(fake, tmp_path, shutdown={"grace_s": 0.3})
    try:
        client = await Connection.open((await started(gateway)).api_port)
        fake.models["echo"].hang()
        client.send(infer())
        await fake.until(lambda: fake.infer_started == 1)
        gateway.signal(signal.SIGTERM)
        reply = await client.reply()
        assert (reply.status, reply.error) == (503, "the gateway was shut down")
        assert await client.ended()
        assert await exit_code(gateway, 3.0) == 0
        events = gateway.events()
        assert next(e for e in events if e["event"] == "request")["outcome"] == "shutdown"
        assert events[-1]["left_behind"] == 1
    finally:
        await asyncio.to_thread(gateway.stop)
        client.close()


async def test_bodies_around_the_size_of_the_buffer_arrive_whole(fake: FakeTriton) -> None:
    """A body that is waited for as a whole must fit, or reading stops before all of it is there."""
    async with serving({"a": fake}) as gateway:

        async def send(extra_bytes: int) -> int:
            floats = (READ_BUFFER_BYTES + extra_bytes) // 4
            inputs = [
                {
                    "name": "IN",
                    "datatype": "FP32",
                    "shape": [floats],
                    "parameters": {"binary_data_size": 4 * floats},
                }
            ]
            asked = json.dumps(
                {"inputs": inputs, "parameters": {"binary_data_output": True}}
            ).encode()
            length = {"Inference-Header-Content-Length": str(len(asked))}
            data = request("POST", "/v2/models/echo/infer", asked + bytes(4 * floats), length)
            async with await Connection.open(gateway.port) as client:
                return (await client.ask(data)).status

        sizes = [-2_000_000, -1_000_000, -200, 0, 200, 1_000_000, 4_000_000, 5_000_000] * 2
        assert set(await asyncio.gather(*map(send, sizes))) == {200}
