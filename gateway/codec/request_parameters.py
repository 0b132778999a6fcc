"""Request-level parameters: which keys Triton knows and what each may hold.

Decides the type of every parameter, so that a value Triton's gRPC front end would refuse or cut is
refused here, naming the key. Refuses to know what the values do. Called by the readers of infer and
generate requests.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.codec.request_fields import (
    INT64_MAX,
    UINT64_MAX,
    check_entries,
    checked_bool,
    checked_text,
    checked_unsigned,
    path_of,
    unparsable,
)
from gateway.codec.types import Scalar
from gateway.faults import Fault

MAX_SEQUENCE_ID_BYTES: Final = 128
_WHERE: Final = "parameters"


def request_parameters(parameters: dict[str, Any]) -> tuple[dict[str, Scalar], bool]:
    """Return the parameters for the server, in order, and `binary_data_output`.

    `binary_data_output` is about the HTTP body only and never travels: Triton's gRPC front end
    would hand it to the model as a custom parameter.
    """
    check_entries(len(parameters), _WHERE)
    kept: dict[str, Scalar] = {}
    binary_default = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary_default = checked_bool(value, _WHERE, key)
        else:
            kept[key] = checked_parameter(value, _WHERE, key)
    return kept, binary_default


def checked_parameter(value: Any, where: str, key: str) -> Scalar:
    """Return the value of a parameter in the object at `where`."""
    return _RULES.get(key, _custom)(value, where, key)


def _sequence_id(value: Any, where: str, key: str) -> Scalar:
    if type(value) is int and 0 <= value <= UINT64_MAX:
        return value
    if type(value) is not str:
        reason = f"expected a string or an integer from 0 to {UINT64_MAX}"
        raise unparsable(path_of(where, key), reason)
    if len(value.encode()) > MAX_SEQUENCE_ID_BYTES:
        raise Fault.invalid(
            f"string correlation ID cannot be longer than {MAX_SEQUENCE_ID_BYTES} characters "
            f"(bytes of UTF-8), see '{path_of(where, key)}'"
        )
    return checked_text(value, where, key)


def _flag(value: Any, where: str, key: str) -> Scalar:
    return checked_bool(value, where, key)


def _unsigned(value: Any, where: str, key: str) -> Scalar:
    return checked_unsigned(value, where, key)


def _custom(value: Any, where: str, key: str) -> Scalar:
    """Accept what Triton's InferParameter holds; an integer over 64 bits becomes a double there."""
    if key.startswith("triton_"):
        raise Fault.invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not "
            f"be specified, see '{path_of(where, key)}'"
        )
    checked_text(key, where, key)
    match value:
        case bool() | float():
            return value
        case int():
            return value if value <= INT64_MAX else float(value)
        case str():
            if "\0" in value:
                raise unparsable(path_of(where, key), "a NUL character is not allowed here")
            return value
    raise Fault.invalid(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', 'double' or "
        f"'string', see '{path_of(where, key)}'"
    )


_RULES: Final[Mapping[str, Callable[[Any, str, str], Scalar]]] = {
    "sequence_id": _sequence_id,
    "sequence_start": _flag,
    "sequence_end": _flag,
    "priority": _unsigned,
    "timeout": _unsigned,
}
