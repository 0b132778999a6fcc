"""Cases about infer requests around their tensors: fields, outputs, parameters, the model's say.

Shapes whose size overflows, and classes of BYTES, are missing: each ends this version of Triton.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from tests.conformance.build import document, echo, infer, output, tensor
from tests.conformance.case import Case
from tests.conformance.differences import (
    KNOWN_LEVELS,
    LAST_KEY,
    LONG_SEQUENCE_ID,
    MALFORMED_IS_400,
    NO_SHARED_MEMORY,
    OWN_WORDS,
    SAYS_WHERE,
    STRICT_FIELDS,
    STRICT_JSON,
    UNCUT_TEXT,
    Difference,
)
from tests.real.repository import CODES

ONE = {"name": "IN", "datatype": "INT32", "shape": [3], "data": [1, 2, 3]}
BROKEN_JSON = "failed to parse the request JSON buffer: "

Table = dict[str, tuple[str, dict[str, Any]]]
"""Cases by name: what the gateway's error names, and what is changed in a good request."""


def body(**changes: Any) -> bytes:
    """Write a good request for `echo_INT32` with fields of its input changed; `...` removes one."""
    changed = {**ONE, **changes}
    entry = {key: value for key, value in changed.items() if value is not ...}
    return json.dumps({"inputs": [entry]}).encode()


def around(**fields: Any) -> bytes:
    """Write a good request for `echo_INT32` with top-level fields added or changed."""
    return json.dumps({"inputs": [ONE], **fields}).encode()


FIELDS_ACCEPTED_OR_LEFT_TO_TRITON: Table = {
    "shape-scalar": ("", {"shape": [], "data": [1]}),
    "shape-of-1000-ones": ("", {"shape": [1] * 1000, "data": [1]}),
    "shape-other-rank": ("", {"shape": [1, 3]}),
    "datatype-other": ("", {"datatype": "INT64"}),
    "datatype-FP32-with-integers": ("", {"datatype": "FP32"}),
    "name-unknown": ("", {"name": "NOPE"}),
    "input-unknown-key": ("", {"colour": "red"}),
    "input-parameters-empty": ("", {"parameters": {}}),
    "input-parameters-unknown": ("", {"parameters": {"x": 1}}),
    "empty-1": ("", {"shape": [0], "data": []}),
    "empty-with-data": ("", {"shape": [0], "data": [1]}),
    "empty-2x0": ("", {"shape": [2, 0], "data": [[], []]}),
}
FIELDS_MALFORMED: Table = {
    "shape-text": ("'inputs[0].shape'", {"shape": "3"}),
    "shape-null": ("'inputs[0].shape'", {"shape": None}),
    "shape-object": ("'inputs[0].shape'", {"shape": {}}),
    "shape-float": ("'inputs[0].shape'", {"shape": [3.0]}),
    "shape-of-texts": ("'inputs[0].shape'", {"shape": ["3"]}),
    "shape-of-booleans": ("'inputs[0].shape'", {"shape": [True]}),
    "shape-nested": ("'inputs[0].shape'", {"shape": [[3]]}),
    "shape-missing": ("'inputs[0].shape'", {"shape": ...}),
    "shape-negative": ("'inputs[0].shape'", {"shape": [-1]}),
    "shape-too-small": ("'inputs[0].data'", {"shape": [2]}),
    "shape-too-large": ("'inputs[0].data'", {"shape": [4]}),
    "data-object": ("'inputs[0].data'", {"data": {"b64": "AQID"}}),
    "data-text": ("'inputs[0].data'", {"data": "123"}),
    "data-null": ("'inputs[0].data'", {"data": None}),
    "data-scalar": ("'inputs[0].data'", {"data": 3}),
    "data-of-objects": ("'inputs[0].data'", {"data": [{}]}),
    "datatype-number": ("'inputs[0].datatype'", {"datatype": 5}),
    "datatype-missing": ("'inputs[0].datatype'", {"datatype": ...}),
    "name-number": ("'inputs[0].name'", {"name": 7}),
    "name-missing": ("'inputs[0].name'", {"name": ...}),
}
FIELDS_WITH_PLACE: Table = {
    "data-missing": ("'inputs[0]'", {"data": ...}),
    "data-and-binary-size": ("'inputs[0]'", {"parameters": {"binary_data_size": 12}}),
    "datatype-unknown": ("'inputs[0].datatype'", {"datatype": "STRING"}),
    "datatype-lower-case": ("'inputs[0].datatype'", {"datatype": "int32"}),
    "datatype-empty": ("'inputs[0].datatype'", {"datatype": ""}),
}
FIELDS: tuple[tuple[Table, Difference | None], ...] = (
    (FIELDS_ACCEPTED_OR_LEFT_TO_TRITON, None),
    (FIELDS_MALFORMED, MALFORMED_IS_400),
    (FIELDS_WITH_PLACE, SAYS_WHERE),
    ({"name-empty": ("'inputs[0].name'", {"name": ""})}, OWN_WORDS),
    (
        {
            "input-parameters-null": ("'inputs[0].parameters'", {"parameters": None}),
            "input-parameters-array": ("'inputs[0].parameters'", {"parameters": []}),
        },
        STRICT_FIELDS,
    ),
    (
        {
            "input-shared-memory": (
                "'inputs[0]'",
                {"data": ..., "parameters": {"shared_memory_region": "r"}},
            )
        },
        NO_SHARED_MEMORY,
    ),
)

