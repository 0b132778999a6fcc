"""The generate extension: what a flat object becomes, and how answers are told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.case import Case
from tests.conformance.differences import (
    ERROR_BEHIND_ANSWER,
    EXACTLY_ONE,
    HALF_PRECISION,
    KNOWN_PARAMETERS,
    LAST_PARAMETER,
    MALFORMED_IS_400,
    NARROW_INTEGERS,
    NO_ID_PREFIX,
    OWN_WORDS,
    PACKED_GENERATE,
    TRUE_STATUS,
    Difference,
)
from tests.conformance.raw_http import request

ROUTES = ("generate", "generate_stream")


def generate(
    model: str, body: Any, *headers: str, route: str = "generate", version: str = ""
) -> bytes:
    """Build a request; a body that is not bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    between = f"/versions/{version}" if version else ""
    return request("POST", f"/v2/models/{model}{between}/{route}", data, headers)


def parameters_seen(document: Any) -> Any:
    """Reduce an answer of `params` to what the model was given, sorted: gRPC keeps no order.

    Server b adds the headers that reach it, which are not the same for both.
    """
    given = json.loads(document["OUT"])
    given.pop("user-agent", None)
    return {**document, "OUT": sorted(given.items())}


def _shapes() -> Iterator[Case]:
    wanted: dict[str, tuple[Any, ...]] = {
        "ONE": (5, [5], [], [1, 2]),
        "ANY": (5, [5], [], [1, 2, 3], [[1], [2]]),
        "ROWS": ([], [1, 2], [1, 2, 3, 4], [1, 2, 3], 1),
        "DEEP": ([1, 2], [1, 2, 3, 4], [1]),
        "FIXED": ([1, 2, 3, 4], [1, 2], [[1, 2], [3, 4]]),
        "NONE": ([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2]),
    }
    for name, values in wanted.items():
        for value in values:
            yield Case(f"{name} {value}", generate("shapes", {name: value}))
    nested = generate("shapes", {"ANY": [[1, 2], [3, 4]]})
    yield Case("more elements than the outer list", nested, MALFORMED_IS_400, field="'ANY'")
    for value in ([1, 2, 3], 1, []):
        yield Case(f"batched ANY {value}", generate("batched_shapes", {"ANY": value}))
    yield Case("batched rows", generate("batched_shapes", {"ROWS": [1, 2, 3, 4], "ANY": 1}))


def _elements() -> Iterator[Case]:
    good: dict[str, tuple[Any, ...]] = {
        "BOOL": (True, [True, False]),
        "UINT8": (255, [0, 1]),
        "INT8": (-128, [1, 2]),
        "INT32": (7, [1, 2]),
        "INT64": (-(2**63), [1]),
        "UINT64": (2**64 - 1, [1]),
        "FP32": (1, 1.5, [0.1, 2]),
        "FP64": (0.1, [1]),
        "BYTES": ("x", "", 'ä\n"', ["a", "b"], []),
    }
    for datatype, values in good.items():
        for value in values:
            yield Case(f"{datatype} {value!r}", generate(f"echo_{datatype}", {"IN": value}))
    bad: dict[str, tuple[Any, ...]] = {
        "BOOL": (1, "true", None),
        "INT32": ("1", 1.5, True, None, {}),
        "FP32": ("1", True, {}),
        "BYTES": (1, True, None, {"a": "b"}, ["a", 1]),
    }
    for datatype, values in bad.items():
        for value in values:
            sent = generate(f"echo_{datatype}", {"IN": value})
            yield Case(f"{datatype} {value!r}", sent, MALFORMED_IS_400, field="'IN'")
    yield Case("FP16", generate("echo_FP16", {"IN": 1.5}), HALF_PRECISION)
    yield Case("BF16", generate("echo_BF16", {"IN": [1.5]}), HALF_PRECISION)
    narrow = generate("echo_INT8", {"IN": 200})
    yield Case("INT8 200", narrow, NARROW_INTEGERS, field="'IN'")
    yield Case("empty outputs", generate("empty_out", {"IN": 1}))


