"""Whatever is written, the loader answers with a configuration or with problems in one form."""

import json
import re
import string
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config.loader import Config, ConfigError, load_text
from config.models import Server
from config.policies import ModelPolicy

_LINE = re.compile(r"f:[1-9][0-9]*: .+")
_SERVER: dict[str, Any] = {"name": "a", "grpc": "a:1"}
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(string.printable, max_size=12),
)
_KEYS = st.sampled_from(
    [
        *(*Config.model_fields, *Server.model_fields, *ModelPolicy.model_fields),
        *("port", "host", "env", "file", "max_s", "after_s", "state_file", "m", "é"),
    ]
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


def _load(text: str) -> Config | list[str]:
    try:
        return load_text(text, "f")
    except ConfigError as error:
        refusal = error
    assert refusal.problems == sorted(set(refusal.problems))
    return str(refusal).split("\n")


def _told(result: Config | list[str]) -> list[str]:
    lines = result if isinstance(result, list) else []
    for line in lines:
        assert _LINE.fullmatch(line), line
    return lines


@given(st.text())
def test_any_text_is_judged_in_one_form(text):
    _told(_load(text))


@given(st.text(":-?[]{}&*!|>'\"%@`#,<~ \n\tab1.\\uU", max_size=60))
def test_any_punctuation_is_judged_in_one_form(text):
    _told(_load(text))


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
@settings(max_examples=200)
def test_any_tree_is_judged_in_one_form(tree):
    _told(_load(yaml.safe_dump(tree, allow_unicode=True)))


@given(st.dictionaries(_KEYS, st.dictionaries(_KEYS, _VALUES, max_size=4), max_size=3))
@settings(max_examples=200)
def test_any_models_are_judged_in_one_form(models):
    tree = {"servers": [_SERVER], "models": models}
    _told(_load(yaml.safe_dump(tree, allow_unicode=True)))


@given(_KEYS, _VALUES, st.sampled_from(["", "hunter2secret"]))
def test_a_literal_secret_is_never_told(key, value, secret):
    tree = {"servers": [_SERVER], key: value, "ops": {"key": secret}}
    lines = _told(_load(yaml.safe_dump(tree)))
    assert any(line.split(": ")[1].startswith("ops.key") for line in lines)
    assert not any("hunter2" in line for line in lines)


_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
_SECONDS = st.floats(0.001, 600) | st.integers(1, 600)


_CAPACITIES = st.floats(0.01, 100)
_POLICIES = st.sampled_from(["least_request", "peak_ewma", "round_robin"])
_POOLS = ["large", "small", "7"]


@st.composite
def _configurations(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    servers = [draw(_server(name, number)) for number, name in enumerate(names)]
    pools = sorted({server["pool"] for server in servers if "pool" in server})
    return {
        "servers": servers,
        "deadlines": {"default_s": draw(_SECONDS), "max_s": 600},
        "balancing": {"policy": draw(_POLICIES), "slow_start_s": draw(_SECONDS)},
        "models": draw(
            st.dictionaries(
                st.text(string.ascii_letters + string.digits + ".- é", min_size=1),
                _model(names, pools),
                max_size=4,
            )
        ),
    }


def _server(name: str, number: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "grpc": st.integers(1, 65535).map(lambda port: f"10.0.0.{number}:{port}"),
            "capacity": _CAPACITIES,
            "cancel_upstream": st.sampled_from(["auto", "always", "never"]),
        },
        optional={
            "serve": st.lists(st.sampled_from(["m", "a?"]), max_size=2).map(lambda s: [*s, "*"]),
            "pool": st.sampled_from(_POOLS),
        },
    )


def _model(names: list[str], pools: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "deadline_s": _SECONDS,
        "idempotent": st.sampled_from(["auto", True]),
        "default_version": st.integers(1, 2**31),
        "policy": _POLICIES,
        "capacity": st.dictionaries(st.sampled_from(names), _CAPACITIES),
        "compatible": st.booleans(),
        "hedging": st.just({"after_s": 0.001}),
    }
    if pools:
        optional["pool"] = st.sampled_from(pools)
    return st.fixed_dictionaries({}, optional=optional)


def _as_json(tree: dict[str, Any]) -> str:
    """JSON is YAML too, and unlike PyYAML's own output it quotes all text."""
    return json.dumps(tree, indent=1, ensure_ascii=False)


@given(_configurations())
def test_what_is_valid_loads_with_the_values_written(tree):
    text = _as_json(tree)
    config = load_text(text, "f")
    dumped = config.model_dump(exclude_unset=True)
    servers = tuple(
        {**server, "serve": tuple(server["serve"])} if "serve" in server else server
        for server in tree["servers"]
    )
    assert dumped == {**tree, "servers": servers}
    assert load_text("\n" + text, "g") == config


@given(_configurations(), st.data())
def test_a_single_mistake_is_told_at_its_line(tree, data):
    number = data.draw(st.integers(0, len(tree["servers"]) - 1))
    tree["servers"][number]["grpc"] = "http://broken"
    text = _as_json(tree)
    line = text[: text.index("http://broken")].count("\n") + 1
    assert _told(_load(text)) == [
        f"f:{line}: servers[{number}].grpc: 'http://broken' - write host:port without the scheme"
    ]
