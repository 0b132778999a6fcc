"""The API listener as clients meet it: connections, bodies, headers."""

import asyncio
import json
import re

import pytest

from gateway.edge import receive
from tests.clients import Connection, ask, chunked, infer, request, tensor
from tests.fakes.triton import FakeTriton
from tests.serving import Serving, serving

GOOD = infer()
EXPECTING = {"Expect": "100-continue"}


# --- connections


async def test_a_connection_is_kept_for_the_next_request(gateway: Serving) -> None:
    async with await Connection.open(gateway.port) as connection:
        for _ in range(3):
            for data, status in (
                (GOOD, 200),
                (infer("nope"), 404),
                (request("GET", "/v2/health/live"), 200),
                (infer(body=b"{"), 400),
                (request("PUT", "/v2"), 405),
                (request("GET", "/nothing"), 404),
            ):
                assert (await connection.ask(data)).status == status


async def test_requests_sent_ahead_are_answered_in_order(gateway: Serving) -> None:
    async with await Connection.open(gateway.port) as connection:
        connection.send(GOOD + infer("nope") + infer(X_Request_Id="third"))
        assert [(await connection.reply()).status for _ in range(2)] == [200, 404]
        assert (await connection.reply()).headers["x-request-id"] == "third"


@pytest.mark.parametrize(
    "data",
    [
        infer(Connection="close"),
        GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["Connection: close", "HTTP/1.0"],
)
async def test_a_connection_is_closed_where_the_client_wants_it(
    gateway: Serving, data: bytes
) -> None:
    async with await Connection.open(gateway.port) as connection:
        assert (await connection.ask(data)).status == 200
        assert await connection.ended()


async def test_an_idle_connection_is_closed_after_its_time(fake: FakeTriton) -> None:
    async with (
        serving({"a": fake}, api={"keepalive_timeout_s": 0.2}) as gateway,
        await Connection.open(gateway.port) as connection,
    ):
        assert (await connection.ask(GOOD)).status == 200
        assert await connection.ended()


@pytest.mark.parametrize(
    "data",
    [
        b"complete garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: t\r\nBad Header: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v2/" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: t\r\nX-Long: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % n for n in range(300)) + b"\r\n",
    ],
    ids=["garbage", "version", "name", "length", "two lengths", "line", "header", "headers"],
)
async def test_what_is_not_http_is_refused_in_the_same_form(gateway: Serving, data: bytes) -> None:
    async with await Connection.open(gateway.port) as connection:
        reply = await connection.ask(data)
        assert reply.status == 400
        assert reply.error == "malformed HTTP request"
        assert await connection.ended()
    assert (await gateway.ask(GOOD)).status == 200


async def test_head_is_no_get(gateway: Serving) -> None:
    async with await Connection.open(gateway.port) as connection:
        connection.send(request("HEAD", "/v2/health/live"))
        assert (await connection.reply(head_only=True)).status == 405


# --- bodies


@pytest.mark.parametrize(
    "pieces",
    [(tensor(1.5),), (tensor(1.5)[:20], tensor(1.5)[20:]), tuple(bytes([b]) for b in tensor(1.5))],
    ids=["one", "two", "bytes"],
)
async def test_a_chunked_body_is_one_body(gateway: Serving, pieces: tuple[bytes, ...]) -> None:
    reply = await gateway.ask(infer(body=chunked(*pieces), Transfer_Encoding="chunked"))
    assert reply.json["outputs"][0]["data"] == [1.5]


@pytest.fixture
async def small(fake: FakeTriton) -> object:
    async with serving({"a": fake}, api={"max_body_bytes": 1000, "body_timeout_s": 0.3}) as gateway:
        yield gateway
        assert gateway.tracebacks == []
        assert gateway.idle


TOO_LARGE = "the request body is larger than 1000 bytes"


@pytest.mark.parametrize("headers", [{}, EXPECTING], ids=["", "Expect"])
async def test_a_length_over_the_limit_is_refused_before_the_body(
    small: Serving, headers: dict[str, str]
) -> None:
    async with await Connection.open(small.port) as connection:
        connection.send(request("POST", "/v2/models/echo/infer", b"", {"Content-Length": "1001"}))
        reply = await connection.reply()
        assert (reply.status, reply.error) == (413, TOO_LARGE)
        assert reply.headers["connection"] == "close"
        connection.send(b" " * 1001)  # a client that sends it all the same can read the answer
        assert await connection.ended()


async def test_a_length_at_the_limit_is_read(small: Serving) -> None:
    body = tensor(1.5)
    assert (await small.ask(infer(body=body + b" " * (1000 - len(body))))).status == 200
    assert (await small.ask(infer(body=body + b" " * (1001 - len(body))))).status == 413