def _parameters() -> Iterator[Case]:
    def case(name: str, body: Any, differs: Difference | None = None, field: str = "") -> Case:
        return Case(name, generate("params", body), differs, field=field, view=parameters_seen)

    yield case("none", {"IN": 1})
    yield case("of every type", {"IN": 1, "a": 1, "b": 1.5, "c": True, "d": "s", "e": -1})
    yield case("nested", {"IN": 1, "a": 1, "parameters": {"b": 2}})
    yield case("nested input", {"parameters": {"IN": [2, 3], "b": "x"}})
    yield case("empty", {"IN": 1, "parameters": {}})
    yield case("id", {"IN": 1, "id": "r1"})
    yield case("nested id", {"IN": 1, "parameters": {"id": "r1"}})
    yield case("binary_data_output", {"IN": 1, "binary_data_output": True})
    for value in ({}, [], None):
        yield case(f"a {value}", {"IN": 1, "a": value}, OWN_WORDS, "'a'")
        nested = {"IN": 1, "parameters": {"a": value}}
        yield case(f"nested a {value}", nested, OWN_WORDS, "'parameters.a'")
    yield case("id 5", {"IN": 1, "id": 5}, MALFORMED_IS_400, "'id'")
    for value in ([], 1, "x", None):
        yield case(f"all {value}", {"IN": 1, "parameters": value}, MALFORMED_IS_400, "parameters")
    known = {"sequence_start": True, "sequence_id": 3, "timeout": 5, "priority": 1}
    for name, value in {**known, "triton_x": 1}.items():
        yield case(name, {"IN": 1, name: value}, KNOWN_PARAMETERS)
    yield case("a twice", b'{"IN":1,"a":1,"a":2}', LAST_PARAMETER)
    twice = b'{"IN":1,"parameters":{"a":1},"parameters":{"b":2}}'
    yield case("parameters twice", twice, LAST_PARAMETER)
    yield case("id twice", b'{"IN":1,"id":"x","id":"y"}', LAST_PARAMETER)


def _requests() -> Iterator[Case]:
    for route in ROUTES:
        for body in (b"", b"[]", b"1", b"{", b'{"a":}', b"null"):
            sent = generate("params", body, route=route)
            yield Case(f"{route} {body!r}", sent, MALFORMED_IS_400, field="request JSON")
        yield Case(f"{route} unknown model", generate("nope", b"{", route=route))
        yield Case(
            f"{route} version", generate("echo_BOOL", {"IN": True}, route=route, version="1")
        )
        yield Case(
            f"{route} no version", generate("echo_BOOL", {"IN": True}, route=route, version="9")
        )
        yield Case(f"{route} nothing", generate("echo_INT32", {}, route=route))
        yield Case(f"{route} other", generate("echo_INT32", {"other": 1}, route=route))
        yield Case(f"{route} decoupled, nothing", generate("mock_llm", {}, route=route))
        one = {"STREAM": False, "other": "x"}
        yield Case(f"{route} decoupled, one missing", generate("mock_llm", one, route=route))
        path = f"/v2/models/params/{route}"
        yield Case(f"GET {route}", request("GET", path), error_types=True)
        twice = b'{"PROMPT":"a","STREAM":true,"STREAM":true,"PROMPT":"b"}'
        sent = generate("mock_llm", twice, route=route)
        yield Case(f"{route} twice", sent, NO_ID_PREFIX)
    packed = gzip.compress(b'{"IN": 1}', mtime=0)
    yield Case("gzip", generate("params", packed, "Content-Encoding: gzip"), PACKED_GENERATE)


def _answers() -> Iterator[Case]:
    def llm(route: str, **wanted: Any) -> bytes:
        return generate("mock_llm", {"PROMPT": "hi", "STREAM": True, **wanted}, route=route)

    for route in ROUTES:
        yield Case(f"{route} one", llm(route))
        yield Case(f"{route} one with its end", llm(route, STREAM=False))
        yield Case(f"{route} one with an id", llm(route, id="r1"))
        yield Case(f"{route} one without elements", llm(route, OUTPUT_0_DIM=True))
        yield Case(f"{route} unary", generate("echo_INT32", {"IN": [1, 3]}, route=route))
        yield Case(f"{route} error", llm(route, REPETITION=0, FAIL_LAST=True), TRUE_STATUS)
        for code in (1, 4):
            sent = generate("boom", {"IN": 1, "CODE": code}, route=route)
            yield Case(f"{route} unary error {code}", sent, TRUE_STATUS)
    yield Case("generate none", llm("generate", REPETITION=0), EXACTLY_ONE)
    yield Case("generate two", llm("generate", REPETITION=2), EXACTLY_ONE)
    yield Case("generate three", generate("stream", {"COUNT": 3}), EXACTLY_ONE)
    failing = llm("generate", FAIL_LAST=True)
    yield Case("generate one and an error", failing, ERROR_BEHIND_ANSWER)
    stream = "generate_stream"
    yield Case("stream none", llm(stream, REPETITION=0))
    yield Case("stream three", llm(stream, REPETITION=3))
    yield Case("stream three, then an error", llm(stream, REPETITION=3, FAIL_LAST=True))
    sent = generate("stream", {"COUNT": 4, "ERROR_AT": 2}, route=stream)
    yield Case("stream goes on behind an error", sent)


CASES = (*_shapes(), *_elements(), *_parameters(), *_requests(), *_answers())
