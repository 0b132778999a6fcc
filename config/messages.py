"""What is said about a value that does not fit: what it is, and what to write instead.

Turns pydantic's error types into sentences for operators. Never shows what stands where a secret
is due. Called by `config.loader`.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError

from config.secrets import Secret
from config.shape import choices_at, section_at
from config.tree import Loc

_WANTED = {
    "string_type": ("text", "write it in quotes"),
    "is_instance_of": ("a file name", "write it in quotes"),
    "int_type": ("a whole number", "write it in digits, without quotes"),
    "float_type": ("a number", "write it in digits, without quotes"),
    "finite_number": ("a number", "write one that is not infinite"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "model_type": ("a mapping", "write its keys below it, indented"),
    "dict_type": ("a mapping", "write its keys below it, indented"),
    "tuple_type": ("a list", "write its items below it, each behind `- `"),
}
_LIMITS = {
    "greater_than": ("gt", "too small - write more than {}"),
    "greater_than_equal": ("ge", "too small - write {} or more"),
    "less_than_equal": ("le", "too large - write {} or less"),
}


class Complaint(NamedTuple):
    """One error of pydantic's: its type, the path and the input it is about, and its numbers."""

    kind: str
    loc: Loc
    value: Any
    context: Mapping[str, Any]


def complaints(invalid: ValidationError) -> list[Complaint]:
    """Take a validation error apart."""
    return [
        Complaint(error["type"], error["loc"], error["input"], error.get("ctx", {}))
        for error in invalid.errors(include_url=False)
    ]


def explain(complaint: Complaint) -> str:
    """Say in one line what is wrong with a value and what to do about it."""
    kind, loc, value, context = complaint
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return _missing(loc)
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    if kind == "literal_error":
        return _choice(loc, value)
    if kind in _WANTED:
        wanted, advice = _WANTED[kind]
        return f"{_shown(loc, value)} where {wanted} is due - {advice}"
    if kind in _LIMITS:
        name, advice = _LIMITS[kind]
        return f"{_shown(loc, value)} is {advice.format(_number(context[name]))}"
    return "nothing is written here - write a value"


def _missing(loc: Loc) -> str:
    meaning = section_at(loc[:-1]).model_fields[str(loc[-1])].description or ""
    first = " ".join(meaning.split()).split(". ")[0].rstrip(".")
    return f"missing - add it: {first}"


def _unknown_key(loc: Loc) -> str:
    known = list(section_at(loc[:-1]).model_fields)
    near = get_close_matches(str(loc[-1]), known, n=1)
    if near:
        return f"unknown key - did you mean {near[0]!r}?"
    return f"unknown key - remove it (known here: {', '.join(known)})"


def _choice(loc: Loc, value: Any) -> str:
    return f"{_shown(loc, value)} is no choice - write one of: {', '.join(choices_at(loc))}"


def _number(value: float) -> str:
    return str(int(value) if value == int(value) else value)


def _shown(loc: Loc, value: Any) -> str:
    kind = _kind(value)
    if isinstance(value, dict | list | None) or section_at(loc) is Secret:
        return kind
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({kind})"


def _kind(value: Any) -> str:
    names = {bool: "true or false", str: "text", dict: "a mapping", list: "a list"}
    return names.get(type(value), "nothing" if value is None else "a number")
