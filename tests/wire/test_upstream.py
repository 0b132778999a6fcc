"""Towards the servers: connections that are really separate, sizes, secrets, TLS."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests import clients
from tests.certificates import Authority, Pair
from tests.clients import Connection, infer, request, tensor
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import configuration
from tests.serving import Serving, environment, fake_triton, serving, serving_config, until

KEY_HEADER = "triton-grpc-protocol-inference-key"


def one_server(server: FakeTriton, **settings: Any) -> dict[str, Any]:
    """A configuration with one server that has more than a name and an address."""
    config = configuration({"a": server.address})
    config["servers"][0].update(settings)
    return config


# --- calls


@pytest.mark.usefixtures("undiagnosed")
async def test_three_hundred_slow_calls_share_four_connections_and_none_waits(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}, upstream={"channels": 4}) as gateway:
        fake.models["echo"].hang()
        asking = asyncio.gather(*(gateway.infer() for _ in range(300)))
        await fake.until(lambda: fake.infer_started == 300)
        states = gateway.watcher.states("a")
        assert [s["in_flight"] for s in states] == [75] * 4
        assert fake.proxy.accepted == fake.proxy.open_connections == 4
        assert len(fake.peers) == 4
        fake.models["echo"].release()
        assert {reply.status for reply in await asking} == {200}
        assert gateway.idle


@pytest.mark.usefixtures("undiagnosed")
async def test_the_number_of_connections_is_each_servers(fake: FakeTriton) -> None:
    async with serving_config(one_server(fake, channels=2)) as gateway:
        fake.models["echo"].hang()
        asking = asyncio.gather(*(gateway.infer() for _ in range(20)))
        await fake.until(lambda: fake.infer_started == 20)
        fake.models["echo"].release()
        await asking
        assert fake.proxy.accepted == 2


async def test_a_small_call_overtakes_a_large_one(gateway: Serving, fake: FakeTriton) -> None:
    large = 8_000_000
    fake.models["echo"].reply = lambda given: pb.ModelInferResponse(
        outputs=[pb.ModelInferResponse.InferOutputTensor(name="OUT", datatype="UINT8", shape=[1])],
        raw_output_contents=[b"\0" if len(given.raw_input_contents[0]) < large else b"\1"],
    )
    body = json.dumps(
        {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "UINT8",
                    "shape": [large],
                    "parameters": {"binary_data_size": large},
                }
            ]
        }
    ).encode()
    data = infer(body=body + bytes(large), Inference_Header_Content_Length=str(len(body)))
    await gateway.infer()
    replies = await asyncio.gather(*(gateway.ask(data) for _ in range(3)), gateway.infer())
    assert {reply.status for reply in replies} == {200}
    assert len(fake.peers) >= 2


async def test_the_version_the_gateway_chose_is_always_named(
    gateway: Serving, fake: FakeTriton
) -> None:
    await gateway.infer()
    assert fake.last_request.model_version == "1"
    assert fake.last_request.raw_input_contents == [b"\0\0\xc0?"]


async def test_a_restricted_server_gets_its_key_with_every_call(fake: FakeTriton) -> None:
    with environment(TRITON_KEY="sesame"):
        config = one_server(fake, metadata={KEY_HEADER: {"env": "TRITON_KEY"}})
        async with serving_config(config) as gateway:
            assert (await gateway.infer()).status == 200
    assert [given[KEY_HEADER] for given in fake.metadata] == ["sesame"]


async def test_the_key_of_a_server_is_in_no_log_and_on_no_page(fake: FakeTriton) -> None:
    fake.errors["ModelInfer"] = (grpc.StatusCode.INTERNAL, "boom")
    with environment(TRITON_KEY="sesame"):
        config = one_server(fake, metadata={KEY_HEADER: {"env": "TRITON_KEY"}})
        async with serving_config(config) as gateway:
            await gateway.infer()
            pages = [await gateway.ops(path) for path in ("/fleet", "/metrics")]
            assert all(b"sesame" not in page.body for page in pages)
            assert "sesame" not in json.dumps(gateway.events())


# --- sizes


async def test_an_answer_over_the_limit_is_a_bad_gateway_and_no_ejection(
    fake: FakeTriton,
) -> None:
    async with serving({"a": fake}, upstream={"max_reply_bytes": 10_000}) as gateway:
        fits, is_too_large = infer(body=tensor(*[0.5] * 2000)), infer(body=tensor(*[0.5] * 3000))
        assert (await gateway.ask(fits)).status == 200
        reply = await gateway.ask(is_too_large)
        assert reply.status == 502
        assert reply.error == "the answer of the model is larger than the gateway accepts"
        assert fake.infer_started == 2  # it is not asked for again
        assert gateway.up()
        assert (await gateway.ask(fits)).status == 200
        assert gateway.idle


async def test_answers_larger_than_the_librarys_default_pass(
    gateway: Serving, fake: FakeTriton
) -> None:
    size = 5_000_000
    fake.models["echo"].reply = lambda _: pb.ModelInferResponse(
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name="OUT", datatype="UINT8", shape=[size])
        ],
        raw_output_contents=[bytes(size)],
    )
    body = tensor(1.5)[:-1] + b',"parameters":{"binary_data_output":true}}'
    reply = await gateway.ask(infer(body=body))
    assert reply.status == 200
    assert len(reply.body) == size + int(reply.headers["inference-header-content-length"])


async def test_a_long_error_text_arrives_whole(gateway: Serving, fake: FakeTriton) -> None:
    text = "traceback " * 20_000
    fake.models["echo"].error = (grpc.StatusCode.INTERNAL, text)
    reply = await gateway.infer()
    assert (reply.status, reply.error) == (500, text)


# --- errors


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected inference input 'X' for model 'm'", 400),
        (grpc.StatusCode.INTERNAL, 'quote " newline \n percent % letter ä', 500),
        (grpc.StatusCode.UNIMPLEMENTED, "not supported", 501),
        (grpc.StatusCode.UNAVAILABLE, "Request timeout expired", 503),
        (grpc.StatusCode.NOT_FOUND, "no such row", 404),
        (grpc.StatusCode.ALREADY_EXISTS, "it exists", 400),
        (grpc.StatusCode.UNKNOWN, "who knows", 400),
        (grpc.StatusCode.CANCELLED, "cancelled by the model", 400),
    ],
)
async def test_what_triton_says_is_passed_on(
    gateway: Serving, fake: FakeTriton, code: grpc.StatusCode, text: str, status: int
) -> None:
    fake.models["echo"].error = (code, text)
    reply = await gateway.infer()
    assert (reply.status, reply.error) == (status, text)
    assert fake.infer_started == 1
    assert gateway.up()


async def test_no_error_tells_a_client_where_the_servers_are(fake: FakeTriton) -> None:
    told: list[str] = []
    port = fake.address.rpartition(":")[2]
    long = {"statistics_interval_s": 60.0}
    async with serving({"a": fake}, fleet=long, upstream={"max_reply_bytes": 1000}) as gateway:
        fake.models["echo"].drop = True
        told.append((await gateway.infer()).body.decode())
        fake.models["echo"].drop = False
        told.append((await gateway.ask(infer(body=tensor(*[0.0] * 1000)))).body.decode())
        await fake.kill()
        for _ in range(2):
            told += [(await gateway.infer()).body.decode()]
        for path in ("/v2", "/v2/models", "/v2/models/echo", "/v2/models/stats"):
            told += [(await gateway.ask(request("GET", path))).body.decode()]
        assert port in json.dumps(gateway.events())  # the operator's log does tell
    assert len(told) == 8
    for text in told:
        assert port not in text
        assert "127.0.0.1" not in text
        assert "ipv4" not in text


async def test_the_repository_index_does_not_tell_where_the_servers_are(fake: FakeTriton) -> None:
    async with serving({"a": fake}) as gateway:
        await fake.kill()
        await gateway.infer()
        reply = await gateway.ask(request("POST", "/v2/repository/index"))
    (entry,) = reply.json
    assert entry["state"] == "UNKNOWN"
    assert "127.0.0.1" not in entry["reason"]


async def test_a_connection_that_breaks_twice_is_a_bad_gateway() -> None:
    async with (
        fake_triton() as a,
        fake_triton() as b,
        fake_triton() as c,
        serving({"a": a, "b": b, "c": c}) as gateway,
    ):
        for server in (a, b, c):
            server.models["echo"].drop = True
        reply = await gateway.infer()
        assert reply.status == 502
        assert reply.error == "the connection to the server was lost during the request"
        assert sorted([a.infer_started, b.infer_started, c.infer_started]) == [0, 1, 1]
        assert gateway.idle


async def test_a_model_with_side_effects_is_not_asked_again() -> None:
    never = {"models": {"echo": {"idempotent": False}}}
    async with (
        fake_triton() as a,
        fake_triton() as b,
        serving({"a": a, "b": b}, **never) as gateway,
    ):
        a.models["echo"].drop = b.models["echo"].drop = True
        assert (await gateway.infer()).status == 502
        assert a.infer_started + b.infer_started == 1
        assert gateway.idle


async def test_a_connection_that_breaks_is_hidden_by_another_server() -> None:
    async with fake_triton() as a, fake_triton() as b, serving({"a": a, "b": b}) as gateway:
        a.models["echo"].drop = True
        while a.infer_started == 0:
            assert (await gateway.infer()).status == 200
        line = gateway.events("request")[-1]
        assert (line["attempts"], line["server"], line["outcome"]) == (2, "b", "ok")
        assert gateway.idle


async def test_a_server_that_loses_a_model_loses_no_request() -> None:
    async with fake_triton() as a, fake_triton() as b, serving({"a": a, "b": b}) as gateway:
        a.models["echo"].states["1"] = "UNLOADING"
        assert {(await gateway.infer()).status for _ in range(20)} == {200}
        assert a.infer_started == 1  # the one that found out
        assert b.infer_finished == 20


async def test_a_server_that_vanishes_loses_no_new_request() -> None:
    async with fake_triton() as a, fake_triton() as b, serving({"a": a, "b": b}) as gateway:
        await a.kill()
        assert {(await gateway.infer()).status for _ in range(20)} == {200}
        assert b.infer_finished == 20
        assert not gateway.up("a")


async def _answer_nonsense(_: bytes, __: Any) -> bytes:
    return b"\xff\xff\xff\xff"


async def test_an_answer_that_is_no_message_is_a_bad_gateway(fake: FakeTriton) -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(_answer_nonsense)
    service = "inference.GRPCInferenceService"
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"ModelInfer": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with serving({"a": fake}, fleet={"statistics_interval_s": 60.0}) as gateway:
            await fake.proxy.stop()
            await until(lambda: all(s["state"] != "ready" for s in gateway.watcher.states("a")))
            await fake.proxy.start(port)
            reply = await gateway.infer()
            assert reply.status == 502
            assert gateway.tracebacks == []
    finally:
        await server.stop(None)


# --- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.issue("server", server=True)


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("client", server=False)


@contextlib.asynccontextmanager
async def tls_triton(pair: Pair, *, client_ca: Path | None = None) -> AsyncIterator[FakeTriton]:
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.cert.read_bytes())],
        client_ca.read_bytes() if client_ca else None,
        client_ca is not None,
    )
    model = FakeModel(model_config("echo"))
    async with FakeTriton(model, credentials=credentials) as server:
        yield server


async def test_tls_to_a_server(authority: Authority, server_pair: Pair) -> None:
    async with tls_triton(server_pair) as server:
        config = one_server(server, tls={"ca_file": str(authority.ca)})
        async with serving_config(config) as gateway:
            assert (await gateway.infer()).status == 200
            assert (await gateway.fleet())["up"]


async def test_the_name_in_a_certificate_may_be_given(
    authority: Authority, server_pair: Pair
) -> None:
    async with tls_triton(server_pair) as server:
        for name, up in (("localhost", True), ("somebody.else", False)):
            tls = {"ca_file": str(authority.ca), "server_name": name}
            async with serving_config(one_server(server, tls=tls)) as gateway:
                assert gateway.up() is up


async def test_mutual_tls_to_a_server(
    authority: Authority, server_pair: Pair, client_pair: Pair
) -> None:
    async with tls_triton(server_pair, client_ca=authority.ca) as server:
        tls = {
            "ca_file": str(authority.ca),
            "cert_file": str(client_pair.cert),
            "key_file": str(client_pair.key),
        }
        async with serving_config(one_server(server, tls=tls)) as gateway:
            assert (await gateway.infer()).status == 200
        async with serving_config(one_server(server, tls={"ca_file": tls["ca_file"]})) as gateway:
            assert not gateway.up()


async def test_a_server_with_a_strangers_certificate_gets_nothing(
    tmp_path: Path, server_pair: Pair
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with tls_triton(server_pair) as server:
        config = one_server(server, tls={"ca_file": str(stranger.ca)})
        async with serving_config(config) as gateway:
            reply = await gateway.infer()
            assert reply.status == 503
            row = await gateway.fleet()
            assert not row["up"]
            assert "the server could not be reached" in row["reason"]
        assert server.infer_started == 0


@pytest.mark.parametrize("gateway_speaks_tls", [True, False])
async def test_one_side_without_tls_is_told_on_the_fleet_view(
    authority: Authority, server_pair: Pair, gateway_speaks_tls: bool
) -> None:
    made = fake_triton() if gateway_speaks_tls else None
    async with made or tls_triton(server_pair) as server:
        tls = {"tls": {"ca_file": str(authority.ca)}} if gateway_speaks_tls else {}
        async with serving_config(one_server(server, **tls)) as gateway:
            assert (await gateway.infer()).status == 503
            assert (await gateway.fleet())["reason"]


# --- TLS on the listeners


def trusting(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


def files(pair: Pair, **more: Path) -> dict[str, str]:
    paths = {"cert_file": pair.cert, "key_file": pair.key, **more}
    return {key: str(path) for key, path in paths.items()}


async def test_tls_on_both_listeners(
    fake: FakeTriton, authority: Authority, server_pair: Pair
) -> None:
    sections = {"api": {"tls": files(server_pair)}, "ops": {"tls": files(server_pair)}}
    async with serving({"a": fake}, **sections) as gateway:
        tls = trusting(authority)
        assert (await clients.ask(gateway.port, infer(), tls=tls)).status == 200
        ready = await clients.ask(gateway.ops_port, request("GET", "/readyz"), tls=tls)
        assert ready.json == {"ready": True}
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await clients.ask(gateway.port, infer())


async def test_an_answer_before_the_body_ends_a_tls_connection_too(
    fake: FakeTriton, authority: Authority, server_pair: Pair
) -> None:
    """Half of it cannot be closed, so the client learns it when the gateway has waited for more."""
    async with serving({"a": fake}, api={"tls": files(server_pair)}) as gateway:
        begun = request("POST", "/v2/models/echo/infer", b"", {"Content-Length": "9" * 12})
        async with await Connection.open(gateway.port, tls=trusting(authority)) as connection:
            assert (await connection.ask(begun)).status == 413
            async with asyncio.timeout(4):
                assert await connection.ended()


async def test_mutual_tls_on_the_api(
    fake: FakeTriton, authority: Authority, server_pair: Pair, client_pair: Pair
) -> None:
    tls = files(server_pair, client_ca_file=authority.ca)
    async with serving({"a": fake}, api={"tls": tls}) as gateway:
        known = trusting(authority, client_pair)
        assert (await clients.ask(gateway.port, infer(), tls=known)).status == 200
        with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError, ConnectionError)):
            await clients.ask(gateway.port, infer(), tls=trusting(authority))
        assert fake.infer_started == 1
