import pytest

from config.model_checks import check_models
from config.yaml_lines import parse

_SERVERS = """\
servers:
  - {name: gpu-1, pool: large}
  - {name: gpu-2, pool: small, serve: [resnet*]}
  - {name: cpu-1, serve: ["[a-m]*", "n?"]}
"""


def _check(models: str, rest: str = _SERVERS) -> list[str]:
    root, problems = parse(f"models: {{{models}}}\n{rest}".encode(), "f")
    assert problems == []
    return [str(problem) for problem in check_models(root)]


@pytest.mark.parametrize(
    "models",
    [
        "",
        "m: {}",
        "m: {pool: large, capacity: {gpu-1: 2, cpu-1: 1}}",
        "resnet50: {pool: small}",
        "m: {pool: ~, capacity: ~, hedging: ~, deadline_s: ~}",
        "m: {hedging: {after_s: 60}}",
        "m: {deadline_s: 100, hedging: {after_s: 99}}",
        "m: {idempotent: false}",
        "m: {idempotent: true, hedging: {after_s: 1}}",
    ],
)
def test_rules_that_fit_the_servers(models):
    assert _check(models) == []


def test_a_hedge_comes_before_the_deadline_of_its_model():
    after = "f:1: models.m.hedging.after_s: models.m.hedging.after_s"
    assert _check("m: {hedging: {after_s: 61}}") == [
        f"{after} (61) is above deadlines.default_s (60) - lower it or raise deadlines.default_s"
    ]
    assert _check("m: {deadline_s: 2, hedging: {after_s: 3}}") == [
        f"{after} (3) is above models.m.deadline_s (2) - lower it or raise models.m.deadline_s"
    ]


def test_what_must_not_run_twice_is_not_hedged():
    assert _check("m: {idempotent: false, hedging: {after_s: 1}}") == [
        "f:1: models.m.hedging: a hedged request may run twice, and idempotent is false"
        " - remove one of the two"
    ]


def test_capacities_are_of_servers():
    assert _check("m: {capacity: {gpu1: 2, far: 1}}") == [
        "f:1: models.m.capacity.gpu1: no server has the name 'gpu1' - did you mean 'gpu-1'?",
        "f:1: models.m.capacity.far: no server has the name 'far'"
        " - correct it (there are: gpu-1, gpu-2, cpu-1)",
    ]


def test_many_servers_are_not_all_listed():
    servers = "servers:\n" + "".join(f"  - {{name: s{number}}}\n" for number in range(9))
    (problem,) = _check("m: {capacity: {other: 1}}", servers)
    assert problem.endswith("(there are: s0, s1, s2, s3, s4, s5, s6, s7, ...)")


def test_a_pool_has_servers():
    assert _check("m: {pool: lrge}, n: {pool: x}") == [
        "f:1: models.m.pool: no server is in the pool 'lrge' - did you mean 'large'?",
        "f:1: models.n.pool: no server is in the pool 'x' - correct it (there are: large, small)",
    ]
    assert _check("m: {pool: x}", "servers: [{name: a}]") == [
        "f:1: models.m.pool: no server is in the pool 'x'"
        " - write it as `pool` of the servers that are in it"
    ]


def test_a_placement_names_servers_there_are():
    assert _check("m: {placement: [gpu-1, 'cpu*', '*']}") == []
    assert _check("m: {placement: [gpu-1, gpu-3, 'x*']}") == [
        "f:1: models.m.placement[1]: no server's name fits 'gpu-3' - did you mean 'gpu-2'?",
        "f:1: models.m.placement[2]: no server's name fits 'x*'"
        " - correct it (there are: gpu-1, gpu-2, cpu-1)",
    ]


def test_a_model_fits_a_pattern_of_some_server_it_may_run_on():
    assert _check("m: {pool: small}") == [
        "f:1: models.m: no server of the pool 'small' has a `serve` pattern that this model fits"
        " - add one, or remove the model here"
    ]
    servers = "servers: [{name: a, serve: [x, 'm?']}, {name: b, serve: [M]}]"
    assert _check("m: {}, m2: {}", servers) == [
        "f:1: models.m: no server has a `serve` pattern that this model fits"
        " - add one, or remove the model here"
    ]


@pytest.mark.parametrize(
    ("models", "bad"),
    [
        ("m: {hedging: {after_s: 61}}", ("models",)),
        ("m: {hedging: {after_s: 61}}", ("models", "m")),
        ("m: {hedging: {after_s: 61}}", ("models", "m", "hedging", "after_s")),
        ("m: {deadline_s: 2, hedging: {after_s: 3}}", ("models", "m", "deadline_s")),
        ("m: {idempotent: false, hedging: {after_s: 1}}", ("models", "m", "idempotent")),
        ("m: {idempotent: false, hedging: {after_s: 1}}", ("models", "m", "hedging")),
        ("m: {capacity: {x: 1}}", ("models", "m", "capacity")),
        ("m: {capacity: {x: 1}}", ("models", "m", "capacity", "x")),
        ("m: {capacity: {x: 1}}", ("servers",)),
        ("m: {capacity: {x: 1}}", ("servers", 1, "name")),
        ("m: {pool: x}", ("models", "m", "pool")),
        ("m: {placement: [x]}", ("models", "m", "placement")),
        ("m: {placement: [x]}", ("models", "m", "placement", 0)),
        ("m: {placement: [x]}", ("servers", 0, "name")),
        ("m: {pool: x}", ("servers", 2)),
        ("m: {pool: x}", ("servers", 1, "pool")),
        ("m: {pool: small}", ("models", "m", "pool")),
        ("m: {pool: small}", ("servers", 0, "pool")),
        ("m: {pool: small}", ("servers", 0)),
        ("m: {pool: small}", ("servers", 1, "serve")),
        ("m: {pool: small}", ("servers", 1, "serve", 0)),
    ],
)
def test_nothing_is_concluded_from_what_is_wrong_already(models, bad):
    assert _check(models) != []
    root, _ = parse(f"models: {{{models}}}\n{_SERVERS}".encode(), "f")
    root.find(bad)[0][-1].bad = True
    assert list(check_models(root)) == []


def test_without_servers_nothing_is_said_of_them():
    assert _check("m: {pool: x, capacity: {y: 1}}", "") == []
