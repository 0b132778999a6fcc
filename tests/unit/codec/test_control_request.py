"""Bodies of the routes that change servers: what is understood, and what is refused and why."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.codec.control_request import (
    LoadRequest,
    parse_load,
    parse_log,
    parse_trace,
    parse_unload,
)
from gateway.faults import Fault, Kind

Parse = Callable[[bytes], Any]


def given(**parameters: Any) -> bytes:
    return json.dumps({"parameters": parameters}).encode()


def fault(parse: Parse, body: bytes) -> Fault:
    with pytest.raises(Fault) as caught:
        parse(body)
    return caught.value


def test_a_load_may_bring_a_config_and_files() -> None:
    content = bytes(range(256))
    files = {"file:1/model.py": base64.b64encode(content).decode(), "file:x": ""}
    assert parse_load(given(config="{}", **files)) == LoadRequest(
        "{}", {"file:1/model.py": content, "file:x": b""}
    )


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{}}', b'{"x":1}'])
def test_a_load_may_bring_nothing(body: bytes) -> None:
    assert parse_load(body) == LoadRequest()
    assert parse_unload(body) is False


def test_a_long_config_is_taken() -> None:
    assert parse_load(given(config=" " * 100_000)).config == " " * 100_000


def test_an_unload_may_take_dependents_along() -> None:
    assert parse_unload(given(unload_dependents=True)) is True


def test_trace_settings_are_lists_of_values() -> None:
    body = b'{"trace_level":["A","B"],"trace_rate":"5","trace_count":null,"x":[1]}'
    assert parse_trace(body) == {"trace_level": ["A", "B"], "trace_rate": ["5"], "trace_count": []}
    assert parse_trace(b'{"trace_level":null}') == {"trace_level": []}


def test_log_settings_keep_their_types() -> None:
    body = (
        b'{"log_info":true,"log_error":null,"log_verbose_level":4294967295,"log_format":"ISO8601"}'
    )
    assert parse_log(body) == {
        "log_info": True,
        "log_verbose_level": 2**32 - 1,
        "log_format": "ISO8601",
    }
    assert parse_log(b'{"log_file":null,"x":1}') == {}


@pytest.mark.parametrize(
    ("parse", "body", "text"),
    [
        (parse_load, b"[]", "not an object"),
        (parse_load, b'{"parameters":null}', "'parameters': expected an object"),
        (parse_load, given(x=1), "'parameters.x': unrecognized load parameter"),
        (parse_load, given(config={}), "'parameters.config': expected a string"),
        (parse_load, given(config="\0"), "'parameters.config': expected a string"),
        (parse_load, given(config="", **{"file:a": 1}), "'parameters.file:a': expected a string"),
        (parse_load, given(config="", **{"file:a": "é"}), "'parameters.file:a': expected base64"),
        (parse_load, given(config="", **{"file:a": "YQ"}), "'parameters.file:a': expected base64"),
        (parse_load, given(**{"file:a": "YQ=="}), "'parameters': files need a `config`"),
        (parse_unload, given(unload_dependents=1), "expected a boolean"),
        (parse_trace, b"", "failed to parse the request JSON buffer"),
        (parse_trace, b'{"trace_level":["A",1]}', "'trace_level[1]': expected a string"),
        (parse_trace, b'{"trace_level":"A"}', "'trace_level': expected an array"),
        (parse_trace, b'{"trace_count":5}', "'trace_count': expected a string"),
        (parse_log, b"", "failed to parse the request JSON buffer"),
        (parse_log, b'{"log_warning":0}', "'log_warning': expected a boolean"),
        (parse_log, b'{"log_verbose_level":4294967296}', "an integer from 0 to 4294967295"),
        (parse_log, b'{"log_format":"x"}', "'log_format': expected one of default, ISO8601"),
    ],
)
def test_what_is_malformed_is_named(parse: Parse, body: bytes, text: str) -> None:
    found = fault(parse, body)
    assert found.kind is Kind.INVALID
    assert text in found.message


@pytest.mark.parametrize(
    ("parse", "body", "which"),
    [
        (parse_trace, b'{"trace_file":null}', "trace"),
        (parse_log, b'{"log_file":"x"}', "log"),
    ],
)
def test_files_stay_where_they_are(parse: Parse, body: bytes, which: str) -> None:
    found = fault(parse, body)
    assert found.kind is Kind.UNSUPPORTED
    text = f"{which} file location can not be updated through network protocol"
    assert found.message == text
