import math

import pytest

from config.tree import Node
from config.yaml_lines import MAX_FILE_BYTES, Refused, parse


def _parse(text: str) -> tuple[Node, list[str]]:
    root, problems = parse(text.encode("utf-8", "surrogatepass"), "f")
    return root, [str(problem) for problem in problems]


def _plain(text: str) -> object:
    root, problems = _parse(text)
    assert problems == []
    return root.plain()


def _refusal(data: str | bytes) -> str:
    with pytest.raises(Refused) as caught:
        parse(data if isinstance(data, bytes) else data.encode(), "f")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-010", -10),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e999", math.inf),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!int '7'", 7),
        ("a\n b", "a b"),
        ("[]", []),
        ("{}", {}),
        ("''", ""),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(text, value):
    assert _plain(f"k: {text}") == {"k": value}


def test_a_byte_order_mark_and_windows_line_ends_are_fine():
    root, problems = parse(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f")
    assert (root.plain(), problems) == ({"a": 1, "b": 2}, [])
    assert root.find(("b",))[0][-1].line == 2


def test_every_value_knows_its_line_and_key():
    root, _ = _parse("# head\nservers:\n  - name: a\n    grpc:\n      x:1\n  -\n    b\n")
    seen = [root.find(loc)[0][-1] for loc in [("servers",), ("servers", 0), ("servers", 1)]]
    seen.append(root.find(("servers", 0, "grpc"))[0][-1])
    assert [(node.line, node.key) for node in seen] == [
        (2, "servers"),
        (3, "servers[0]"),
        (7, "servers[1]"),
        (4, "servers[0].grpc"),
    ]


def test_an_alias_has_the_line_it_was_written_in_and_the_key_it_is_used_by():
    root, _ = _parse("a: &a\n  k: 1\nb: *a\n")
    assert root.plain() == {"a": {"k": 1}, "b": {"k": 1}}
    node = root.find(("b", "k"))[0][-1]
    assert (node.line, node.key) == (2, "b.k")


def test_merged_keys_give_way_to_own_ones_and_earlier_merges_win():
    text = "z: &z {p: 1, q: 2}\ny: {q: 3, <<: *z}\nx: {<<: [*z, {p: 5, r: 6}]}\n"
    assert _plain(text) == {
        "z": {"p": 1, "q": 2},
        "y": {"p": 1, "q": 3},
        "x": {"p": 1, "q": 2, "r": 6},
    }
    assert _plain("z: &z {p: 1}\ny: {<<: *z, <<: {p: 2, q: 3}}") == {
        "z": {"p": 1},
        "y": {"p": 1, "q": 3},
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: a: written twice, first in line 1 - keep one of them"),
        ("a:\n  b: {}\n  b: 2\n", "f:3: a.b: written twice, first in line 2 - keep one of them"),
        ("a: 1\n2: 3\n", "f:2: a key is not text - put it in quotes"),
        ("a: {true: 3}\n", "f:1: a: a key is not text - put it in quotes"),
        ("? [a]\n: 3\n", "f:1: a key is not text - put it in quotes"),
        ("? !!str {a: b}\n: 3\n", "f:1: a key is not text - put it in quotes"),
        ('"\\ud800": 3\n', "f:1: a key is not text - put it in quotes"),
        ("a:\n", "f:1: a: nothing is written here - write a value, or remove the key"),
        ("a:\n  -\n", "f:2: a[0]: nothing is written here - write a value, or remove the key"),
        ("a: !x 1\n", "f:1: a: a tag is not understood here - remove it, or quote the text"),
        ("a: !!set {b}\n", "f:1: a: a tag is not understood here - remove it"),
        ("a: !!map [b]\n", "f:1: a: a tag is not understood here - remove it"),
        ("a: !!seq {b: 1}\n", "f:1: a: a tag is not understood here - remove it"),
        ("a: !!int x\n", "f:1: a: the value does not fit its type - write it as plain text"),
        ("a: !!bool x\n", "f:1: a: the value does not fit its type - write it as plain text"),
        (f"a: {'9' * 5000}\n", "f:1: a: the value does not fit its type - write it as plain text"),
        ('a: "\\udc00"\n', "f:1: a: the value does not fit its type - write it as plain text"),
        ("a: {<<: 1}\n", "f:1: a: `<<` takes an alias of a mapping - write one, or remove it"),
        ("a: {<<: [1]}\n", "f:1: a: `<<` takes an alias of a mapping - write one, or remove it"),
    ],
)
def test_problems_of_single_values_leave_the_rest_readable(text, problem):
    root, problems = _parse(text + "last: 1\n")
    assert problems == [problem]
    assert root.find(("last",))[0][-1].value == 1


