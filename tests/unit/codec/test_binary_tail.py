import pytest

from gateway.codec.binary_tail import BinaryTail, framing_hint, parse_header_length, split_body
from gateway.faults import Fault, Kind

HEADER = "Inference-Header-Content-Length"


def refusal(function, *arguments) -> str:
    with pytest.raises(Fault) as caught:
        function(*arguments)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


@pytest.mark.parametrize(
    ("values", "length"),
    [([], None), (["0"], 0), (["12"], 12), (["007"], 7), (["9" * 19], 10**19 - 1), (["5"] * 3, 5)],
)
def test_the_header_is_digits_or_absent(values, length) -> None:
    assert parse_header_length(values) == length


@pytest.mark.parametrize(
    "text", ["", "-1", "+5", "5.0", "0x5", "5 5", "12abc", "\u0665", "1" * 20, "1" * 5000, "1_0"]
)
def test_any_other_header_is_refused_by_name(text) -> None:
    message = refusal(parse_header_length, [text])
    assert message.startswith(f"Unable to parse {HEADER}, got: ")
    assert len(message) < 120


def test_different_values_of_a_repeated_header_are_refused_by_name() -> None:
    assert HEADER in refusal(parse_header_length, ["5", "6"])
    assert HEADER in refusal(parse_header_length, ["5", "05"])


@pytest.mark.parametrize("length", [None, 5])
def test_without_a_tail_the_json_is_the_body_itself(length) -> None:
    body = b"abcde"
    text, tail = split_body(body, length)
    assert text is body
    assert len(tail) == 0


def test_the_tail_is_a_view_of_the_body() -> None:
    body = b"abcde"
    text, tail = split_body(body, 2)
    assert (text, bytes(tail)) == (b"ab", b"cde")
    assert tail.obj is body


@pytest.mark.parametrize("length", [6, -1, 2**63])
def test_a_length_beyond_the_body_is_refused_by_name(length) -> None:
    message = refusal(split_body, b"abcde", length)
    assert f"inference header size should be in range (0, 5), got: {length}" in message
    assert HEADER in message


def test_hints_name_the_header_only_where_it_may_be_the_cause() -> None:
    assert framing_hint(b"{", None) == ""
    assert HEADER + ": 0" in framing_hint(b"", None)
    assert HEADER in framing_hint(b'{"binary_data_size": 4}\0\0\0\0', None)
    assert "first 3 bytes" in framing_hint(b"abcd", 3)


def test_inputs_take_their_bytes_in_order_without_copying() -> None:
    body = b"aabbbc"
    tail = BinaryTail(memoryview(body), "m")
    taken = [tail.take(size, "IN") for size in (2, 0, 3, 1)]
    tail.check_used_up()
    assert [bytes(view) for view in taken] == [b"aa", b"", b"bbb", b"c"]
    assert all(view.obj is body for view in taken)


def test_a_tail_too_short_is_refused_with_what_is_missing() -> None:
    tail = BinaryTail(memoryview(b"abc"), "m")
    tail.take(2, "A")
    assert refusal(tail.take, 5, "B") == (
        "unexpected size for input 'B', expecting 4 additional bytes for model 'm'"
    )


def test_no_tail_at_all_suggests_the_header() -> None:
    assert HEADER in refusal(BinaryTail(memoryview(b""), "m").take, 2**63, "A")


def test_bytes_nobody_took_are_refused() -> None:
    tail = BinaryTail(memoryview(b"abc"), "m")
    tail.take(2, "A")
    message = refusal(tail.check_used_up)
    assert message.startswith("unexpected additional input data for model 'm'")
    assert "1 bytes more" in message
