from config.merge import merge
from config.tree import Node
from config.yaml_lines import parse


def _merge(*texts: str) -> tuple[Node, list[str]]:
    roots = [parse(text.encode(), f"{number}.yaml")[0] for number, text in enumerate(texts)]
    root, problems = merge(roots)
    return root, [str(problem) for problem in problems]


def test_mappings_are_joined_at_every_level_and_lists_one_after_the_other():
    root, problems = _merge("s: [1]\na: {x: {p: 1}}", "s: [2, 3]\na: {x: {q: 2}, y: 3}", "b: 4")
    assert problems == []
    assert root.plain() == {"s": [1, 2, 3], "a": {"x": {"p": 1, "q": 2}, "y": 3}, "b": 4}


def test_joined_items_keep_the_file_line_and_position_they_were_written_at():
    root, _ = _merge("s: [1]", "\n\ns:\n  - 2\n")
    node = root.find(("s", 1))[0][-1]
    assert (node.file, node.line, node.key) == ("1.yaml", 4, "s[0]")


def test_the_same_scalar_in_two_files_names_both_even_when_equal():
    root, problems = _merge("a:\n  b: 1", "c: 1", "\na: {b: 1}")
    assert problems == ["2.yaml:2: a.b: also written in 0.yaml:2 - keep it in one file only"]
    assert root.find(("a", "b"))[0][-1].bad


def test_values_of_different_kinds_are_a_conflict_too():
    _, problems = _merge("a: {b: 1}\nc: []", "a: 1\nc: {}")
    assert problems == [
        "1.yaml:1: a: also written in 0.yaml:1 - keep it in one file only",
        "1.yaml:2: c: also written in 0.yaml:2 - keep it in one file only",
    ]


def test_marks_survive_joining():
    root, _ = _merge("a: {b: 1}", "a: {1: 2}")
    assert root.find(("a",))[0][-1].bad
    assert not root.bad


def test_one_file_stays_as_it_is():
    assert _merge("a: 1")[0].plain() == {"a": 1}