TOP_ACCEPTED_OR_LEFT_TO_TRITON: Table = {
    "inputs-twice-the-same": ("", {"inputs": [ONE, ONE]}),
    "outputs-empty": ("", {"outputs": []}),
    "outputs-unknown": ("", {"outputs": [{"name": "NOPE"}]}),
    "outputs-twice-the-same": ("", {"outputs": [{"name": "OUT"}, {"name": "OUT"}]}),
    "outputs-unknown-parameter": ("", {"outputs": [output("OUT", colour="red")]}),
    "binary_data-false": ("", {"outputs": [output("OUT", binary_data=False)]}),
    "binary_data-beats-default": (
        "",
        {
            "outputs": [output("OUT", binary_data=False)],
            "parameters": {"binary_data_output": True},
        },
    ),
    "default-is-not-for-listed": (
        "",
        {"outputs": [output("OUT")], "parameters": {"binary_data_output": True}},
    ),
    "binary_data_output-false": ("", {"parameters": {"binary_data_output": False}}),
    "id": ("", {"id": "a-1"}),
    "id-empty": ("", {"id": ""}),
    "id-newline": ("", {"id": "a\nb"}),
    "id-non-ascii": ("", {"id": "ä😀"}),
    "id-of-1000": ("", {"id": "x" * 1000}),
    "id-in-an-error": ("", {"id": "a-1", "inputs": [{**ONE, "shape": [1, 3]}]}),
    "unknown-keys": ("", {"colour": {"deep": [1, {"x": None}]}, "model_name": "other"}),
    "parameters-empty": ("", {"parameters": {}}),
    "priority": ("", {"parameters": {"priority": 1}}),
    "timeout": ("", {"parameters": {"timeout": 1_000_000}}),
}
TOP_MALFORMED: Table = {
    "inputs-object": ("'inputs'", {"inputs": {}}),
    "inputs-null": ("'inputs'", {"inputs": None}),
    "outputs-null": ("'outputs'", {"outputs": None}),
    "outputs-object": ("'outputs'", {"outputs": {"name": "OUT"}}),
    "outputs-of-empty-object": ("'outputs[0].name'", {"outputs": [{}]}),
    "binary_data-text": (
        "'outputs[0].parameters.binary_data'",
        {"outputs": [output("OUT", binary_data="true")]},
    ),
    "binary_data_output-text": (
        "'parameters.binary_data_output'",
        {"parameters": {"binary_data_output": "true"}},
    ),
    "id-number": ("'id'", {"id": 12}),
    "id-null": ("'id'", {"id": None}),
    "parameters-array": ("'parameters'", {"parameters": []}),
    "parameters-null": ("'parameters'", {"parameters": None}),
    "priority-text": ("'parameters.priority'", {"parameters": {"priority": "1"}}),
    "priority-negative": ("'parameters.priority'", {"parameters": {"priority": -1}}),
    "priority-float": ("'parameters.priority'", {"parameters": {"priority": 1.0}}),
    "timeout-negative": ("'parameters.timeout'", {"parameters": {"timeout": -1}}),
    "sequence_start-number": (
        "'parameters.sequence_start'",
        {"parameters": {"sequence_id": 1, "sequence_start": 1}},
    ),
    "sequence_id-negative": ("'parameters.sequence_id'", {"parameters": {"sequence_id": -1}}),
}
TOP_LEVEL: tuple[tuple[Table, Difference | None], ...] = (
    (TOP_ACCEPTED_OR_LEFT_TO_TRITON, None),
    (TOP_MALFORMED, MALFORMED_IS_400),
    (
        {
            "inputs-empty": ("'inputs'", {"inputs": []}),
            "inputs-of-texts": ("'inputs[0]'", {"inputs": ["IN"]}),
        },
        OWN_WORDS,
    ),
    (
        {
            "outputs-parameters-null": (
                "'outputs[0].parameters'",
                {"outputs": [{"name": "OUT", "parameters": None}]},
            )
        },
        STRICT_FIELDS,
    ),
    (
        {
            "output-shared-memory": (
                "'outputs[0]'",
                {"outputs": [output("OUT", shared_memory_region="r")]},
            )
        },
        NO_SHARED_MEMORY,
    ),
    ({"id-nul": ("'id'", {"id": "a\u0000b"})}, UNCUT_TEXT),
    (
        {
            "sequence_id-of-129": (
                "'parameters.sequence_id'",
                {"parameters": {"sequence_id": "x" * 129}},
            )
        },
        LONG_SEQUENCE_ID,
    ),
    ({"triton-parameter": ("'parameters.triton_x'", {"parameters": {"triton_x": 1}})}, SAYS_WHERE),
)

