"""Keys that must not stand in a configuration file: only where to find them is written there.

Knows the two places a secret may come from. Knows neither what it is for nor when it is read:
wiring calls `reveal` while it builds the parts, and the value is kept in no configuration object.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from config.fields import FileName, Section
from config.tree import Loc

_FORMS = "write {env: NAME} to take it from the environment or {file: PATH} to read it from a file"
_PRINTABLE = re.compile(r"[ -~]+")


def _check_env(name: str) -> str:
    # The name is not shown: it may be the secret itself, written in the wrong place.
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not the name of an environment variable - use letters, digits and _")
    return name


class Secret(Section):
    """Where a secret is found: `{env: NAME}` or `{file: PATH}`, never the secret itself."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["env"]}, {"required": ["file"]}]}
    )

    env: Annotated[str, AfterValidator(_check_env)] | None = None
    """Name of the environment variable that holds the secret."""
    file: FileName | None = None
    """File that holds the secret; one newline at its end does not count."""

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            raise ValueError(f"a secret is never written here itself - {_FORMS}")
        if ("env" in data) == ("file" in data):
            raise ValueError(f"a secret has exactly one source - {_FORMS}")
        return data

    def reveal(self, environ: Mapping[str, str]) -> str:
        """Return the secret's value, printable ASCII, as a header can carry it.

        Raises ValueError, which names the variable or file but never the value, when it is
        missing, cannot be read, is empty or holds anything but printable ASCII.
        """
        name, value = self._read(environ)
        if not value:
            raise ValueError(f"{name} is empty - put the secret there")
        if not _PRINTABLE.fullmatch(value):
            raise ValueError(f"{name} holds a character that is not printable ASCII - remove it")
        return value

    def _read(self, environ: Mapping[str, str]) -> tuple[str, str]:
        if self.file is not None:
            return f"file {str(self.file)!r}", _read_file(self.file)
        name = f"environment variable {self.env!r}"
        value = environ.get(str(self.env))
        if value is None:
            raise ValueError(f"{name} is not set - set it before the gateway starts")
        return name, value


def _read_file(path: Path) -> str:
    try:
        text = path.read_bytes().decode("latin-1")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a possible file name"
        raise ValueError(f"file {str(path)!r} cannot be read: {reason} - create it") from None
    return text.removesuffix("\n").removesuffix("\r")


def secrets_in(value: object, loc: Loc = ()) -> Iterator[tuple[Loc, Secret]]:
    """Yield every secret below a configuration value, and the path to it."""
    if isinstance(value, Secret):
        yield loc, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name), (*loc, name))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from secrets_in(item, (*loc, name))
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            yield from secrets_in(item, (*loc, position))