async def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(small: Serving) -> None:
    async with await Connection.open(small.port) as connection:
        connection.send(infer(body=b"", Transfer_Encoding="chunked"))
        connection.send(chunked(b" " * 600, end=False))
        await asyncio.sleep(0.02)
        connection.send(chunked(b" " * 600, end=False))
        reply = await connection.reply()
        assert (reply.status, reply.error) == (413, TOO_LARGE)
        assert reply.headers["connection"] == "close"
        connection.send(chunked(b" " * 5000))
        assert await connection.ended()


async def test_a_whole_chunked_body_over_the_limit_is_refused(small: Serving) -> None:
    data = infer(body=chunked(b" " * 600, b" " * 600), Transfer_Encoding="chunked")
    assert (await small.ask(data)).status == 413


@pytest.mark.parametrize(
    "begun",
    [
        infer()[:-5],
        infer(body=chunked(b'{"inputs"', end=False), Transfer_Encoding="chunked"),
        request("POST", "/v2/models/echo/infer", b"", {"Content-Length": "10"}),
    ],
    ids=["part", "chunk", "nothing"],
)
async def test_a_body_that_stalls_is_given_up(small: Serving, begun: bytes) -> None:
    async with await Connection.open(small.port) as connection:
        reply = await connection.ask(begun)
        assert reply.status == 408
        assert reply.error == "no part of the request body arrived for 0.3 s"
        assert reply.headers["connection"] == "close"


UNSENT = request("POST", "/v2/models/echo/infer", b"", {"Content-Length": "50000000"})


async def test_a_client_that_goes_on_sending_can_read_the_answer(small: Serving) -> None:
    """A reset, sent because data is left unread, would overtake the answer."""
    async with await Connection.open(small.port) as connection:
        connection.send(UNSENT + bytes(20_000_000))
        await connection.writer.drain()
        reply = await connection.reply()
        assert (reply.status, reply.error) == (413, TOO_LARGE)
        assert await connection.ended()


@pytest.mark.parametrize(
    ("begun", "status"), [(infer()[:-5], 408), (UNSENT, 413)], ids=["stalled", "too large"]
)
async def test_a_connection_does_not_outlive_the_answer_that_ends_it(
    small: Serving, monkeypatch: pytest.MonkeyPatch, begun: bytes, status: int
) -> None:
    """Also when the client neither sends the rest nor leaves."""
    monkeypatch.setattr(receive, "_LINGER_PAUSE_S", 0.1)
    async with await Connection.open(small.port) as connection:
        assert (await connection.ask(begun)).status == status
        assert await connection.ended()  # the client learns it at once
        async with asyncio.timeout(4):  # less than the gateway waits for one that is still sending
            while small.connections:
                await asyncio.sleep(0.01)


async def test_a_client_that_never_stops_sending_is_cut_off(
    small: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "_LINGER_S", 0.3)
    async with await Connection.open(small.port) as connection:
        assert (await connection.ask(UNSENT)).status == 413
        async with asyncio.timeout(10):
            while small.connections:
                connection.send(bytes(10))
                await asyncio.sleep(0.01)


async def test_a_body_that_is_slow_but_moves_is_waited_for(small: Serving) -> None:
    async with await Connection.open(small.port) as connection:
        data = infer()
        head, body = data[: -len(tensor(1.5))], tensor(1.5)
        connection.send(head)
        for piece in (*(body[at : at + 1] for at in range(5)), body[5:]):
            await asyncio.sleep(0.08)  # together more than the gateway waits for one
            connection.send(piece)
        assert (await connection.reply()).status == 200


@pytest.mark.parametrize(
    "body", [b"zz\r\nxx\r\n0\r\n\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"-1\r\n\r\n"]
)
async def test_broken_chunks_are_refused(gateway: Serving, body: bytes) -> None:
    async with await Connection.open(gateway.port) as connection:
        reply = await connection.ask(infer(body=body, Transfer_Encoding="chunked"))
        assert reply.status == 400
        assert reply.error
        assert await connection.ended()


async def test_a_client_that_waits_for_permission_gets_it(gateway: Serving) -> None:
    async with await Connection.open(gateway.port) as connection:
        for _ in range(2):
            body = tensor(2.5)
            length = {"Content-Length": str(len(body))}
            connection.send(request("POST", "/v2/models/echo/infer", b"", EXPECTING | length))
            interim = await connection.reply()
            assert (interim.status, interim.headers) == (100, {})
            connection.send(body)
            reply = await connection.reply()
            assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.5])


async def test_an_empty_body_is_refused_as_a_body(gateway: Serving) -> None:
    assert (await gateway.ask(infer(body=b""))).status == 400
    assert (await gateway.ask(request("POST", "/v2/models/echo/infer"))).status == 400