GOOD = around()
BODIES: tuple[tuple[str, bytes, Difference | None, str], ...] = (
    ("empty-object", b"{}", MALFORMED_IS_400, "'inputs'"),
    ("null", b"null", MALFORMED_IS_400, BROKEN_JSON),
    ("array", b"[]", MALFORMED_IS_400, BROKEN_JSON),
    ("text", b'"x"', MALFORMED_IS_400, BROKEN_JSON),
    ("number", b"1", MALFORMED_IS_400, BROKEN_JSON),
    ("two-documents", GOOD + b"{}", MALFORMED_IS_400, BROKEN_JSON),
    ("trailing-space", GOOD + b" \r\n\t", None, ""),
    ("leading-space", b"\n  " + GOOD, None, ""),
    ("trailing-nul", GOOD + b"\0", STRICT_JSON, BROKEN_JSON),
    ("byte-order-mark", b"\xef\xbb\xbf" + GOOD, STRICT_JSON, BROKEN_JSON),
    ("utf-16", GOOD.decode().encode("utf-16"), MALFORMED_IS_400, BROKEN_JSON),
    ("cut-off", GOOD[:-1], MALFORMED_IS_400, BROKEN_JSON),
    ("single-quotes", GOOD.replace(b'"', b"'"), MALFORMED_IS_400, BROKEN_JSON),
    ("of-tensorflow-serving", b'{"instances":[[1,2,3]]}', MALFORMED_IS_400, "'inputs'"),
    ("escaped-keys", GOOD.replace(b'"inputs"', b'"\\u0069nputs"'), None, ""),
    ("nested-200", GOOD[:-1] + b',"x":' + b"[" * 200 + b"]" * 200 + b"}", None, ""),
    ("data-twice", GOOD.replace(b'"data"', b'"data": [7, 8, 9], "data"'), LAST_KEY, ""),
    ("id-twice", GOOD[:-1] + b',"id":"first","id":"last"}', LAST_KEY, ""),
)


def changed() -> Iterator[Case]:
    for tables, write in ((FIELDS, body), (TOP_LEVEL, around)):
        for table, differs in tables:
            for name, (field, change) in table.items():
                yield Case(name, infer("echo_INT32", write(**change)), differs, field)


def documents() -> Iterator[Case]:
    for name, text, differs, field in BODIES:
        yield Case(f"body-{name}", infer("echo_INT32", text), differs, field)
    for label in ("application/x-www-form-urlencoded", "text/plain", "application/grpc", ""):
        request = infer("echo_INT32", GOOD, f"Content-Type: {label}")
        yield Case(f"content-type-{label.rpartition('/')[2] or 'empty'}", request)


PARAMETERS: dict[str, Any] = {
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
}


