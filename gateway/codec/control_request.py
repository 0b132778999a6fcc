"""Bodies of the routes that change servers: load, unload, trace and log settings.

Decides what a well-formed body of each is, and refuses the rest with the field's path. Keys that
Triton ignores are ignored. Refuses to know which servers are meant and what may be changed. Called
by the edge's handlers of these routes, and by the ops listener.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.codec.json_document import parse_document
from gateway.codec.request_fields import (
    checked_bool,
    checked_text,
    checked_unsigned,
    object_of,
    unparsable,
)
from gateway.faults import Fault

_FILE: Final = "file:"
_UINT32_MAX: Final = 2**32 - 1
_FORMATS: Final = ("default", "ISO8601")
_NOT_MOVED: Final = "{} file location can not be updated through network protocol"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a model is loaded with instead of what lies in the repository.

    `config` is the JSON text of a ModelConfig; `files` the content of the model's directory, by
    `file:<version>/<name>`.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def parse_load(body: bytes) -> LoadRequest:
    """Read the body of a load; an empty one means the model as it lies in the repository.

    Raises Fault: INVALID.
    """
    parameters = _parameters(body)
    files = {}
    config = None
    for name, value in parameters.items():
        if name == "config":
            config = _config(value)
        elif name.startswith(_FILE):
            files[name] = _content(name, value)
        else:
            raise unparsable(f"parameters.{name}", "unrecognized load parameter")
    if files and config is None:
        raise unparsable("parameters", "files need a `config` beside them")
    return LoadRequest(config, files)


def parse_unload(body: bytes) -> bool:
    """Read the body of an unload: whether what the model is made of goes with it. Raises Fault."""
    name = "unload_dependents"
    return checked_bool(_parameters(body).get(name, False), "parameters", name)


def parse_trace(body: bytes) -> dict[str, list[str]]:
    """Read a change of trace settings: each with its values, none to go back to the default.

    Raises Fault.
    """
    document = _document(body)
    if "trace_file" in document:
        raise Fault.unsupported(_NOT_MOVED.format("trace"))
    values = {}
    if "trace_level" in document:
        values["trace_level"] = _levels(document["trace_level"])
    for name in ("trace_rate", "trace_count", "log_frequency"):
        if name in document:
            value = document[name]
            values[name] = [] if value is None else [checked_text(value, "", name)]
    return values


def parse_log(body: bytes) -> dict[str, bool | int | str]:
    """Read a change of log settings; what is null stays as it is. Raises Fault."""
    document = {name: value for name, value in _document(body).items() if value is not None}
    if "log_file" in document:
        raise Fault.unsupported(_NOT_MOVED.format("log"))
    values: dict[str, bool | int | str] = {
        name: checked_bool(document[name], "", name)
        for name in ("log_info", "log_warning", "log_error")
        if name in document
    }
    if "log_verbose_level" in document:
        level = checked_unsigned(
            document["log_verbose_level"], "", "log_verbose_level", _UINT32_MAX
        )
        values["log_verbose_level"] = level
    if "log_format" in document:
        values["log_format"] = _format(checked_text(document["log_format"], "", "log_format"))
    return values


def _document(body: bytes) -> dict[str, Any]:
    return parse_document(body, simd_from_bytes=len(body) + 1)


def _parameters(body: bytes) -> dict[str, Any]:
    return object_of(_document(body), "", "parameters") if body else {}


def _config(value: object) -> str:
    if type(value) is not str or "\0" in value:
        raise unparsable("parameters.config", "expected a string with the JSON of a configuration")
    return value


def _content(name: str, value: object) -> bytes:
    path = f"parameters.{name}"
    if type(value) is not str:
        raise unparsable(path, "expected a string")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise unparsable(path, "expected base64") from None


def _levels(value: object) -> list[str]:
    if value is None:
        return []
    if type(value) is not list:
        raise unparsable("trace_level", "expected an array of strings")
    return [checked_text(level, "", f"trace_level[{at}]") for at, level in enumerate(value)]


def _format(name: str) -> str:
    if name not in _FORMATS:
        raise unparsable("log_format", f"expected one of {', '.join(_FORMATS)}")
    return name
