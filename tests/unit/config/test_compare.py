from config.compare import Difference, differences, digest
from config.loader import load_text
from config.models import Config

A = "servers: [{name: a, grpc: 'a:1'}]\n"


def config(more: str = "", servers: str = A) -> Config:
    return load_text(servers + more, "f")


def told(before: Config, after: Config) -> dict[str, tuple[object, object]]:
    return {found.key: (found.before, found.after) for found in differences(before, after)}


def test_how_it_is_written_makes_no_difference():
    plain = config()
    written = config(
        "# a comment\nretries: {max_attempts: 3}\nmodels: {m: {}}\n",
        servers="servers:\n- grpc: a:1\n  name: a\n",
    )
    assert differences(plain, written) == []
    assert digest(config("api: {port: 1}")) == digest(config("api:\n  port: 1"))
    assert digest(plain) != digest(config("api: {port: 1}"))
    assert len(digest(plain)) == 12


def test_values_are_told_with_their_key():
    before = config("balancing: {policy: peak_ewma}\nops: {key: {env: A}}\n")
    after = config("retries: {max_attempts: 1}\n")
    assert told(before, after) == {
        "ops.key": ({"env": "A"}, None),
        "balancing.policy": ("peak_ewma", "least_request"),
        "retries.max_attempts": (3, 1),
    }


def test_servers_are_told_by_name_whatever_their_order():
    two = "servers: [{name: a, grpc: 'a:1'}, {name: b.c, grpc: 'b:1'}]\n"
    turned = "servers: [{name: b.c, grpc: 'b:1'}, {name: a, grpc: 'a:1', serve: [x]}]\n"
    assert told(config(servers=two), config(servers=turned)) == {
        "servers.a.serve": (["*"], ["x"]),
    }
    (added,) = differences(config(), config(servers=two))
    assert added.loc == ("servers", "b.c")
    assert added.key == 'servers["b.c"]'
    assert added.before is None
    assert added.after["grpc"] == "b:1"
    assert differences(config(servers=two), config()) == [Difference(added.loc, added.after, None)]


def test_a_model_that_is_not_listed_has_the_usual_policy():
    listed = config("models: {m: {policy: round_robin, capacity: {a: 2.0}}}\n")
    there = {"models.m.policy": (None, "round_robin"), "models.m.capacity.a": (None, 2.0)}
    assert told(config(), listed) == there
    back = {key: (after, before) for key, (before, after) in there.items()}
    assert told(listed, config()) == back
