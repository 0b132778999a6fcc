"""What all sections of the configuration share: strictness, and the kinds of value they hold.

Decides what a well-formed address, name, duration or file name is. Knows no section and no rule
between two keys (`config.checks` has those). Used by the section modules beside it.
"""

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)

from config.tree import Origin

T = TypeVar("T")

MAX_PORT = 65_535
MAX_SECONDS = 2_147_483
"""The longest time gRPC can express: its options are 32-bit milliseconds (about 24 days)."""
MAX_WORKERS = 256
MAX_MESSAGE_BYTES = 2_147_483_647
"""The largest message protobuf and gRPC can carry: 2 GiB less one byte."""

_NAME = r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
_PATH = {"type": "string", "format": "path", "minLength": 1}
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")
_DECIMAL = re.compile(r"[0-9]{1,5}")
# One whole `[...]` as `fnmatch` reads it: a `]` that comes first stands for itself.
_CLASS = re.compile(r"\[!?+\]?+[^\]]*\]")
_SERVER_PATTERN = re.compile(r"[a-z0-9._*?\[\]!-]+")


class Section(BaseModel):
    """One mapping of the configuration: frozen, without conversions, without unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True)
class Source:
    """What validation is told about the text it judges: its folder, and where each value is."""

    folder: Path
    origin: Origin = field(default_factory=Origin)


def split_address(address: str) -> tuple[str, int]:
    """Split a valid `host:port` into the host, without brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def same_address(address: str) -> tuple[str, int]:
    """Return the form in which two spellings of one address (case, IPv6 zeros) are equal."""
    host, port = split_address(address)
    return same_host(host), port


def same_host(host: str) -> str:
    """Return the form in which two spellings of one host are equal."""
    parsed = parse_ip(host)
    return str(parsed) if parsed else host.lower().removesuffix(".")


def parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that `host` is, or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def check_address(text: str) -> str:
    """Return `host:port` as it is. Raises ValueError that says what to write instead."""
    if "://" in text:
        raise ValueError(f"{text!r} - write host:port without the scheme")
    if "/" in text:
        raise ValueError(f"{text!r} - write host:port without a path")
    host, colon, port = text.rpartition(":")
    if not colon or not port or not host:
        raise ValueError(f"{text!r} - write host:port, for example 10.0.0.5:8001")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"{text!r} - put an IPv6 address in brackets: [2001:db8::5]:8001")
    if bracketed and not isinstance(parse_ip(host[1:-1]), IPv6Address):
        raise ValueError(f"{text!r} - write an IPv6 address between the brackets")
    if not bracketed:
        _check_host(host)
    if not _DECIMAL.fullmatch(port) or not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} - write a port from 1 to {MAX_PORT} behind the colon")
    return text


def _check_host(host: str) -> str:
    if parse_ip(host):
        return host
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdigit():
        raise ValueError(f"{host!r} - write four numbers from 0 to 255, as in 10.0.0.5")
    if not all(_LABEL.fullmatch(label) and len(label) <= 63 for label in labels):
        raise ValueError(f"{host!r} - write an IP address or a DNS name")
    return host


def _check_name(name: str) -> str:
    if len(name) > 63 or not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{name[:80]!r} - use at most 63 of a-z 0-9 . _ - "
            "and begin and end with a letter or digit"
        )
    return name


def _check_model_name(name: str) -> str:
    if not name or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} - write the model's name as Triton lists it, without a slash")
    return name


def check_brackets(pattern: str) -> str:
    """Return a shell pattern whose brackets are closed. Raises ValueError."""
    if "[" in _CLASS.sub("", pattern):
        raise ValueError(f"{pattern!r} - close the bracket: [...]")
    return pattern


def _check_server_pattern(pattern: str) -> str:
    if not _SERVER_PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern[:80]!r} fits no server - names are of a-z 0-9 . _ -, patterns of these and"
            " * ? [...]"
        )
    return check_brackets(pattern)


def _check_server_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    # Pydantic's own minimum also complains when there are patterns and none of them is valid.
    if not patterns:
        raise ValueError("the list is empty - write a server's name or a pattern")
    return patterns


def not_empty(items: tuple[T, ...]) -> tuple[T, ...]:
    """Return items, at least one. Raises ValueError.

    Pydantic's own minimum also complains when there are items and none of them is valid.
    """
    if not items:
        raise ValueError("the list is empty - write at least one")
    return items


def _workers(value: object) -> object:
    # Said here in one sentence; a union would complain once for each of its parts.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value != "auto" and not (is_number and 1 <= value <= MAX_WORKERS):  # type: ignore[operator]
        raise ValueError(f"{value!r} - write auto, or a whole number from 1 to {MAX_WORKERS}")
    return value


def _no_number(value: object) -> object:
    # 1 == True, and a Literal compares.
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} (a number) is no choice - write auto, true or false")
    return value


def _resolve(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("the file name is empty - write a path, or remove the key")
    folder = info.context.folder if isinstance(info.context, Source) else Path()
    return folder / value


Address = Annotated[
    str,
    AfterValidator(check_address),
    WithJsonSchema({"type": "string", "pattern": r"^[^/]+:[0-9]{1,5}$"}),
]
"""`host:port`, an IPv6 host in brackets."""
Host = Annotated[str, AfterValidator(_check_host)]
"""An IP address without brackets, or a DNS name."""
Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": _NAME, "maxLength": 63}),
]
"""What an operator calls something: fits into headers, metrics and command lines as it is."""
ServerName = Name
ServerPattern = Annotated[
    str,
    AfterValidator(_check_server_pattern),
    WithJsonSchema({"type": "string", "pattern": "^[a-z0-9._*?\\[\\]!-]+$"}),
]
# YAML has lists, the configuration tuples: that step alone is lax.
ServerPatterns = Annotated[
    tuple[ServerPattern, ...],
    Strict(False),
    AfterValidator(_check_server_patterns),
    Field(json_schema_extra={"minItems": 1}),
]
"""Servers, by name or shell pattern; at least one."""
ModelName = Annotated[str, AfterValidator(_check_model_name)]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Text = Annotated[str, StringConstraints(min_length=1)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
"""The name of an HTTP header (RFC 9110, token)."""
FileName = Annotated[Path, BeforeValidator(_resolve), WithJsonSchema(_PATH)]
"""A path; a relative one counts from the folder of the configuration file that names it."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
SecondsOrZero = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
MessageBytes = Annotated[int, Field(ge=1, le=MAX_MESSAGE_BYTES)]
ListenPort = Annotated[int, Field(ge=0, le=MAX_PORT)]
Capacity = Annotated[float, Field(gt=0)]
"""A share of the work relative to other servers, without unit."""
Channels = Annotated[int, Field(ge=1, le=64)]
Auto = Annotated[Literal["auto", True, False], BeforeValidator(_no_number)]
Workers = Annotated[
    Annotated[int, Field(ge=1, le=MAX_WORKERS)] | Literal["auto"], BeforeValidator(_workers)
]
