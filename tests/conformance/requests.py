"""Cases about infer requests around their tensors: fields, outputs, parameters, the model's say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.build import document, echo, infer, output, tensor
from tests.conformance.case import Case

ONE = {"name": "IN", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}
PARAMETERS = {
    "string": "text",
    "empty-string": "",
    "non-ascii": "ä€😀",
    "integer": 7,
    "negative": -7,
    "int64-max": 2**63 - 1,
    "beyond-int64": 2**63,
    "beyond-uint64": 2**64,
    "double": 0.1,
    "whole-double": 2.0,
    "true": True,
    "false": False,
    "null": None,
    "array": [1],
    "object": {"y": 1},
}


def body(**changes: Any) -> bytes:
    """Write a good request for `echo_INT32` with fields of its input changed; `...` removes one."""
    changed = {**ONE, **changes}
    entry = {key: value for key, value in changed.items() if value is not ...}
    return json.dumps({"inputs": [entry]}).encode()


def around(**fields: Any) -> bytes:
    """Write a good request for `echo_INT32` with top-level fields added or changed."""
    return json.dumps({"inputs": [ONE], **fields}).encode()


def fields() -> Iterator[Case]:
    changes: dict[str, dict[str, Any]] = {
        "shape-text": {"shape": "3"},
        "shape-null": {"shape": None},
        "shape-object": {"shape": {}},
        "shape-float": {"shape": [3.0]},
        "shape-of-texts": {"shape": ["3"]},
        "shape-of-booleans": {"shape": [True]},
        "shape-nested": {"shape": [[3]]},
        "shape-missing": {"shape": ...},
        "shape-negative": {"shape": [-1]},
        "shape-too-small": {"shape": [2]},
        "shape-too-large": {"shape": [4]},
        "shape-scalar": {"shape": [], "data": [1]},
        "shape-of-1000-ones": {"shape": [1] * 1000, "data": [1]},
        "shape-other-rank": {"shape": [1, 3]},
        "data-object": {"data": {"b64": "AQID"}},
        "data-text": {"data": "123"},
        "data-null": {"data": None},
        "data-scalar": {"data": 3},
        "data-of-objects": {"data": [{}]},
        "data-missing": {"data": ...},
        "data-and-binary-size": {"parameters": {"binary_data_size": 12}},
        "datatype-unknown": {"datatype": "STRING"},
        "datatype-lower-case": {"datatype": "int32"},
        "datatype-number": {"datatype": 5},
        "datatype-empty": {"datatype": ""},
        "datatype-missing": {"datatype": ...},
        "datatype-other": {"datatype": "INT64"},
        "datatype-FP32-with-integers": {"datatype": "FP32"},
        "name-number": {"name": 7},
        "name-empty": {"name": ""},
        "name-missing": {"name": ...},
        "name-unknown": {"name": "NOPE"},
        "name-lower-case": {"name": "in"},
        "input-unknown-key": {"colour": "red"},
        "input-parameters-null": {"parameters": None},
        "input-parameters-array": {"parameters": []},
        "input-parameters-empty": {"parameters": {}},
        "input-parameters-unknown": {"parameters": {"x": 1}},
        "input-shared-memory": {"data": ..., "parameters": {"shared_memory_region": "r"}},
        "empty-1": {"shape": [0], "data": []},
        "empty-with-data": {"shape": [0], "data": [1]},
        "empty-2x0": {"shape": [2, 0], "data": [[], []]},
    }
    for name, change in changes.items():
        yield Case(name, infer("echo_INT32", body(**change)))


def top_level() -> Iterator[Case]:
    changed: dict[str, dict[str, Any]] = {
        "inputs-object": {"inputs": {}},
        "inputs-null": {"inputs": None},
        "inputs-empty": {"inputs": []},
        "inputs-of-texts": {"inputs": ["IN"]},
        "inputs-twice-the-same": {"inputs": [ONE, ONE]},
        "outputs-null": {"outputs": None},
        "outputs-object": {"outputs": {"name": "OUT"}},
        "outputs-empty": {"outputs": []},
        "outputs-of-empty-object": {"outputs": [{}]},
        "outputs-unknown": {"outputs": [{"name": "NOPE"}]},
        "outputs-twice-the-same": {"outputs": [{"name": "OUT"}, {"name": "OUT"}]},
        "outputs-parameters-null": {"outputs": [{"name": "OUT", "parameters": None}]},
        "outputs-unknown-parameter": {"outputs": [output("OUT", colour="red")]},
        "binary_data-text": {"outputs": [output("OUT", binary_data="true")]},
        "binary_data-false": {"outputs": [output("OUT", binary_data=False)]},
        "binary_data-beats-default": {
            "outputs": [output("OUT", binary_data=False)],
            "parameters": {"binary_data_output": True},
        },
        "default-is-not-for-listed": {
            "outputs": [output("OUT")],
            "parameters": {"binary_data_output": True},
        },
        "binary_data_output-text": {"parameters": {"binary_data_output": "true"}},
        "binary_data_output-false": {"parameters": {"binary_data_output": False}},
        "output-shared-memory": {"outputs": [output("OUT", shared_memory_region="r")]},
        "id": {"id": "a-1"},
        "id-empty": {"id": ""},
        "id-number": {"id": 12},
        "id-null": {"id": None},
        "id-newline": {"id": "a\nb"},
        "id-non-ascii": {"id": "ä😀"},
        "id-of-1000": {"id": "x" * 1000},
        "id-nul": {"id": "a\u0000b"},
        "id-in-an-error": {"id": "a-1", "inputs": [{**ONE, "shape": [1, 3]}]},
        "unknown-keys": {"colour": {"deep": [1, {"x": None}]}, "model_name": "other"},
        "parameters-array": {"parameters": []},
        "parameters-null": {"parameters": None},
        "parameters-empty": {"parameters": {}},
        "priority": {"parameters": {"priority": 1}},
        "priority-text": {"parameters": {"priority": "1"}},
        "priority-negative": {"parameters": {"priority": -1}},
        "priority-float": {"parameters": {"priority": 1.0}},
        "timeout": {"parameters": {"timeout": 1_000_000}},
        "timeout-negative": {"parameters": {"timeout": -1}},
        "timeout-text": {"parameters": {"timeout": "1"}},
        "sequence_start-number": {"parameters": {"sequence_id": 1, "sequence_start": 1}},
        "sequence_id-negative": {"parameters": {"sequence_id": -1}},
        "sequence_id-boolean": {"parameters": {"sequence_id": True}},
        "sequence_id-of-129": {"parameters": {"sequence_id": "x" * 129}},
        "triton-parameter": {"parameters": {"triton_x": 1}},
    }
    for name, change in changed.items():
        yield Case(name, infer("echo_INT32", around(**change)))


def documents() -> Iterator[Case]:
    good = around()
    bodies = {
        "body-empty-object": b"{}",
        "body-null": b"null",
        "body-array": b"[]",
        "body-text": b'"x"',
        "body-number": b"1",
        "body-two-documents": good + b"{}",
        "body-trailing-space": good + b" \r\n\t",
        "body-leading-space": b"\n  " + good,
        "body-trailing-nul": good + b"\0",
        "body-byte-order-mark": b"\xef\xbb\xbf" + good,
        "body-utf-16": good.decode().encode("utf-16"),
        "body-cut-off": good[:-1],
        "body-single-quotes": good.replace(b'"', b"'"),
        "body-tensorflow-serving": b'{"instances":[[1,2,3]]}',
        "body-escaped-keys": good.replace(b'"inputs"', b'"\\u0069nputs"'),
        "body-nested-200": good[:-1] + b',"x":' + b"[" * 200 + b"]" * 200 + b"}",
        "twice-data": good.replace(b'"data"', b'"data": [7, 8, 9], "data"'),
        "twice-id": good[:-1] + b',"id":"first","id":"last"}',
        "twice-inputs": good[:-1] + b',"inputs":' + good[len('{"inputs": ') : -1] + b"}",
        "twice-a-parameter": good[:-1] + b',"parameters":{"x":1,"x":2}}',
    }
    for name, text in bodies.items():
        yield Case(name, infer("echo_INT32", text))


def content_types() -> Iterator[Case]:
    for name in ("application/x-www-form-urlencoded", "text/plain", "application/grpc", ""):
        request = infer("echo_INT32", around(), f"Content-Type: {name}")
        yield Case(f"content-type-{name.rpartition('/')[2] or 'empty'}", request)


def custom_parameters() -> Iterator[Case]:
    for name, value in PARAMETERS.items():
        entry = tensor("IN", "INT32", [1], [1])
        request = infer("params", document(entry, id="p", parameters={"x": value}))
        yield Case(f"parameter-{name}", request, view=sent_parameters)
    several = {"x": 1, "y": "2", "headers": "h", "z": False, "timeout": 5, "priority": 2}
    entry = tensor("IN", "INT32", [1], [1])
    yield Case(
        "parameters-several",
        infer("params", document(entry, parameters=several)),
        view=sent_parameters,
    )
    named = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    yield Case(
        "parameters-of-a-sequence",
        infer("params", document(entry, parameters=named)),
        view=sent_parameters,
    )
    yield Case(
        "parameters-of-a-sequence-by-text",
        infer("params", document(entry, parameters={"sequence_id": "s", "sequence_start": True})),
        view=sent_parameters,
    )


def sent_parameters(answer: Any) -> Any:
    """Read what the `params` model saw, without the metadata one of the servers forwards to it."""
    outputs = {entry["name"]: entry["data"][0] for entry in answer["outputs"]}
    seen = json.loads(outputs["OUT"])
    sent = {key: value for key, value in seen.items() if key in {"x", "y", "z", "headers"}}
    return {**answer, "outputs": [sent, json.loads(outputs["REQUEST"])]}


def batches() -> Iterator[Case]:
    rows = [list(range(16)), list(range(16, 32))]
    first = tensor("INPUT0", "INT32", [2, 16], rows)
    second = tensor("INPUT1", "INT32", [2, 16], rows)
    one = tensor("INPUT1", "INT32", [1, 16], rows[0])
    yield from (
        Case(name, infer("two_in", document(*inputs, **extra)))
        for name, inputs, extra in (
            ("two-inputs", (first, second), {}),
            ("two-inputs-other-order", (second, first), {}),
            ("two-inputs-to-binary", (first, second), {"parameters": {"binary_data_output": True}}),
            ("two-outputs-other-order", (first, second), {"outputs": [output("OUTPUT1"), output("OUTPUT0")]}),
            ("one-output-of-two", (first, second), {"outputs": [output("OUTPUT1")]}),
            (
                "one-output-binary-one-json",
                (first, second),
                {"outputs": [output("OUTPUT0", binary_data=True), output("OUTPUT1")]},
            ),
            (
                "json-first-binary-last",
                (first, second),
                {"outputs": [output("OUTPUT0"), output("OUTPUT1", binary_data=True)]},
            ),
            ("input-missing", (first,), {}),
            ("input-too-many", (first, second, tensor("INPUT2", "INT32", [1], [1])), {}),
            ("batch-sizes-differ", (first, one), {}),
            (
                "batch-too-large",
                tuple(tensor(f"INPUT{at}", "INT32", [9, 16], [0] * 144) for at in (0, 1)),
                {},
            ),
            (
                "batch-dim-missing",
                tuple(tensor(f"INPUT{at}", "INT32", [16], [0] * 16) for at in (0, 1)),
                {},
            ),
            (
                "batch-empty",
                tuple(tensor(f"INPUT{at}", "INT32", [0, 16], []) for at in (0, 1)),
                {},
            ),
            (
                "row-too-short",
                tuple(tensor(f"INPUT{at}", "INT32", [1, 15], [0] * 15) for at in (0, 1)),
                {},
            ),
        )
    )


def classifications() -> Iterator[Case]:
    entry = tensor("IN", "FP32", [2, 5], [0.1, 0.9, 0.5, 0.2, -1.0, 3, 2, 1, 5, 4])
    for name, classes in {
        "2": 2, "more-than-there-are": 9, "0": 0, "negative": -1, "text": "2", "float": 2.0,
    }.items():
        request = document(entry, outputs=[output("OUT", classification=classes)])
        yield Case(f"classification-{name}", infer("classify", request))
    both = output("OUT", classification=1, binary_data=True)
    yield Case("classification-binary", infer("classify", document(entry, outputs=[both])))
    wanted = [output("OUT", classification=1)]
    yield Case("classification-of-INT32", echo("INT32", [3, 9, 4], outputs=wanted))
    yield Case("classification-of-BOOL", echo("BOOL", [True], outputs=wanted))
    yield Case("classification-of-BYTES", echo("BYTES", ["a"], outputs=wanted))


def model_errors() -> Iterator[Case]:
    entry = tensor("IN", "INT32", [1], [1])
    yield Case("boom-raises", infer("boom", document(entry)))
    for at, code in enumerate(CODES):
        request = document(entry, tensor("CODE", "INT32", [1], [at]), id=f"c{at}")
        yield Case(f"boom-{code}", infer("boom", request))
    count = tensor("COUNT", "INT32", [1], [1])
    yield Case("decoupled", infer("repeat", document(count)))
    yield Case("decoupled-with-a-bad-body", infer("repeat", b"{"))
    yield Case("unknown-model", infer("nope", document(entry)))
    yield Case("unknown-model-with-a-bad-body", infer("nope", b"{"))
    yield Case("unknown-version", infer("whoami", document(entry), version="3"))


from tests.real.repository import CODES  # noqa: E402

def empties() -> Iterator[Case]:
    one = document(tensor("IN", "INT32", [1], [1]))
    yield Case("empty-outputs", infer("empty_out", one))
    yield Case("empty-outputs-to-binary", infer("empty_out", one[:-1] + b',"parameters":{"binary_data_output":true}}'))
    mixed = [output("EMPTY", binary_data=True), output("FULL", binary_data=True), output("EMPTY_TEXT"), output("EMPTY_ROWS", binary_data=True)]
    yield Case("empty-outputs-mixed", infer("empty_out", document(tensor("IN", "INT32", [1], [1]), outputs=mixed)))
    only = [output("EMPTY", binary_data=True)]
    yield Case("empty-output-alone-in-binary", infer("empty_out", document(tensor("IN", "INT32", [1], [1]), outputs=only)))
    yield Case("empty-FP32", echo("FP32", []))
    yield Case("empty-BYTES", echo("BYTES", []))
    yield Case("empty-BYTES-2x0", echo("BYTES", [[], []], [2, 0]))
    yield Case("empty-0x3", echo("FP32", [], [0, 3]))


CASES = [
    *fields(),
    *top_level(),
    *documents(),
    *content_types(),
    *custom_parameters(),
    *batches(),
    *classifications(),
    *model_errors(),
    *empties(),
]