def parameters() -> Iterator[Case]:
    entry = tensor("IN", "INT32", [1], [1])
    for name, value in PARAMETERS.items():
        request = infer("params", document(entry, id="p", parameters={"x": value}))
        yield Case(f"parameter-{name}", request, view=sent_parameters)
    for name, value in {"null": None, "array": [1], "object": {"y": 1}}.items():
        request = infer("params", document(entry, parameters={"x": value}))
        yield Case(f"parameter-{name}", request, OWN_WORDS, "'parameters.x'")
    for name, several in {
        "several": {"x": 1, "y": "2", "headers": "h", "z": False, "timeout": 5, "priority": 2},
        "of-a-sequence": {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
        "of-a-named-sequence": {"sequence_id": "s", "sequence_start": True},
        "of-a-huge-sequence": {"sequence_id": 2**64 - 1, "sequence_start": True},
        "for-the-body-only": {"x": 1, "binary_data_output": False},
    }.items():
        request = infer("params", document(entry, parameters=several))
        yield Case(f"parameters-{name}", request, view=sent_parameters)
    twice = document(entry)[:-1] + b',"parameters":{"x":1,"x":2}}'
    yield Case("parameter-twice", infer("params", twice), LAST_KEY, view=sent_parameters)


def sent_parameters(answer: Any) -> Any:
    """Read what the `params` model saw, without the metadata that one of the servers adds to it."""
    outputs = {entry["name"]: entry["data"][0] for entry in answer["outputs"]}
    seen = json.loads(outputs["OUT"])
    sent = {key: value for key, value in seen.items() if key in {"x", "y", "z", "headers"}}
    return {**answer, "outputs": [sent, json.loads(outputs["REQUEST"])]}


def batches() -> Iterator[Case]:
    rows = [list(range(16)), list(range(16, 32))]
    first = tensor("INPUT0", "INT32", [2, 16], rows)
    second = tensor("INPUT1", "INT32", [2, 16], rows)
    one = tensor("INPUT1", "INT32", [1, 16], rows[0])
    third = tensor("INPUT2", "INT32", [1], [1])
    requests = {
        "two-inputs": document(first, second),
        "two-inputs-other-order": document(second, first),
        "two-inputs-to-binary": document(first, second, parameters={"binary_data_output": True}),
        "two-outputs-other-order": document(
            first, second, outputs=[output("OUTPUT1"), output("OUTPUT0")]
        ),
        "one-output-of-two": document(first, second, outputs=[output("OUTPUT1")]),
        "binary-then-json-out": document(
            first, second, outputs=[output("OUTPUT0", binary_data=True), output("OUTPUT1")]
        ),
        "json-then-binary-out": document(
            first, second, outputs=[output("OUTPUT0"), output("OUTPUT1", binary_data=True)]
        ),
        "input-missing": document(first),
        "input-too-many": document(first, second, third),
        "batch-sizes-differ": document(first, one),
        "batch-too-large": document(*_pair([9, 16])),
        "batch-dim-missing": document(*_pair([16])),
        "batch-empty": document(*_pair([0, 16])),
        "row-too-short": document(*_pair([1, 15])),
        "rank-too-high": document(*_pair([1, 1, 16])),
    }
    for name, request in requests.items():
        yield Case(name, infer("two_in", request))


def _pair(shape: list[int]) -> list[dict[str, Any]]:
    zeros = [0] * math.prod(shape)
    return [tensor(f"INPUT{at}", "INT32", shape, zeros) for at in (0, 1)]


def classifications() -> Iterator[Case]:
    entry = tensor("IN", "FP32", [2, 5], [0.1, 0.9, 0.5, 0.2, -1.0, 3, 2, 1, 5, 4])
    field = "'outputs[0].parameters.classification'"
    for name, classes, differs in (
        ("2", 2, None),
        ("more-than-there-are", 9, None),
        ("0", 0, None),
        ("negative", -1, MALFORMED_IS_400),
        ("text", "2", MALFORMED_IS_400),
        ("float", 2.0, MALFORMED_IS_400),
    ):
        request = infer(
            "classify", document(entry, outputs=[output("OUT", classification=classes)])
        )
        yield Case(f"classification-{name}", request, differs, field if differs else "")
    both = output("OUT", classification=1, binary_data=True)
    yield Case("classification-binary", infer("classify", document(entry, outputs=[both])))
    wanted = [output("OUT", classification=1)]
    yield Case("classification-of-INT32", echo("INT32", [3, 9, 4], outputs=wanted))
    yield Case("classification-of-BOOL", echo("BOOL", [True], outputs=wanted))


def priorities() -> Iterator[Case]:
    entry = tensor("WORK_MS", "INT32", [1, 1], [0])
    for level in (4, 2**40):
        request = infer("priority", document(entry, parameters={"priority": level}))
        field = "'parameters.priority'"
        yield Case(f"priority-{level}-of-3", request, KNOWN_LEVELS, field, server="b")
    beyond = echo("INT32", [1], parameters={"priority": 4})
    yield Case("priority-4-of-none", beyond)


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
    yield Case("unknown-version-with-a-bad-body", infer("whoami", b"{", version="3"))


def empties() -> Iterator[Case]:
    entry = tensor("IN", "INT32", [1], [1])
    only = [output("EMPTY", binary_data=True)]
    mixed = [
        *only,
        output("FULL", binary_data=True),
        output("EMPTY_TEXT"),
        output("EMPTY_ROWS", binary_data=True),
    ]
    for name, request in {
        "outputs": document(entry),
        "outputs-to-binary": document(entry, parameters={"binary_data_output": True}),
        "outputs-mixed": document(entry, outputs=mixed),
        "output-alone-in-binary": document(entry, outputs=only),
    }.items():
        yield Case(f"empty-{name}", infer("empty_out", request))
    yield Case("empty-FP32", echo("FP32", []))
    yield Case("empty-BYTES", echo("BYTES", []))
    yield Case("empty-BYTES-2x0", echo("BYTES", [[], []], [2, 0]))
    yield Case("empty-0x3", echo("FP32", [], [0, 3]))


CASES = [
    *changed(),
    *documents(),
    *parameters(),
    *batches(),
    *classifications(),
    *priorities(),
    *model_errors(),
    *empties(),
]
