"""The client leaves at each stage. The fixture checks that nothing is left of it."""

import asyncio
from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.cancel.conftest import SAFE, UNSAFE, WARM_UP_CALLS
from tests.clients import Connection, chunked, infer, tensor
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, until

LARGE_BYTES = 40_000_000

Leave = Callable[[Connection], None]
leaving = pytest.mark.parametrize("leave", [Connection.close, Connection.reset], ids=["FIN", "RST"])


async def settled(gateway: Serving, count: int) -> None:
    """Wait until so many requests have been settled since the warm-up."""
    await until(lambda: len(gateway.events("request")) == WARM_UP_CALLS + count)


def outcomes(gateway: Serving) -> list[str]:
    """What became of the requests since the warm-up."""
    return [event["outcome"] for event in gateway.events("request")[WARM_UP_CALLS:]]


@leaving
@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod", infer()[:60]])
async def test_during_the_headers(gateway: Serving, leave: Leave, sent: bytes) -> None:
    connection = await Connection.open(gateway.port)
    connection.send(sent)
    await asyncio.sleep(0.02)
    leave(connection)
    assert (await gateway.infer()).status == 200
    await settled(gateway, 1)
    assert outcomes(gateway) == ["ok"]


@leaving
@pytest.mark.parametrize(
    "sent",
    [
        infer()[:-10],
        infer(body=chunked(tensor(1.5)[:9], end=False), Transfer_Encoding="chunked"),
        infer(body=b"", Content_Length="1000000"),
    ],
    ids=["length", "chunked", "nothing"],
)
async def test_during_the_body(gateway: Serving, leave: Leave, sent: bytes) -> None:
    connection = await Connection.open(gateway.port)
    connection.send(sent)
    await until(lambda: gateway.api.in_flight == 1)
    leave(connection)
    await settled(gateway, 1)
    assert outcomes(gateway) == ["client_gone"]
    assert gateway.api.in_flight == 0


@leaving
async def test_while_the_call_is_in_flight(
    gateway: Serving, fake: FakeTriton, leave: Leave
) -> None:
    fake.models["echo"].hang()
    connection = await Connection.open(gateway.port)
    connection.send(infer())
    await fake.until(lambda: fake.infer_started == WARM_UP_CALLS + 1)
    assert gateway.held() == (1, 1, 0)
    leave(connection)
    await settled(gateway, 1)
    assert outcomes(gateway) == ["client_gone"]
    assert gateway.api.in_flight == 0
    if fake.version == SAFE:
        await fake.until(lambda: fake.infer_cancelled == 1)
        await until(lambda: gateway.held() == (0, 0, 0))
    else:
        assert gateway.held() == (1, 1, 1)
        row = await gateway.fleet()
        assert (row["in_flight_calls"], row["in_flight_rows"], row["detached_calls"]) == (1, 1, 1)
        fake.models["echo"].release()
        await until(lambda: gateway.held() == (0, 0, 0))
        assert fake.infer_finished == WARM_UP_CALLS + 1


@leaving
async def test_at_the_moment_the_answer_arrives(
    gateway: Serving, fake: FakeTriton, leave: Leave
) -> None:
    fake.models["echo"].delay_s = 0.02
    for pause_s in (0.015, 0.018, 0.02, 0.021, 0.022, 0.023, 0.025, 0.03):
        connection = await Connection.open(gateway.port)
        connection.send(infer())
        await asyncio.sleep(pause_s)
        leave(connection)
    await settled(gateway, 8)
    assert set(outcomes(gateway)) <= {"ok", "client_gone"}


@leaving
async def test_while_an_answer_is_written_that_nobody_reads(
    gateway: Serving, fake: FakeTriton, leave: Leave
) -> None:
    fake.models["echo"].reply = lambda _: pb.ModelInferResponse(
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name="OUT", datatype="UINT8", shape=[LARGE_BYTES]
            )
        ],
        raw_output_contents=[bytes(LARGE_BYTES)],
    )
    body = tensor(1.5)[:-1] + b',"parameters":{"binary_data_output":true}}'
    connection = await Connection.open(gateway.port, receive_buffer_bytes=4096)
    connection.send(infer(body=body))
    await fake.until(lambda: fake.infer_finished == WARM_UP_CALLS + 1)
    await until(lambda: gateway.held() == (0, 0, 0))  # the server is free long before the client
    await asyncio.sleep(0.1)
    assert gateway.api.in_flight == 1
    assert (await gateway.infer("nope")).status == 404  # and nobody else waits for it
    leave(connection)
    if leave is Connection.close:
        connection.reset()  # a FIN alone is no reason to stop: it may still read
    await settled(gateway, 2)
    assert outcomes(gateway) == ["not_found", "client_gone"]


