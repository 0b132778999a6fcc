"""Checks of single request fields: the right JSON type, or a fault that says where and what.

Decides what a well-formed field is; refuses to know which names, datatypes and shapes a model
takes, which is left to Triton. Called by the readers of infer requests.
"""

from typing import Any, Final

from gateway.codec.types import OutputRequest
from gateway.faults import Fault

INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
MAX_TEXT_CHARS: Final = 65_536
"""Longest request id or tensor name: Triton repeats them in errors, which travel as headers."""
MAX_RANK: Final = 1024
"""Most dims a shape may have: far beyond any model, and small enough to multiply at no cost."""
MAX_ENTRIES: Final = 4096
"""Most inputs, outputs or parameters of a request: each costs far more time than bytes."""

_SHOWN_CHARS: Final = 200  # of a path, which may end in a key the client made up
_NO_SHARED_MEMORY: Final = (
    "shared memory is not supported through the gateway: it and the servers have no memory in "
    "common with the client; send '{path}' as JSON or binary data instead"
)


def path_of(where: str, key: str) -> str:
    """Join the path of an object and one of its keys: `inputs[0]` + `shape`."""
    return f"{where}.{key}" if where else key


def unparsable(path: str, reason: str) -> Fault:
    """Build the fault of a field that is not what it has to be, in Triton's words."""
    return Fault.invalid(f"Unable to parse '{path[:_SHOWN_CHARS]}': {reason}")


def checked_text(value: Any, where: str, key: str) -> str:
    """Return a string Triton takes whole: its front end cuts strings at the first NUL."""
    if type(value) is not str:
        raise unparsable(path_of(where, key), "expected a string")
    if "\0" in value:
        raise unparsable(path_of(where, key), "a NUL character is not allowed here")
    if len(value) > MAX_TEXT_CHARS:
        raise unparsable(path_of(where, key), f"longer than {MAX_TEXT_CHARS} characters")
    return value


def name_of(entry: dict[str, Any], where: str) -> str:
    """Return the name of an input or output."""
    if not entry.get("name"):
        raise unparsable(path_of(where, "name"), "expected a non-empty string")
    return checked_text(entry["name"], where, "name")


def object_of(entry: dict[str, Any], where: str, key: str) -> dict[str, Any]:
    """Return an optional object, empty when the key is absent."""
    if key not in entry:
        return {}
    value = entry[key]
    if type(value) is not dict:
        raise unparsable(path_of(where, key), "expected an object")
    return value


def checked_bool(value: Any, where: str, key: str) -> bool:
    """Return a JSON boolean."""
    if type(value) is not bool:
        raise unparsable(path_of(where, key), "expected a boolean")
    return value


def checked_unsigned(value: Any, where: str, key: str, highest: int = UINT64_MAX) -> int:
    """Return an integer from 0 to `highest`; true, false and 1.0 are not integers."""
    if type(value) is not int or not 0 <= value <= highest:
        raise unparsable(path_of(where, key), f"expected an integer from 0 to {highest}")
    return value


def check_entries(count: int, path: str, most: int = MAX_ENTRIES) -> None:
    """Refuse more inputs, outputs or parameters than any model has."""
    if count > most:
        raise unparsable(path, f"more than {most} entries")


def shape_of(entry: dict[str, Any], where: str) -> list[int]:
    """Return the shape of an input: at most MAX_RANK dims, each from 0 to 2**63 - 1."""
    shape = entry.get("shape")
    if type(shape) is not list:
        raise unparsable(path_of(where, "shape"), "expected an array of non-negative integers")
    if len(shape) > MAX_RANK:
        raise unparsable(path_of(where, "shape"), f"more than {MAX_RANK} dimensions")
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= INT64_MAX:
            reason = f"expected an array of non-negative integers up to {INT64_MAX}"
            raise unparsable(path_of(where, "shape"), reason)
    return shape


def refuse_shared_memory(parameters: dict[str, Any], where: str) -> None:
    """Refuse a tensor whose bytes are to be found in a shared-memory region."""
    if "shared_memory_region" in parameters:
        raise Fault.unsupported(_NO_SHARED_MEMORY.format(path=where))


def requested_outputs(document: dict[str, Any], most: int) -> list[OutputRequest]:
    """Read `outputs`. Absent or empty means all of the model's outputs."""
    if "outputs" not in document:
        return []
    entries = document["outputs"]
    if type(entries) is not list:
        raise unparsable("outputs", "expected an array of objects")
    check_entries(len(entries), "outputs", most)
    return [_requested_output(entry, f"outputs[{at}]") for at, entry in enumerate(entries)]


def _requested_output(entry: Any, where: str) -> OutputRequest:
    if type(entry) is not dict:
        raise unparsable(where, "expected an object")
    name = name_of(entry, where)
    parameters = object_of(entry, where, "parameters")
    if not parameters:
        return OutputRequest(name)
    refuse_shared_memory(parameters, where)
    where = path_of(where, "parameters")
    binary = checked_bool(parameters.get("binary_data", False), where, "binary_data")
    classes = parameters.get("classification", 0)
    return OutputRequest(
        name, binary, checked_unsigned(classes, where, "classification", INT64_MAX)
    )
