import json
import math

import pytest

from gateway.codec.json_document import parse_document, parse_members
from gateway.faults import Fault, Kind

ALWAYS, NEVER = 0, 1 << 40

THRESHOLDS = pytest.mark.parametrize("simd_from_bytes", [ALWAYS, NEVER], ids=["simd", "plain"])


def plain(value):
    """Lists in place of the arrays that simdjson keeps."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if hasattr(value, "as_list"):
        return value.as_list()
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def refusal(text: bytes, simd_from_bytes: int) -> str:
    with pytest.raises(Fault) as caught:
        parse_document(text, simd_from_bytes=simd_from_bytes)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@THRESHOLDS
@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b' {"id": "a"}\n',
        b'{"id": "\\u0000\\ud83d\\ude00"}',
        b'{"inputs": [], "outputs": [{"name": "a", "parameters": {"classification": 2}}]}',
        b'{"inputs": [{"name": "a", "shape": [1, -0, 18446744073709551615], "data": [1, 2.5]}]}',
        b'{"inputs": [7, "x", null, [1], {"data": {"b64": "x"}}]}',
        b'{"inputs": {"data": [1]}, "parameters": {"a": 0.1, "b": [1, {}], "c": null}}',
        b'{"inputs": "x", "parameters": [1]}',
        b'{"parameters": {"a": 1, "a": 2}}',
        b'{"inputs": [{"parameters": {"a": 1, "a": 2}, "data": [[1], []]}]}',
    ],
)
def test_both_parsers_read_a_document_as_the_standard_library_does(text, simd_from_bytes) -> None:
    assert plain(parse_document(text, simd_from_bytes=simd_from_bytes)) == json.loads(text)


@THRESHOLDS
@pytest.mark.parametrize(
    "text",
    [
        b'{"id": "a", "id": "b"}',
        b'{"inputs": [{"name": "x", "name": "b"}], "id": "b"}',
        b'{"unknown": 1, "unknown": 2, "id": "b"}',
    ],
)
def test_of_a_repeated_key_the_last_one_counts(text, simd_from_bytes) -> None:
    document = parse_document(text, simd_from_bytes=simd_from_bytes)
    assert document.get("id") == "b"
    assert [entry["name"] for entry in document.get("inputs", [])] in ([], ["b"])


@THRESHOLDS
def test_integers_beyond_64_bits_are_doubles(simd_from_bytes) -> None:
    text = b'{"parameters": {"a": 18446744073709551616, "b": -9223372036854775809}}'
    parameters = parse_document(text, simd_from_bytes=simd_from_bytes)["parameters"]
    assert parameters == {"a": 2.0**64, "b": -(2.0**63)}
    assert {type(value) for value in parameters.values()} == {float}


@THRESHOLDS
def test_the_lenient_parser_draws_the_64_bit_line_at_the_same_place(simd_from_bytes) -> None:
    text = (
        b'{"parameters": {"n": NaN, "a": 18446744073709551615, "b": 18446744073709551616,'
        b'"c": -9223372036854775808, "d": -9223372036854775809, "e": 1%s, "f": 7}}' % (b"0" * 300)
    )
    values = parse_document(text, simd_from_bytes=simd_from_bytes)["parameters"]
    assert math.isnan(values.pop("n"))
    assert values == {"a": 2**64 - 1, "b": 2.0**64, "c": -(2**63), "d": -(2.0**63), "e": 1e300} | {
        "f": 7
    }
    assert [type(values[key]) for key in "abcdef"] == [int, float, int, float, float, int]


@THRESHOLDS
def test_bare_tokens_are_numbers_and_the_same_letters_in_strings_stay(simd_from_bytes) -> None:
    text = (
        b'{"id": "Inf NaN \\"Inf\\" \\\\", "inputs": [{"data": '
        b"[NaN, Infinity, -Infinity, Inf, -Inf, 1.5, 2]}]}"
    )
    document = parse_document(text, simd_from_bytes=simd_from_bytes)
    data = document["inputs"][0]["data"]
    assert document["id"] == 'Inf NaN "Inf" \\'
    assert math.isnan(data[0])
    assert data[1:] == [math.inf, -math.inf, math.inf, -math.inf, 1.5, 2]


def test_members_keep_repeated_keys_and_objects_inside_are_members_too() -> None:
    members = parse_members(b'{"a": {"b": [1, {}]}, "a": -Inf, "c": {}}')
    assert members == (("a", (("b", [1, ()]),)), ("a", -math.inf), ("c", ()))


@THRESHOLDS
def test_long_infinities_alone_need_no_rewriting(simd_from_bytes) -> None:
    document = parse_document(b'{"id": -Infinity}', simd_from_bytes=simd_from_bytes)
    assert document["id"] == -math.inf


NOT_JSON = [
    b"",
    b" ",
    b"{}{}",
    b"{} x",
    b"{}\x00",
    b'\xef\xbb\xbf{"id": "a"}',
    '{"id": "a"}'.encode("utf-16"),
    b'{"id": "\xff"}',
    b'{"id": "\xed\xa0\x80"}',
    b'{"id": "a\nb"}',
    b'{"id": "\\ud800"}',
    b"{'id': 'a'}",
    b'{"id": 01}',
    b'{"id": nan}',
    b'{"id": Infx}',
    b'{"id": NaN',
    b'\xef\xbb\xbf{"id": NaN}',
    b'{"id": NaN, "x": "\xff"}',
    b'{"id": NaN, "x": "\\ud800"}',
    b'{"id": NaN, "x": "\\ud83d\\ude00\\udc00"}',
    b'{"id": NaN, "x": ' + b"[" * 100_000,
]


@THRESHOLDS
@pytest.mark.parametrize("text", [*NOT_JSON, b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}"])
def test_what_is_not_json_is_refused_with_tritons_lead(text, simd_from_bytes) -> None:
    message = refusal(text, simd_from_bytes)
    assert message.startswith("failed to parse the request JSON buffer: ")
    assert len(message) < 250


@pytest.mark.parametrize("text", [*NOT_JSON, b"null", b"[]", b'"x"', b"7", b"[NaN]"])
def test_members_of_what_is_no_object_are_refused_with_tritons_lead(text) -> None:
    with pytest.raises(Fault, match=r"^failed to parse the request JSON buffer: "):
        parse_members(text)


@THRESHOLDS
@pytest.mark.parametrize("text", [b"null", b"[]", b'"x"', b"7", b"[NaN]"])
def test_a_document_that_is_not_an_object_is_refused(text, simd_from_bytes) -> None:
    assert "not an object" in refusal(text, simd_from_bytes)


@THRESHOLDS
@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" + b"0" * 400, b"9" * 5000])
@pytest.mark.parametrize("company", [b"0", b"NaN"])
def test_a_number_no_double_holds_is_refused(number, company, simd_from_bytes) -> None:
    text = b'{"id": [%s, %s]}' % (company, number)
    assert "Number too big to be stored in double" in refusal(text, simd_from_bytes)


@THRESHOLDS
def test_an_escaped_backslash_before_ud800_is_no_surrogate(simd_from_bytes) -> None:
    document = parse_document(
        b'{"id": "\\\\ud800\\ud83d\\ude00", "x": NaN}', simd_from_bytes=simd_from_bytes
    )
    assert document["id"] == "\\ud800\U0001f600"


def test_large_bodies_keep_the_data_array_as_numbers_in_simdjson() -> None:
    """The fast path is taken for flat and for nested data, over many bracket-scan chunks."""
    rows = ",".join(["[1,2.5]"] * 300_000)
    for data in ("[1,2]", f"[{rows}]", '["]]]]]", "[["]'):
        text = f'{{"inputs": [{{"data": {data}}}]}}'.encode()
        document = parse_document(text, simd_from_bytes=ALWAYS)
        assert hasattr(document["inputs"][0]["data"], "as_buffer")


@pytest.mark.parametrize("before", [b"", b'"x": "' + b"]" * 200 + b'",'])
@pytest.mark.parametrize("gap_bytes", [0, 3 << 20])
def test_data_nested_too_deeply_never_stays_in_simdjson(before, gap_bytes) -> None:
    """Whatever brackets a string holds, and wherever the scan's chunks end."""
    gap = b" " * gap_bytes
    nested = b"[" * 60 + gap + b"[" * 41 + b"1" + b"]" * 101
    text = b"{" + before + b'"inputs": [{"data": ' + nested + b"}]}"
    document = parse_document(text, simd_from_bytes=ALWAYS)
    assert isinstance(document["inputs"][0]["data"], list)
