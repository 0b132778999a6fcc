import math

import pytest

from gateway.codec.request_parameters import request_parameters
from gateway.faults import Fault, Kind


def refusal(parameters: dict) -> str:
    with pytest.raises(Fault) as caught:
        request_parameters(parameters)
    assert caught.value.kind is Kind.INVALID
    return caught.value.message


def test_known_and_custom_parameters_keep_their_types_and_their_order() -> None:
    parameters = {
        "z": "text",
        "sequence_id": 2**64 - 1,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 0,
        "timeout": 2**64 - 1,
        "headers": "",
        "i": -(2**63),
        "f": 1.0,
        "b": False,
    }
    kept, binary_default = request_parameters(parameters)
    assert list(kept.items()) == list(parameters.items())
    assert {key: type(value) for key, value in kept.items()} == {
        key: type(value) for key, value in parameters.items()
    }
    assert binary_default is False


@pytest.mark.parametrize("wanted", [True, False])
def test_binary_data_output_is_taken_out(wanted) -> None:
    assert request_parameters({"binary_data_output": wanted, "a": 1}) == ({"a": 1}, wanted)


def test_a_custom_integer_beyond_int64_becomes_a_double() -> None:
    kept, _ = request_parameters({"a": 2**63, "b": 2**63 - 1})
    assert kept == {"a": 2.0**63, "b": 2**63 - 1}
    assert [type(value) for value in kept.values()] == [float, int]


def test_a_custom_double_need_not_be_finite() -> None:
    kept, _ = request_parameters({"a": math.inf})
    assert kept == {"a": math.inf}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sequence_id", -1),
        ("sequence_id", 1.0),
        ("sequence_id", True),
        ("sequence_id", None),
        ("sequence_id", 2.0**64),
        ("sequence_id", "a\0b"),
        ("sequence_start", 1),
        ("sequence_start", None),
        ("sequence_end", "true"),
        ("priority", "1"),
        ("priority", -1),
        ("priority", 1.5),
        ("priority", True),
        ("timeout", None),
        ("timeout", 2.0**64),
        ("binary_data_output", 1),
        ("custom", "a\0b"),
        ("nul\0key", 1),
        ("k" * 70_000, 1),
    ],
)
def test_a_wrong_value_names_its_key(key, value) -> None:
    assert f"Unable to parse 'parameters.{key}"[:100] in refusal({key: value})


def test_a_string_sequence_id_has_at_most_128_bytes() -> None:
    for fits in ("", "x" * 128, "é" * 64):
        assert request_parameters({"sequence_id": fits})[0] == {"sequence_id": fits}
    for too_long in ("x" * 129, "é" * 65):
        assert "string correlation ID cannot be longer than 128 characters" in refusal(
            {"sequence_id": too_long}
        )


@pytest.mark.parametrize("value", [None, [], {"y": 1}])
def test_a_custom_parameter_of_another_type_is_refused(value) -> None:
    message = refusal({"headers": value})
    assert message.startswith("parameter 'headers' has invalid type")
    assert "'parameters.headers'" in message


@pytest.mark.parametrize("key", ["triton_", "triton_enable_empty_final_response"])
def test_tritons_own_keys_are_refused(key) -> None:
    message = refusal({key: True})
    assert "parameter keys starting with 'triton_' are reserved for Triton usage" in message
    assert f"'parameters.{key}'" in message


def test_more_parameters_than_any_model_has_are_refused() -> None:
    assert request_parameters({str(key): key for key in range(4096)})
    assert "more than 4096" in refusal({str(key): key for key in range(4097)})
