from config.tree import ConfigError, Node, Origin, Problem, join


def _tree() -> Node:
    item = Node("h:1", "f", 3, "servers[0]")
    return Node({"servers": Node([item], "f", 2, "servers")}, "f", 1)


def test_a_problem_is_one_line_with_and_without_a_key():
    assert str(Problem("f.yaml", 3, "api.port", "no")) == "f.yaml:3: api.port: no"
    assert str(Problem("f.yaml", 1, "", "empty")) == "f.yaml:1: empty"


def test_an_error_tells_each_problem_once_in_file_and_line_order():
    late, early = Problem("a", 10, "k", "m"), Problem("a", 9, "z", "m")
    other = Problem("b", 1, "k", "m")
    error = ConfigError([other, late, early, late])
    assert error.problems == [early, late, other]
    assert str(error) == "a:9: z: m\na:10: k: m\nb:1: k: m"


def test_keys_are_joined_so_that_they_can_be_read_back():
    assert join("", "api") == "api"
    assert join("api", "port") == "api.port"
    assert join("servers", 0) == "servers[0]"
    assert join("models", 'a.b"\n') == 'models["a.b\\"\\n"]'


def test_plain_gives_back_what_was_written():
    assert _tree().plain() == {"servers": ["h:1"]}


def test_find_stops_where_nothing_is_written():
    root = _tree()
    assert [node.line for node in root.find(("servers", 0))[0]] == [1, 2, 3]
    assert root.find(("servers", 0))[1] == ()
    assert root.find(("servers", 1, "grpc"))[1] == (1, "grpc")
    assert root.find(("servers", "0"))[1] == ("0",)
    assert root.find((0,))[1] == (0,)
    assert root.find(("servers", 0, "x"))[1] == ("x",)


def test_a_problem_below_a_value_carries_the_whole_key():
    nodes, rest = _tree().find(("servers", 0, "tls", "ca_file"))
    assert nodes[-1].problem("gone", rest) == Problem("f", 3, "servers[0].tls.ca_file", "gone")


def test_origins_do_not_take_part_in_comparisons():
    assert Origin(_tree()) == Origin()
