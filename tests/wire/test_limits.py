"""What callers may take of the gateway and send through it: headers, bytes, time."""

import asyncio

import pytest

from tests.clients import Connection, infer, request, tensor
from tests.fakes.triton import FakeTriton
from tests.serving import SHED_TIMES, serving, until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_trace_context_reaches_the_server_and_nothing_that_was_not_allowed(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}) as gateway:
        given = {"traceparent": TRACE, "tracestate": "a=b", "X_Note": "no", "grpc_timeout": "1n"}
        assert (await gateway.infer(**given)).status == 200
    (metadata,) = fake.metadata
    assert (metadata["traceparent"], metadata["tracestate"]) == (TRACE, "a=b")
    assert "x-note" not in metadata


HOSTILE = (
    ("X-Note", b"caf\xe9"),
    ("X-Note", b"\x01"),
    ("X-Note", b"a\tb"),
    ("X-NOTE", b"upper"),
    ("x-blob-bin", b"not base64!"),
    ("grpc-timeout", b"1n"),
    ("grpc-status", b"0"),
    ("te", b"gzip"),
    ("x-forwarded-for", b"10.0.0.1, " * 200),
    ("X-Note", b"x" * 20_000),
)


@pytest.mark.parametrize(("name", "value"), HOSTILE)
async def test_no_header_of_a_caller_makes_its_call_invalid(
    fake: FakeTriton, name: str, value: bytes
) -> None:
    async with serving({"a": fake}, api={"forward_headers": ["X-Note"]}) as gateway:
        data = infer().replace(
            b"Host: test\r\n", b"Host: test\r\n%b: %b\r\n" % (name.encode(), value)
        )
        reply = await gateway.ask(data)
        assert reply.status in (200, 400)
        if reply.status == 200:
            assert (
                set(fake.metadata[-1]) & {"x-blob-bin", "grpc-status", "x-forwarded-for"} == set()
            )
        assert (await gateway.infer()).status == 200
        assert gateway.tracebacks == []


async def test_a_header_that_cannot_travel_is_named_in_the_log(fake: FakeTriton) -> None:
    async with serving({"a": fake}, api={"forward_headers": ["X-Note"]}) as gateway:
        assert (await gateway.infer(X_Note="caf\xe9")).status == 200
        assert gateway.events("request")[-1]["dropped_headers"] == ["x-note"]
    assert "x-note" not in fake.metadata[-1]


async def test_bodies_beyond_the_room_for_all_of_them_are_refused_unread(fake: FakeTriton) -> None:
    limits = {"max_body_bytes": 10_000, "max_inbound_bytes": 15_000}
    async with serving({"a": fake}, api=limits) as gateway:
        fake.models["echo"].hang()
        body = tensor(*[0.5] * 1800)  # 8 kB
        assert 7_500 < len(body) <= 10_000
        first = asyncio.create_task(gateway.ask(infer(body=body)))
        await fake.until(lambda: fake.infer_started == 1)
        async with await Connection.open(gateway.port) as client:
            client.send(infer(body=body)[: -len(body)])  # the head is enough
            reply = await client.reply()
        assert reply.status == 503
        assert reply.headers["retry-after"] in SHED_TIMES
        assert reply.error == "the gateway is busy with other large requests"
        chunked = (
            request("POST", "/v2/models/echo/infer", b"", {"Transfer-Encoding": "chunked"})
            + b"".join(b"%x\r\n%b\r\n" % (len(body), body) for _ in range(1))
            + b"0\r\n\r\n"
        )
        assert (await gateway.ask(chunked)).status == 503
        fake.models["echo"].release()
        assert (await first).status == 200
        assert (await gateway.ask(infer(body=body))).status == 200
        assert gateway.api._inbound.held == 0


async def test_room_is_given_back_when_a_body_does_not_come_to_its_end(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        for leave in (Connection.close, Connection.reset):
            client = await Connection.open(gateway.port)
            client.send(infer()[:-5])
            await until(lambda: gateway.api._inbound.held > 0)
            leave(client)
            await until(lambda: gateway.api._inbound.held == 0)


@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod"])
async def test_a_client_that_sends_no_whole_request_is_shown_out(
    fake: FakeTriton, sent: bytes
) -> None:
    async with (
        serving({"a": fake}, api={"header_timeout_s": 0.1}) as gateway,
        await Connection.open(gateway.port) as client,
    ):
        client.send(sent)
        assert (await client.reply()).status == 408
        assert await client.ended()


async def test_the_time_for_a_head_begins_with_its_first_byte(fake: FakeTriton) -> None:
    async with (
        serving({"a": fake}, api={"header_timeout_s": 0.2}) as gateway,
        await Connection.open(gateway.port) as client,
    ):
        fake.models["echo"].delay_s = 0.3
        assert (await client.ask(infer())).status == 200  # the answer may take longer
        await asyncio.sleep(0.3)  # so may the pause between two requests
        assert (await client.ask(infer())).status == 200
        client.send(b"GET /v2 HT")
        assert (await client.reply()).status == 408