# --- headers


async def test_a_callers_request_id_comes_back_and_is_logged(gateway: Serving) -> None:
    reply = await gateway.infer(X_Request_Id="my-id:1")
    assert reply.headers["x-request-id"] == "my-id:1"
    assert gateway.events("request")[-1]["request_id"] == "my-id:1"


@pytest.mark.parametrize("given_id", [None, "", "x" * 129, "a b", 'a"b', "caf\xe9"])
async def test_any_other_request_id_is_replaced(gateway: Serving, given_id: str | None) -> None:
    headers = {} if given_id is None else {"X_Request_Id": given_id}
    reply = await gateway.infer(**headers)
    made = reply.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    assert gateway.events("request")[-1]["request_id"] == made


async def test_every_answer_has_the_gateways_headers(gateway: Serving) -> None:
    for data in (GOOD, infer("nope"), request("GET", "/v2"), request("GET", "/x")):
        headers = (await gateway.ask(data)).headers
        assert headers["server"] == "triton-gateway"
        assert headers["x-request-id"]
        assert "server-timing" in headers


async def test_server_timing_tells_the_gateways_time_from_the_upstreams(
    gateway: Serving, fake: FakeTriton
) -> None:
    fake.models["echo"].delay_s = 0.05
    timing = (await gateway.infer()).headers["server-timing"]
    found = re.fullmatch(r"gateway;dur=([0-9.]+), upstream;dur=([0-9.]+)", timing)
    assert found
    own_ms, upstream_ms = map(float, found.groups())
    assert upstream_ms >= 50
    assert own_ms < 50
    timing = (await gateway.infer("nope")).headers["server-timing"]
    assert re.fullmatch(r"gateway;dur=[0-9.]+", timing)


async def test_a_client_may_say_how_long_it_waits(gateway: Serving, fake: FakeTriton) -> None:
    fake.models["echo"].delay_s = 5.0
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    reply = await gateway.infer(X_Request_Timeout_Ms="150")
    assert 0.15 <= loop.time() - began_s < 2
    assert reply.status == 504
    assert "deadline" in reply.error.lower()
    fake.models["echo"].delay_s = 0.0
    assert (await gateway.infer(X_Request_Timeout_Ms="5000")).status == 200


@pytest.mark.parametrize("given", ["", "0", "-5", "1.5", "soon", "1e3", "9" * 30])
async def test_a_timeout_that_is_no_number_is_refused(
    gateway: Serving, fake: FakeTriton, given: str
) -> None:
    reply = await gateway.infer(X_Request_Timeout_Ms=given)
    assert reply.status == 400
    assert "X-Request-Timeout-Ms" in reply.error
    assert fake.infer_started == 0


async def test_a_timeout_of_many_digits_is_refused(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        given = "0" * 19 + "1" + "9" * 5000
        assert (await gateway.infer(X_Request_Timeout_Ms=given)).status == 400


async def test_a_models_own_deadline_counts(fake: FakeTriton) -> None:
    fake.models["echo"].delay_s = 5.0
    async with serving({"a": fake}, models={"echo": {"deadline_s": 0.1}}) as gateway:
        assert (await gateway.infer()).status == 504
        assert (await gateway.infer(X_Request_Timeout_Ms="60000")).status == 504


async def test_a_header_that_is_not_utf_8_breaks_nothing(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        async with await Connection.open(gateway.port) as connection:
            data = infer(Inference_Header_Content_Length="caf\xe9")
            assert (await connection.ask(data)).status == 400
            assert (await connection.ask(GOOD)).status == 200
        assert len(gateway.events("request")) == 2
        assert gateway.tracebacks == []


async def test_two_gateways_in_one_process_do_not_meet(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as one, serving({"a": fake}) as other:
        assert (await ask(one.port, GOOD)).status == 200
        assert len(one.events("request")) == 1
        assert other.events("request") == []


async def test_the_log_has_one_line_a_request(gateway: Serving) -> None:
    await gateway.infer()
    await gateway.infer("nope")
    await gateway.ask(request("GET", "/v2/health/live"))
    lines = gateway.events("request")
    assert [(line["route"], line["status"], line["outcome"]) for line in lines] == [
        ("infer", 200, "ok"),
        ("infer", 404, "not_found"),
        ("live", 200, "ok"),
    ]
    assert lines[0]["model"] == "echo"
    assert "model" not in lines[1]
    assert json.dumps(lines[0]["stages_us"])
    passed = {"receive", "resolve", "decode", "pick", "send", "reply", "settle"}
    assert set(lines[0]["stages_us"]) == passed