async def test_between_two_requests(gateway: Serving) -> None:
    for leave in (Connection.close, Connection.reset):
        connection = await Connection.open(gateway.port)
        assert (await connection.ask(infer())).status == 200
        leave(connection)
    await settled(gateway, 2)
    assert outcomes(gateway) == ["ok", "ok"]


@leaving
async def test_with_more_requests_sent_ahead(
    gateway: Serving, fake: FakeTriton, leave: Leave
) -> None:
    fake.models["echo"].hang()
    connection = await Connection.open(gateway.port)
    connection.send(infer() * 3)
    await fake.until(lambda: fake.infer_started == WARM_UP_CALLS + 1)
    leave(connection)
    await settled(gateway, 1)
    assert outcomes(gateway) == ["client_gone"]
    assert fake.infer_started == WARM_UP_CALLS + 1


@leaving
async def test_the_calls_of_others_go_on(gateway: Serving, fake: FakeTriton, leave: Leave) -> None:
    fake.models["echo"].hang()
    leavers = [await Connection.open(gateway.port) for _ in range(10)]
    stayers = [await Connection.open(gateway.port) for _ in range(10)]
    for pair in zip(leavers, stayers, strict=True):
        for connection in pair:
            connection.send(infer())
    await fake.until(lambda: fake.infer_started == WARM_UP_CALLS + 20)
    for connection in leavers:
        leave(connection)
    await settled(gateway, 10)
    fake.models["echo"].release()
    for connection in stayers:
        assert (await connection.reply()).status == 200
        connection.close()
    await settled(gateway, 20)
    assert sorted(outcomes(gateway)) == ["client_gone"] * 10 + ["ok"] * 10


# --- deadlines


async def test_a_deadline_that_expires(gateway: Serving, fake: FakeTriton) -> None:
    fake.models["echo"].hang()
    reply = await gateway.infer(X_Request_Timeout_Ms="100")
    assert reply.status == 504
    assert "deadline" in reply.error.lower()
    if fake.version == SAFE:
        await fake.until(lambda: fake.infer_cancelled == 1)
    else:
        assert gateway.held() == (1, 1, 1)
        assert (await gateway.fleet())["detached_calls"] == 1


async def test_the_connection_of_an_expired_request_is_used_again(
    gateway: Serving, fake: FakeTriton
) -> None:
    async with await Connection.open(gateway.port) as connection:
        for _ in range(3):
            fake.models["echo"].hang()
            assert (await connection.ask(infer(X_Request_Timeout_Ms="50"))).status == 504
            fake.models["echo"].release()
            assert (await connection.ask(infer())).status == 200


async def test_a_deadline_of_a_millisecond(gateway: Serving, fake: FakeTriton) -> None:
    replies = [await gateway.infer(X_Request_Timeout_Ms="1") for _ in range(30)]
    assert {reply.status for reply in replies} <= {200, 504}


# --- many


@pytest.mark.parametrize("hang_ups", [300])
async def test_a_small_storm(gateway: Serving, fake: FakeTriton, hang_ups: int) -> None:
    """Clients leave at any moment of a 10 ms call, others have 1 to 20 ms for it.

    A server on which nothing may be cancelled can become full of what they leave behind.
    """
    fake.models["echo"].delay_s = 0.01
    limit = asyncio.Semaphore(32)

    async def hang_up(number: int) -> None:
        async with limit:
            connection = await Connection.open(gateway.port)
            connection.send(infer())
            await asyncio.sleep(number % 16 / 1000)
            (Connection.reset if number % 2 else Connection.close)(connection)

    async def expire(number: int) -> None:
        async with limit:
            reply = await gateway.infer(X_Request_Timeout_Ms=str(number % 20 + 1))
            assert reply.status in ((200, 504, 503) if fake.version == UNSAFE else (200, 504))

    await asyncio.gather(
        *(hang_up(number) for number in range(hang_ups)),
        *(expire(number) for number in range(hang_ups)),
    )
    await until(lambda: gateway.idle)
    assert (await gateway.infer()).status == 200