def test_what_was_complained_about_is_marked():
    root, _ = _parse("a: 1\na: 2\nb:\nc: {1: 2}\nd: 1\n")
    marked = {key: root.find((key,))[0][-1].bad for key in "abcd"}
    assert marked == {"a": True, "b": True, "c": True, "d": False}
    assert not root.bad


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f:1: the file is empty - write at least `servers:`"),
        ("# nothing\n", "f:1: the file is empty - write at least `servers:`"),
        ("\n- a\n", "f:2: not a mapping - begin with a key such as `servers:`"),
        ("text", "f:1: not a mapping - begin with a key such as `servers:`"),
        ("!!set {a}", "f:1: not a mapping - begin with a key such as `servers:`"),
        ("a:\n\tb: 1\n", "f:2: a tab where YAML allows only spaces - write spaces instead"),
        ("a: 1\nb: *c\n", "f:2: an alias without its anchor - quote text that begins with *"),
        ("a: 1\n---\nb: 1\n", "f:2: a second document begins here - write one document a file"),
        ("a: !x!y z\n", "f:1: a tag that is not understood - quote text that begins with !"),
        (
            "a: &x 1\nb: &x 2\nc: *x\n",
            "f:2: an anchor of the same name as an earlier one - rename one of them",
        ),
        ("a: 1\nb: \x01\n", "f:2: a control character that YAML does not allow - remove it"),
        ("a: " + "[" * 40, "f:1: nested deeper than 32 levels - remove levels"),
        ("a: &a [*a]\n", "f:1: nested too deeply - an anchor must not contain itself"),
        ("a: &a\n  <<: *a\n", "f:1: nested too deeply - an anchor must not contain itself"),
        (
            "a: 1\nb: '\\U'\nc: \"\\U00110000\"\n",
            "f:3: an escape or number is beyond what YAML can hold - put text in single quotes",
        ),
        (
            'a: 1\nc: "\\UFFFFFFFF"\n',
            "f:2: an escape or number is beyond what YAML can hold - put text in single quotes",
        ),
        (
            f"%YAML 1.{'9' * 5000}\n---\na: 1",
            "f:1: an escape or number is beyond what YAML can hold - put text in single quotes",
        ),
        (
            "a: 1\nb: c: d\n",
            "f:2: not valid YAML: mapping values are not allowed here"
            " - check indentation, quotes and brackets here",
        ),
        (
            "a: 'b\n",
            "f:2: not valid YAML: while scanning a quoted scalar, found unexpected end of stream"
            " - check indentation, quotes and brackets here",
        ),
    ],
)
def test_files_of_which_nothing_can_be_used(text, problem):
    assert _refusal(text) == problem


def test_text_that_is_not_utf_8_is_refused_at_its_line():
    assert _refusal(b"a: 1\nb: caf\xe9\n") == "f:2: not UTF-8 text - save the file as UTF-8"
    assert "not UTF-8" in _refusal("a: 1".encode("utf-16"))


def test_nothing_larger_than_the_limit_is_parsed():
    data = b"a: 1 #" + b"x" * (MAX_FILE_BYTES - 6)
    assert parse(data, "f")[0].plain() == {"a": 1}
    assert "larger than 1048576 bytes" in _refusal(data + b"x")


def test_aliases_that_unfold_without_end_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "unfolds to more than 100000 values" in _refusal("\n".join(lines))


def test_merges_that_unfold_without_end_are_refused():
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    assert "unfolds to more than 100000 values" in _refusal("\n".join(lines))


def test_a_file_of_too_many_values_is_refused():
    assert "more than 100000 values" in _refusal("a: [" + "1," * 100_000 + "]")


@pytest.mark.parametrize("text", ["key: *hunter2\n", "key: !hunter2 x\n", "key: !!int hunter2\n"])
def test_an_unquoted_secret_is_not_shown(text):
    try:
        _, problems = _parse(text)
    except Refused as refused:
        problems = [str(refused)]
    assert len(problems) == 1
    assert "hunter2" not in problems[0]
