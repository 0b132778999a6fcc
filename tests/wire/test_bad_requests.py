"""Bad requests harm neither the connection they came on nor the server behind the gateway.

Everything goes over one connection as it is written, each item followed by a good request that has
to succeed on the same connection; only what is answered with 200 ever reaches the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from tests.conformance.build import HEADER, binary, document, echo, echo_binary, infer, tensor
from tests.conformance.raw_http import Answer, Connection, request
from tests.fakes.model import FakeModel, model_config
from tests.fakes.triton import FakeTriton
from tests.gateways import InnerGateway, configuration, inner_gateway
from tests.wire.bad_requests import (
    BINARY_OUT,
    BODIES,
    FP32_TAIL,
    GOOD_BODY,
    HEADERS,
    MODELS,
    NAMES,
    REFUSED,
    VERSIONS,
    Item,
    empty_then_full,
    model_paths,
    version_paths,
)

ECHOES = ("INT32", "BYTES", "FP32", "FP16", "BF16")
GOOD = infer("echo_INT32", GOOD_BODY)
GOOD_ANSWER = [{"name": "OUT", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}]


@pytest.fixture
async def triton() -> AsyncIterator[FakeTriton]:
    echoes = (echo_model(f"echo_{datatype}", datatype) for datatype in ECHOES)
    named = (echo_model(name, "INT32") for name in NAMES)
    whoami = echo_model("whoami", "INT32")
    whoami.states = {"1": "READY", "2": "READY", "10": "READY"}
    three = [(name, "INT32", [-1]) for name in "ABC"]
    model = FakeModel(model_config("three", three, three))
    async with FakeTriton(*echoes, *named, whoami, model) as server:
        yield server


def echo_model(name: str, datatype: str) -> FakeModel:
    dims = [-1]
    return FakeModel(model_config(name, [("IN", datatype, dims)], [("OUT", datatype, dims)]))


@pytest.fixture
async def gateway(triton: FakeTriton) -> AsyncIterator[InnerGateway]:
    async with inner_gateway(configuration({"a": triton.address})) as inner:
        yield inner


Talk = Callable[[Connection], list[str]]


async def talk(gateway: InnerGateway, conversation: Talk) -> list[str]:
    """Hold a conversation over one connection, away from the loop the gateway runs in."""

    def hold() -> list[str]:
        with Connection(f"127.0.0.1:{gateway.port}") as connection:
            return conversation(connection)

    return await asyncio.to_thread(hold)


def conversation(items: Sequence[Item], triton: FakeTriton) -> Talk:
    """Send each item and, after it, a good request; return what was not as it should be."""

    def hold(connection: Connection) -> list[str]:
        problems = []
        for item in items:
            before = triton.infer_started
            answer = connection.ask(item.request)
            reached = triton.infer_started - before
            problems += [f"{item.id}: {what}" for what in faults(item, answer, reached)]
            good = connection.ask(GOOD)
            if good.status != 200 or json.loads(good.body)["outputs"] != GOOD_ANSWER:
                problems.append(f"after {item.id}: {good}")
        return problems

    return hold


def faults(item: Item, answer: Answer, reached: int) -> Iterator[str]:
    """Say in what respects an item was not treated as it should be."""
    if answer.status != item.status:
        yield f"is {answer.status}, not {item.status}: {answer.body[:200]!r}"
    if answer.status == 200:
        if reached != item.request.startswith(b"POST"):
            yield f"{reached} requests reached the server"
        return
    if reached:
        yield f"{reached} requests reached the server"
    with contextlib.suppress(ValueError):
        told = json.loads(answer.body)
        if list(told) == ["error"] and told["error"] and item.names in told["error"]:
            return
    yield f"no error that names {item.names}: {answer.body[:200]!r}"


async def test_bad_bodies_harm_neither_the_connection_nor_the_server(
    gateway: InnerGateway, triton: FakeTriton
) -> None:
    items = [item for items in BODIES.values() for item in items]
    assert await talk(gateway, conversation(items, triton)) == []
    good = len(items) + sum(item.status == 200 for item in items)
    assert triton.infer_started == triton.infer_finished == good
    assert len({item.id for item in items}) == len(items) > 130


@pytest.mark.parametrize("paths", [version_paths, model_paths])
async def test_odd_paths_have_their_one_status(
    gateway: InnerGateway, triton: FakeTriton, paths: Callable[[], Iterator[Item]]
) -> None:
    assert await talk(gateway, conversation(list(paths()), triton)) == []


async def test_the_version_that_was_asked_for_answers(
    gateway: InnerGateway, triton: FakeTriton
) -> None:
    def hold(connection: Connection) -> list[str]:
        asked = [("", "10"), *((text, answers) for text, _, answers in VERSIONS if answers)]
        wrong = []
        for version, expected in asked:
            answer = connection.ask(infer("whoami", GOOD_BODY, version=version))
            told = json.loads(answer.body)["model_version"]
            if not told == expected == triton.last_request.model_version:
                wrong.append(f"{version}: {told}, {triton.last_request.model_version}")
        return wrong

    assert await talk(gateway, hold) == []


async def test_a_name_is_decoded_once_and_then_the_same_everywhere(
    gateway: InnerGateway, triton: FakeTriton
) -> None:
    def hold(connection: Connection) -> list[str]:
        wrong = []
        for segment, _, name in MODELS:
            if name:
                answer = json.loads(connection.ask(infer(segment, GOOD_BODY)).body)
                if not answer["model_name"] == name == triton.last_request.model_name:
                    wrong.append(f"{segment}: {answer}")
        return wrong

    assert await talk(gateway, hold) == []


@pytest.mark.parametrize("path", ["a%2F..%2Fecho_INT32", "..%2F..%2Frepository", "%2e%2e%2fstats"])
async def test_an_encoded_slash_never_makes_another_route(gateway: InnerGateway, path: str) -> None:
    def hold(connection: Connection) -> list[str]:
        targets = [f"/v2/models/{path}", f"/v2/models/{path}/ready", f"/v2/models/{path}/stats"]
        answers = [connection.ask(request("GET", target)) for target in targets]
        return [str(one) for one in answers if one.body != b'{"error":"Not Found"}']

    assert await talk(gateway, hold) == []


async def test_half_precision_is_converted_both_ways(gateway: InnerGateway) -> None:
    infinity = float("inf")
    expected = {
        "FP16": ([1.0, -2.5, 65504, 65520, 1e-8], [1.0, -2.5, 65504.0, infinity, 0.0]),
        "BF16": (
            [1.0, -2.5, 65504, 1e-8, 1e39],
            [1.0, -2.5, 65536.0, 1.0011717677116394e-08, infinity],
        ),
    }

    def hold(connection: Connection) -> list[str]:
        wrong = []
        for datatype, (given, rounded) in expected.items():
            answer = json.loads(connection.ask(echo(datatype, given)).body)
            if answer["outputs"][0]["data"] != rounded:
                wrong.append(f"{datatype}: {answer}")
        tails = {"FP16": "003c00c1", "BF16": "803f20c0"}
        for datatype, tail in tails.items():
            raw = bytes.fromhex(tail)
            as_json = json.loads(connection.ask(echo_binary(datatype, raw, [2])).body)
            as_bytes = connection.ask(echo(datatype, [1.0, -2.5], parameters=BINARY_OUT)).body
            if as_json["outputs"][0]["data"] != [1.0, -2.5] or not as_bytes.endswith(raw):
                wrong.append(f"{datatype} {tail}: {as_json} {as_bytes!r}")
        return wrong

    assert await talk(gateway, hold) == []


async def test_bytes_after_an_empty_tensor_stay_where_they_belong(gateway: InnerGateway) -> None:
    def hold(connection: Connection) -> list[str]:
        answer = connection.ask(empty_then_full())
        head_bytes = int(answer.headers[HEADER.lower()])
        sizes = [
            (entry["name"], entry["shape"], entry["parameters"]["binary_data_size"])
            for entry in json.loads(answer.body[:head_bytes])["outputs"]
        ]
        assert sizes == [("A", [0], 0), ("B", [3], 12)]
        assert answer.body[head_bytes:] == struct.pack("<3i", 1, 2, 3)
        return []

    assert await talk(gateway, hold) == []


async def test_claimed_sizes_take_no_memory(gateway: InnerGateway, triton: FakeTriton) -> None:
    huge = [echo("INT32", [], dims) for dims in ([2**32, 2**32], [2**28], [2**40], [2**62])]
    size = document(tensor("IN", "FP32", [2**28], binary_data_size=2**30))
    huge.append(binary("echo_FP32", size, FP32_TAIL))

    def hold(connection: Connection) -> list[str]:
        return [
            str(answer)
            for _ in range(200)
            for answer in map(connection.ask, huge)
            if answer.status != 400
        ]

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await talk(gateway, hold) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 32 * 1024
    assert triton.infer_started == 0


async def test_harmless_headers_never_make_a_call_fail(
    gateway: InnerGateway, triton: FakeTriton
) -> None:
    plain = Item("no header", GOOD, 200)
    one_by_one = [
        Item(name, infer("echo_INT32", GOOD_BODY, line), 200) for name, line in HEADERS.items()
    ]
    many = [line for name, line in HEADERS.items() if "KiB" not in name]
    together = Item("together", infer("echo_INT32", GOOD_BODY, *many), 200)
    assert await talk(gateway, conversation([plain, *one_by_one, together], triton)) == []


async def test_no_header_reaches_the_server(gateway: InnerGateway, triton: FakeTriton) -> None:
    def hold(connection: Connection) -> list[str]:
        for line in ("X-None: 1", *HEADERS.values()):
            connection.ask(infer("echo_INT32", GOOD_BODY, line))
        return []

    await talk(gateway, hold)
    assert len(triton.metadata) == len(HEADERS) + 1
    first, *others = [dict(metadata) for metadata in triton.metadata]
    assert set(first) <= {"user-agent"}
    assert all(metadata == first for metadata in others)


async def test_request_ids_cannot_carry_anything_into_the_answer(gateway: InnerGateway) -> None:
    def hold(connection: Connection) -> list[str]:
        wrong = []
        for name, line in HEADERS.items():
            if name.startswith("id "):
                answer = connection.ask(infer("echo_INT32", GOOD_BODY, line))
                told = answer.headers["x-request-id"]
                if len(told) != 16 or not told.isalnum() or "x-evil" in answer.headers:
                    wrong.append(f"{name}: {answer.headers}")
        kept = connection.ask(infer("echo_INT32", GOOD_BODY, "X-Request-Id: abc-1"))
        return wrong + [str(kept)] * (kept.headers["x-request-id"] != "abc-1")

    assert await talk(gateway, hold) == []


@pytest.mark.parametrize("name", REFUSED)
async def test_malformed_http_is_a_400_that_closes(
    gateway: InnerGateway, triton: FakeTriton, name: str
) -> None:
    def hold(connection: Connection) -> list[str]:
        answer = connection.ask(REFUSED[name])
        assert answer.status == 400, answer
        assert list(json.loads(answer.body)) == ["error"]
        assert answer.headers["content-type"] == "application/json"
        assert answer.closes
        assert connection.read_bytes(1) == b""
        return []

    assert await talk(gateway, hold) == []
    assert triton.infer_started == 0


async def test_malformed_http_is_answered_in_the_name_of_the_gateway(gateway: InnerGateway) -> None:
    def hold(connection: Connection) -> list[str]:
        assert connection.ask(GOOD).headers["server"] == "triton-gateway"
        assert connection.ask(REFUSED["garbage"]).headers["server"] == "triton-gateway"
        return []

    assert await talk(gateway, hold) == []
